"""What is kept of a finished run: enough to judge it, and to run it again. Files of its own, or a row of Parquet."""

import dataclasses
import functools
import gzip
import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reluformers import tasks as library
from reluformers.data.checked_fields import check_fields, check_mapping
from reluformers.errors import describe_error
from reluformers.evaluation.results import Evaluation
from reluformers.files import atomic_write, write_json
from reluformers.training.recipe import Recipe

from .tables import Table, list_tables, row_key
from .tasks import TASKS, task_named

FORMAT_VERSION = 1
# columns of text: `datasets.Json` rounds numbers to 15 digits when it reads them
_JSON = ("recipe", "evaluate", "evaluation", "results", "data", "log")
_COUNTS = "_counts"
LOSS = "loss"  # on the validation set: the measure that decides
UNITS = 1_000_000  # counts are whole numbers: of nats, millionths
_SHARD_BYTES = 60_000_000  # in memory; compressed, a fifth of it
# a chunk is cut by what it holds, so that a run more changes few bytes of a file
_CHUNKS = {"min_chunk_size": 1 << 14, "max_chunk_size": 1 << 16}


@dataclass
class RunRecord:
    """A finished run.

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
        """The recipe, whose places of data are names.

        Raises:
            ValueError: this version does not know one of its fields.
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
        """The validation loss, a statistic of the whole attention or another result; None of what was not measured."""
        if name == "loss":
            return self.results.get("validation_loss")
        attention = self.evaluation.attention if self.evaluation else None
        return getattr(attention.overall, name, None) if attention else self.results.get(name)

    def save(self, folder: Path) -> None:
        """Write `NAME.npz` for the counts, `NAME.txt.gz` for the translations, and `NAME.json` for the rest.

        The JSON comes last, so that a record that is there is complete.
        """
        path = folder / f"{self.name}.json"
        if self.counts:
            # counts of n-grams: most are small
            with atomic_write(path.with_suffix(".npz")) as temporary:
                small = {name: rows.astype(np.min_scalar_type(int(rows.max()))) for name, rows in self.counts.items()}
                np.savez_compressed(temporary, **small)
        if self.translations is not None:
            text = "".join(" ".join(line.splitlines()) + "\n" for line in self.translations)
            with atomic_write(path.with_suffix(".txt.gz")) as temporary:
                # no time in the header: the same translations are the same file
                temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
        names = [item.name for item in dataclasses.fields(self) if item.name not in _Run._fields]
        values = {name: value for name in names if (value := getattr(self, name)) not in (None, {}, [])}
        if self.evaluation is not None:
            values["evaluation"] = self.evaluation.to_dict()
        write_json(path, {"format_version": FORMAT_VERSION, **values})

    @classmethod
    def load(cls, path: Path) -> "RunRecord":
        """Read a record.

        Args:
            path: of its JSON file, or FOLDER/NAME, wherever in FOLDER it is kept.

        Raises:
            ValueError: it is missing, damaged or of a newer version.
        """
        path = Path(path).with_suffix(".json")
        if not path.exists():
            try:
                run = next(_gathered_runs(path.parent, [("name", "==", path.stem)]), None)
            except ValueError as error:  # of another file of that folder
                raise ValueError(f"{path}: no such file, and no record of that name beside it: {error}") from error
            if run is not None:
                return cls._of(run, path.with_suffix(""))
        return cls._of(_run_of_files(path), path)

    @classmethod
    def _of(cls, run: "_Run", place: Path) -> "RunRecord":
        try:
            values = dict(check_mapping("the record", run.values))
            if values.pop("format_version", None) != FORMAT_VERSION:
                raise ValueError("is no record of a run, or one of a newer reluformers")
            evaluation = values.pop("evaluation", None)
            record = cls(
                **check_fields("record", values, cls, excluded=("evaluation", *_Run._fields)),
                evaluation=None if evaluation is None else Evaluation.from_dict(evaluation),
                counts=run.counts,
                translations=run.translations,
            )
            if "seed" not in record.to_recipe().training:
                raise ValueError("lacks training.seed")
            if record.evaluation is not None:
                if missing := record.metrics - record.evaluation.scores.keys():
                    raise ValueError(f"lacks the score {min(missing)}")
                if missing := record.metrics - record.counts.keys():
                    raise ValueError(f"lacks the counts of {min(missing)}")
            return record
        except (ValueError, TypeError) as error:
            raise ValueError(f"{place}: {describe_error(error, place)}") from error


