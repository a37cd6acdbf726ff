"""What is kept of a finished run: enough to judge it, and to run it again. A row of Parquet."""

import functools
import json
import math
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reluformers import tasks as library
from reluformers.evaluation.results import Evaluation
from reluformers.files import as_json, atomic_write
from reluformers.training.recipe import Recipe

from .tables import Table, list_tables, row_key
from .tasks import TASKS, task_named

FORMAT_VERSION = 1
# columns of text: `datasets.Json` rounds numbers to 15 digits when it reads them
_JSON = ("recipe", "evaluate", "evaluation", "results", "data", "log")
_COUNTS = "_counts"
_SHARD = "[0-9]" * 5  # what ends the names of gathered files
LOSS = "loss"  # on the validation set: the measure that decides
_SHARD_BYTES = 60_000_000  # in memory; compressed, a fifth of it
# a chunk is cut by what it holds, so that a run more changes few bytes of a file
_CHUNKS = {"min_chunk_size": 1 << 14, "max_chunk_size": 1 << 16}


@dataclass
class RunRecord:
    """A finished run.

    Args:
        name: of the run, as `run_name` gives it.
        recipe: its sections, with names instead of paths of data.
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
        counts: metric → statistics of the test set's rows [rows, columns], int64, of `Scorer.row_statistics`;
            beside them `LOSS`, millionths of nats and tokens of the validation set's rows, where the run kept them.
        translations: of the test set.
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
    counts: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    translations: list[str] | None = field(default=None, repr=False)

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.recipe["training"]["seed"]

    def to_recipe(self) -> Recipe:
        """The recipe, with names instead of paths of data."""
        return task_named(self.recipe.get("task")).recipe_class.from_sections(self.recipe, self.name)

    @property
    def metrics(self) -> frozenset[str]:
        """What its test rows are scored by."""
        return frozenset(task_named(self.recipe["task"]).scorer.scores_of_sums())

    @property
    def score(self) -> float | None:
        """The task's main metric on the test set; None of a run that diverged."""
        return self.value(task_named(self.recipe["task"]).main_metric)

    def value(self, measure: str) -> float | None:
        """A metric, the validation loss, a statistic of the attention or another result; None if it is no number."""
        if self.evaluation is None:
            return None
        if measure in self.metrics:
            value = self.evaluation.scores[measure].value
        elif measure == LOSS:
            value = self.results.get("validation_loss")
        elif self.evaluation.attention:
            value = getattr(self.evaluation.attention.overall, measure, None)
        else:
            value = self.results.get(measure)
        return value if value is not None and math.isfinite(value) else None

    def save(self, folder: Path) -> None:
        """Write `NAME.parquet`, whole or not at all, with the row that `gather` adds to others."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["evaluation"] = self.evaluation and self.evaluation.to_dict()
        scores = self.evaluation.scores if self.evaluation else {}
        lines = self.translations and [" ".join(line.splitlines()) for line in self.translations]
        row = {
            **values,
            **{name: _json(values[name]) for name in _JSON},
            "tables": [],
            "task": self.recipe["task"],
            "seed": self.seed,
            "format_version": FORMAT_VERSION,
            **{metric: score.value for metric, score in scores.items()},
            **{metric + _COUNTS: rows.astype(np.int64).tolist() for metric, rows in self.counts.items()},
            "translations": lines,
        }
        _write({folder / f"{self.name}.parquet": pa.Table.from_pylist([row], _schema(row["task"]))})

    @classmethod
    def _of(cls, row: pa.Table, path: Path) -> "RunRecord":
        """The record that a table of one row holds."""
        counted = {name.removesuffix(_COUNTS): row[name][0] for name in row.column_names if name.endswith(_COUNTS)}
        (values,) = row.drop_columns([metric + _COUNTS for metric in counted]).to_pylist()
        if values["format_version"] != FORMAT_VERSION:
            raise ValueError(f"{path}: is a record of a newer reluformers")
        known = {item.name: values[item.name] for item in fields(cls) if values.get(item.name) is not None}
        known |= {name: json.loads(known[name]) for name in _JSON if name in known}
        if "evaluation" in known:
            known["evaluation"] = Evaluation.from_dict(known["evaluation"])
        record = cls(**known, counts={metric: _array(rows) for metric, rows in counted.items() if rows.is_valid})
        if record.evaluation is not None and (missing := record.metrics - record.counts.keys()):
            raise ValueError(f"{path}: lacks the counts of {min(missing)}, without which intervals are too narrow")
        return record


def has_record(folder: Path, name: str) -> bool:
    """Whether a run is recorded in a folder, in a file of its own or gathered."""
    if (folder / f"{name}.parquet").exists():
        return True
    gathered = (pq.read_table(path, columns=["name"]) for path in folder.glob(f"*-{_SHARD}.parquet"))
    return any(name in table["name"].to_pylist() for table in gathered)


def load_records(folder: Path) -> list[RunRecord]:
    """All records of a folder, by name; a `ValueError` where two of a name differ."""
    return [RunRecord._of(row, folder / name) for name, row in _stored(folder).items()]


def gather(source: Path, folder: Path) -> int:
    """Add the records of a folder to the Parquet files of another one.

    A row is a run with the rows of tables that it is a run of. The same runs are the same bytes.

    Returns:
        How many runs `folder` holds then.

    Raises:
        ValueError: there is no record, or two of a name differ.
    """
    if not _stored(source):
        raise ValueError(f"{source}: holds no record of a run")
    stored = _stored(folder, source)
    table_rows: dict[str, list[dict[str, str]]] = {}
    for table in map(Table.load, list_tables()):
        for setting in table.settings:
            for row in table.rows_of(setting):
                table_row = {"table": table.name, "setting": setting, "row": row.name}
                table_rows.setdefault(row_key(table.recipe(setting, row, seed=1)), []).append(table_row)
    rows: dict[str, list[pa.Table]] = {}
    for name, row in stored.items():
        recipe = RunRecord._of(row, folder / name).to_recipe()
        schema = _schema(recipe.task)
        column = pa.array([table_rows.get(row_key(recipe), [])], schema.field("tables").type)
        row = row.set_column(row.column_names.index("tables"), schema.field("tables"), column)
        rows.setdefault(recipe.task, []).append(row.select(schema.names).cast(schema))
    files: dict[Path, pa.Table] = {}
    for task, of_task in rows.items():
        table = pa.concat_tables(of_task).combine_chunks()
        prefix = task.replace("-", "_")
        shards = math.ceil(table.nbytes / _SHARD_BYTES)
        size = math.ceil(table.num_rows / shards)
        for shard in range(shards):
            files[folder / f"{prefix}-{shard:05}.parquet"] = table.slice(shard * size, size)
    _write(files)
    for task in rows:
        for path in set(folder.glob(f"{task.replace('-', '_')}-{_SHARD}.parquet")) - files.keys():
            path.unlink()
    return len(stored)


@functools.cache
def _schema(task: str) -> pa.Schema:
    """Columns of the Parquet files of a task; those of the library's are splits of one data set, and have the same."""
    tasks = library.TASKS if task in library.TASKS else [task]
    metrics = dict.fromkeys(metric for task in tasks for metric in TASKS[task].scorer.scores_of_sums())
    text = pa.string()
    number = pa.float64()
    whole = pa.int64()
    # millionths of nats of a long row pass 2³²; words and letters do not
    count = pa.uint32() if task in library.TASKS else pa.uint64()
    counts = dict.fromkeys(metrics, count) | {LOSS: pa.uint64()}
    return pa.schema(
        {
            "name": text,
            "tables": pa.list_(pa.struct(dict.fromkeys(("table", "setting", "row"), text))),
            "task": text,
            "seed": whole,
            **dict.fromkeys(metrics, number),
            "format_version": whole,
            **dict.fromkeys(_JSON, text),
            "tokenizer": text,
            **dict.fromkeys(("seconds", "processor_seconds", "memory", "tokens_per_second"), number),
            "diverged": text,
            **{name + _COUNTS: pa.list_(pa.list_(kind)) for name, kind in counts.items()},
            "translations": pa.list_(text),
        }
    )


