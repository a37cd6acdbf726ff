"""What is kept of a finished run: enough to judge it, and to run it again."""

import dataclasses
import gzip
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reluformers.checked_fields import check_fields, check_mapping
from reluformers.errors import UserError, describe_error
from reluformers.files import atomic_write, write_json
from reluformers.results import Evaluation
from reluformers.tasks import task_named
from reluformers.training.recipe import Recipe

FORMAT_VERSION = 1


@dataclass
class RunRecord:
    """A finished run: `NAME.json`, with `NAME.npz` for the rows and, of translations, `NAME.txt.gz`.

    Args:
        name: of the run, as `run_name` gives it.
        recipe: its sections, with names for places of data.
        evaluate: options of `reluformers evaluate` beside those that the recipe gives.
        evaluation: what it scored on the test set, and the statistics of its attention.
        results: what the training run measured at its end, on the validation set.
        data: split → what it was read from and the SHA-256 of its files, as far as they are on the machine.
        tokenizer: SHA-256 of its file.
        log: entries of evaluations in training.
        seconds: wall-clock time of training; None after a resumed run.
        processor_seconds: of the whole process, all threads; None after a resumed run.
        memory: peak of the process, or of the GPU, in GiB.
        tokens_per_second: median of the training log in the task's unit, with everything that ran beside it.
        diverged: why training stopped without weights to score; then there is no evaluation.
    """

    name: str
    recipe: dict[str, Any]
    evaluate: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    results: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    seconds: float | None = None
    processor_seconds: float | None = None
    memory: float | None = None
    tokens_per_second: float | None = None
    diverged: str | None = None

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.recipe["training"]["seed"]

    def to_recipe(self) -> Recipe:
        """The recipe, whose places of data are names.

        Raises:
            UserError: this version does not know one of its fields.
        """
        task = check_mapping("recipe", self.recipe).get("task")
        return task_named(task).recipe_class.from_sections(self.recipe, self.name)

    @property
    def metrics(self) -> frozenset[str]:
        """What its test rows are scored by."""
        return frozenset(task_named(self.recipe["task"]).scorer.scores_of_sums())

    @property
    def score(self) -> float | None:
        """The task's main metric on the test set; None of a run that diverged."""
        if self.evaluation is None:
            return None
        return self.evaluation.scores[task_named(self.recipe["task"]).main_metric].value

    def measure(self, name: str) -> float | None:
        """A statistic of the whole attention, or the validation loss; None where it was not measured."""
        if name == "loss":
            return self.results.get("validation_loss")
        attention = self.evaluation.attention if self.evaluation else None
        return getattr(attention.overall, name) if attention else None

    def save(
        self, folder: Path, rows: Mapping[str, np.ndarray] | None = None, outputs: list[str] | None = None
    ) -> None:
        """Write the files; the JSON comes last, so that a record that is there is complete.

        Args:
            folder: of all records.
            rows: metric → statistics of the test set's rows [rows, columns], as `Scorer.row_statistics` gives them.
            outputs: translations.
        """
        path = folder / f"{self.name}.json"
        if rows is not None:
            # counts of n-grams: most are small
            with atomic_write(path.with_suffix(".npz")) as temporary:
                small = {name: counts.astype(np.min_scalar_type(int(counts.max()))) for name, counts in rows.items()}
                np.savez_compressed(temporary, **small)
        if outputs is not None:
            text = "".join(" ".join(line.splitlines()) + "\n" for line in outputs)
            with atomic_write(path.with_suffix(".txt.gz")) as temporary:
                # no time in the header: the same translations are the same file
                temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values = {name: value for name, value in values.items() if value not in (None, {}, [])}
        if self.evaluation is not None:
            values["evaluation"] = self.evaluation.to_dict()
        write_json(path, {"format_version": FORMAT_VERSION, **values})

    @classmethod
    def load(cls, path: Path) -> "RunRecord":
        """Read a record.

        Raises:
            UserError: the file is missing, damaged or of a newer version.
        """
        try:
            values = dict(check_mapping("the record", json.loads(path.read_text(encoding="utf-8"))))
            if values.pop("format_version", None) != FORMAT_VERSION:
                raise UserError("is no record of a run, or one of a newer reluformers")
            evaluation = values.pop("evaluation", None)
            checked = check_fields("record", values, cls, excluded=("evaluation",))
            record = cls(**checked, evaluation=None if evaluation is None else Evaluation.from_dict(evaluation))
            if "seed" not in record.to_recipe().training:
                raise UserError("lacks training.seed")
            if record.evaluation is not None and (missing := record.metrics - record.evaluation.scores.keys()):
                raise UserError(f"lacks the score {min(missing)}")
            return record
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path}: cannot be read as a record ({describe_error(error, path)})") from error


def load_rows(folder: Path, record: RunRecord) -> dict[str, np.ndarray]:
    """Metric → statistics of the rows of a record [rows, columns], int64.

    Raises:
        UserError: they are missing or damaged.
    """
    path = folder / f"{record.name}.npz"
    try:
        with np.load(path) as file:
            return {metric: file[metric].astype(np.int64) for metric in record.metrics}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read ({describe_error(error, path)}); delete {record.name}.json and run the row again"
        ) from error


def load_records(folder: Path) -> list[RunRecord]:
    """All records of a folder.

    Raises:
        UserError: one cannot be read.
    """
    return [RunRecord.load(path) for path in sorted(folder.glob("[!.]*.json"))]