class _Run(NamedTuple):
    """What is kept of a run, as it was written.

    Args:
        values: of its JSON.
        counts, translations: as of `RunRecord`.
    """

    values: dict[str, Any]
    counts: dict[str, np.ndarray]
    translations: list[str] | None

    def equals(self, other: "_Run") -> bool:
        """Whether both hold the same."""
        return (
            (self.values, self.translations) == (other.values, other.translations)
            and self.counts.keys() == other.counts.keys()
            and all(np.array_equal(rows, other.counts[name]) for name, rows in self.counts.items())
        )


def has_record(folder: Path, name: str) -> bool:
    """Whether a run is recorded in a folder, in files of its own or gathered."""
    found = _read_gathered(folder, columns=["name"], filters=[("name", "==", name)])
    return (folder / f"{name}.json").exists() or any(table.num_rows for _, table in found)


def load_records(folder: Path) -> list[RunRecord]:
    """All records of a folder, by name.

    Raises:
        ValueError: one cannot be read, or two of a name differ.
    """
    return [RunRecord._of(run, folder / name) for name, run in _runs(folder).items()]


def gather(source: Path, folder: Path) -> int:
    """Add the records of a folder to the Parquet files of another one.

    A row is a run: what its JSON holds, its counts and its translations, and the rows of tables that it is a run of.
    The same runs are the same bytes.

    Returns:
        How many runs `folder` holds then.

    Raises:
        ValueError: there is no record, one cannot be read or has another name than its file, or two of a name differ.
    """
    if not _runs(source):
        raise ValueError(f"{source}: holds no record of a run")
    runs = _runs(folder, source)
    places: dict[str, list[dict[str, str]]] = {}
    for table in map(Table.load, list_tables()):
        for setting in table.settings:
            for row in table.rows_of(setting):
                place = {"table": table.name, "setting": setting, "row": row.name}
                places.setdefault(row_key(table.recipe(setting, row, seed=1)), []).append(place)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, run in runs.items():
        record = RunRecord._of(run, folder / name)
        if record.name != name:
            raise ValueError(f"{name}.json: holds the run {record.name}; name the file by it")
        row = _row(record, run, places.get(row_key(record.to_recipe()), []))
        rows.setdefault(row["task"], []).append(row)
    for task, of_task in rows.items():
        # tasks of the library are splits of one data set, whose columns are the same
        columns = _schema(*(library.TASKS if task in library.TASKS else [task]))
        _write(folder, task.replace("-", "_"), pa.Table.from_pylist(of_task, columns))
    return len(runs)


def mean_nats(sums: np.ndarray) -> float:
    """Nats a token of sums of millionths of nats and tokens."""
    return float(sums[0] / sums[1] / UNITS)


@functools.cache
def _schema(*tasks: str) -> pa.Schema:
    """Columns of the Parquet files of some tasks."""
    metrics = dict.fromkeys(metric for task in tasks for metric in TASKS[task].scorer.scores_of_sums())
    text, number, whole = pa.string(), pa.float64(), pa.int64()
    # millionths of nats of a long row pass 2³²; words and letters do not
    count = pa.uint32() if library.TASKS.keys() >= set(tasks) else pa.uint64()
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


def _row(record: RunRecord, run: _Run, tables: list[dict[str, str]]) -> dict[str, Any]:
    """A run as a row of the Parquet files."""
    scores = record.evaluation.scores if record.evaluation else {}
    return {
        **run.values,
        **{name: json.dumps(run.values[name], ensure_ascii=False) for name in _JSON if name in run.values},
        "tables": tables,
        "task": record.recipe["task"],
        "seed": record.seed,
        **{metric: score.value for metric, score in scores.items()},
        **{metric + _COUNTS: rows.tolist() for metric, rows in run.counts.items()},
        "translations": run.translations,
    }