def _write(files: dict[Path, pa.Table]) -> None:
    """Write all files or none: beside a new file, an old one may lack the runs that have moved between the two."""
    with ExitStack() as stack:
        for path, table in files.items():
            names = (name for name in table.column_names if name.endswith(_COUNTS))
            pq.write_table(
                table,
                stack.enter_context(atomic_write(path)),
                compression="zstd",
                compression_level=9,
                use_dictionary=False,
                column_encoding={f"{name}.list.element.list.element": "BYTE_STREAM_SPLIT" for name in names},
                use_content_defined_chunking=_CHUNKS,
            )


def _stored(*folders: Path) -> dict[str, pa.Table]:
    """Name → a table of one row, of the runs of folders, by name; a `ValueError` where two of a name differ."""
    runs: dict[str, pa.Table] = {}
    for folder in folders:
        for table in map(pq.read_table, sorted(folder.glob("[!.]*.parquet"))):
            for index, name in enumerate(table["name"].to_pylist()):
                row = table.slice(index, 1)
                other = runs.setdefault(name, row)
                if other is not row and other.drop_columns("tables") != row.drop_columns("tables"):
                    raise ValueError(f"{folder / name}: there is another run of that name; keep one of them")
    return dict(sorted(runs.items()))


def _json(value: Any) -> str | None:
    """Text of a column; what is empty has none."""
    if value:
        return json.dumps(as_json(value), ensure_ascii=False)
    return None


def _array(rows: pa.ListScalar) -> np.ndarray:
    """Statistics of rows, int64 [rows, columns]."""
    return rows.values.flatten().to_numpy().reshape(len(rows), -1).astype(np.int64)