def _write(folder: Path, prefix: str, table: pa.Table) -> None:
    """Write rows as PREFIX-00000.parquet and so on, and remove files of that prefix that are no longer needed."""
    shards = math.ceil(table.nbytes / _SHARD_BYTES)
    size = math.ceil(table.num_rows / shards)
    paths = [folder / f"{prefix}-{shard:05}.parquet" for shard in range(shards)]
    encodings = {
        f"{name}.list.element.list.element": "BYTE_STREAM_SPLIT"
        for name in table.column_names
        if name.endswith(_COUNTS)
    }
    for shard, path in enumerate(paths):
        with atomic_write(path) as temporary:
            pq.write_table(
                table.slice(shard * size, size),
                temporary,
                compression="zstd",
                compression_level=9,
                use_dictionary=False,
                column_encoding=encodings,
                use_content_defined_chunking=_CHUNKS,
            )
    for path in set(folder.glob(f"{prefix}-{'[0-9]' * 5}.parquet")) - set(paths):
        path.unlink()


def _runs(*folders: Path) -> dict[str, _Run]:
    """Name → run, of folders, by name.

    Raises:
        ValueError: one cannot be read, or two of a name differ.
    """
    found: dict[str, _Run] = {}
    for folder in folders:
        own = ((path.stem, _run_of_files(path)) for path in sorted(folder.glob("[!.]*.json")))
        for name, run in (*((run.values["name"], run) for run in _gathered_runs(folder)), *own):
            if not run.equals(found.setdefault(name, run)):
                raise ValueError(f"{folder / name}: there is another run of that name; keep one of them")
    return dict(sorted(found.items()))


def _run_of_files(path: Path) -> _Run:
    """A run in files of its own.

    Raises:
        ValueError: one of them is missing or damaged.
    """
    counts, translations, place = {}, None, path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        place = path.with_suffix(".npz")
        if isinstance(values, Mapping) and "evaluation" in values:
            with np.load(place) as file:
                counts = {metric: file[metric].astype(np.int64) for metric in file.files}
        place = path.with_suffix(".txt.gz")
        if place.exists():
            translations = gzip.decompress(place.read_bytes()).decode().split("\n")[:-1]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        hint = "" if place == path else f"; delete {path.name} and run the row again"
        raise ValueError(f"{place}: cannot be read as a record ({describe_error(error, place)}){hint}") from error
    return _Run(values, counts, translations)


def _gathered_runs(folder: Path, filters: list[tuple] | None = None) -> Iterator[_Run]:
    """Runs of the Parquet files of a folder.

    Raises:
        ValueError: one cannot be read.
    """
    for path, table in _read_gathered(folder, filters=filters):
        try:
            names = [name for name in table.column_names if name.endswith(_COUNTS)]
            counts = {name.removesuffix(_COUNTS): table[name] for name in names}
            for place, row in enumerate(table.drop_columns(names).to_pylist()):
                values = {"format_version": row["format_version"]}
                for name in (item.name for item in dataclasses.fields(RunRecord)):
                    if name not in _Run._fields and row.get(name) is not None:
                        values[name] = json.loads(row[name]) if name in _JSON else row[name]
                arrays = {
                    metric: column[place].values.flatten().to_numpy().reshape(len(column[place]), -1).astype(np.int64)
                    for metric, column in counts.items()
                    if column[place].is_valid
                }
                yield _Run(values, arrays, row["translations"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: cannot be read as records ({describe_error(error, path)})") from error


def _read_gathered(folder: Path, **options: Any) -> Iterator[tuple[Path, pa.Table]]:
    """The Parquet files of a folder.

    Raises:
        ValueError: one is damaged, or holds something else.
    """
    for path in sorted(folder.glob("[!.]*.parquet")):
        try:
            names = set(pq.read_schema(path).names)
            if not {"name", "recipe"} <= names <= set(_schema(*TASKS).names):
                raise ValueError(f"{path}: holds no records of runs, or those of a newer reluformers")
            yield path, pq.read_table(path, **options)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path}: cannot be read as records ({describe_error(error, path)})") from error
