"""Where the rows of a split lie, for sentence pairs and for images alike: on the Hub, in a folder or in files."""

import glob
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, IterableDataset, ReadInstruction, Value, load_dataset
from datasets import logging as datasets_logging
from datasets.exceptions import DatasetsError

from reluformers.errors import describe_error

from .checked_fields import check_name
from .tables import Tables

# A slice such as [:90%] needs a count of rows; no data set has as many as this.
_MANY_ROWS = 10**12


@contextmanager
def name_in_errors(key: str) -> Iterator[None]:
    """Put the key of a recipe in front of the errors of what it names."""
    try:
        yield
    except ValueError as error:
        raise error if key in str(error) else ValueError(f"{key}: {error}") from error


def split_name(split: str) -> str:
    """Name of a split without its slice: "train" of "train[:1000]"."""
    return split.partition("[")[0]


def check_apart(path: str | None, sources: Mapping[str, Any]) -> None:
    """Refuse to evaluate on what is trained on, as far as the names of files or splits show it.

    Args:
        path: of a data set whose splits are named, or None where files are.
        sources: "train" and others → files, or the name of a split, perhaps with a slice, of `path`.
    """
    others = dict(sources)
    train = others.pop("train")
    for name, source in others.items():
        if _paths(train) & _paths(source) if path is None else _share_rows(train, source):
            raise ValueError(
                f"data.{name} is {source}, which shares rows with data.train, {train}: name parts that do not, "
                "such as data.train=train[5000:] data.validation=train[:5000] of a data.path"
            )


@dataclass
class DataSection:
    """Where the rows of a training run are.

    Args:
        path: Hub id of a data set, folder or file; None if the three splits are files or folders.
        name: configuration of the data set on the Hub.
        revision: branch, tag or commit on the Hub.
        train, validation, test: with `path`, the name of the split, perhaps with a slice: `train[5000:]`. Without it a
            file, a list of files, or for images a folder with one folder for each class, for translation a mapping
            with `source` and `target` for parallel text. Training evaluates on `validation`, and at its end scores
            the model on `test`, which chooses nothing and may stay None.
    """

    path: str | None = None
    name: str | None = None
    revision: str | None = None
    train: str | list[str] | dict[str, str] | None = None
    validation: str | list[str] | dict[str, str] | None = None
    test: str | list[str] | dict[str, str] | None = None

    # These splits must be given; a `path` has them by these names unless told others.
    needed: ClassVar[tuple[str, ...]] = ("train",)

    def sources(self) -> dict[str, str | list[str] | dict[str, str]]:
        """Where each split is that the recipe names."""
        usual = {} if self.path is None else {name: name for name in self.needed}
        given = {name: getattr(self, name) for name in ("train", "validation", "test")}
        return usual | {name: source for name, source in given.items() if source is not None}

    def read(self, load: Callable[[str, Any, str], Any]) -> dict[str, Any]:
        """Read every split that is named, none of which may share rows with `train`.

        `load` takes a split's name, where it lies, and what it is called there.
        """
        sources = self.sources()
        if missing := {*self.needed} - sources.keys():
            raise ValueError(f"data.{min(missing)} is not given: name files, or a data.path with such a split")
        check_apart(self.path, sources)
        location = {"path": self.path, "name": self.name, "revision": self.revision}
        splits = {}
        for name, source in sources.items():
            with name_in_errors(f"data.{name}"):
                splits[name] = load(name, *(({name: source}, name) if self.path is None else (location, source)))
        return splits


def _paths(source: Any) -> set[Path]:
    """Files of a split: one, several, or one for each side."""
    if isinstance(source, dict):
        source = list(source.values())
    files = source if isinstance(source, list) else [source]
    return {Path(os.path.expanduser(file)).resolve() for file in files}


def _share_rows(*splits: str) -> bool:
    """Whether two splits, such as "train[:90%]+test", have rows in common where there are very many."""
    for pair in itertools.product(*([part.strip() for part in split.split("+")] for split in splits)):
        rows = [_rows_of(split, _MANY_ROWS) for split in pair]
        is_same = split_name(pair[0]) == split_name(pair[1])
        if is_same and max(part.start for part in rows) < min(part.stop for part in rows):
            return True
    return False


def _rows_of(split: str, count: int) -> range:
    """Rows of the slice in `split` where there are so many, counted as `datasets` does it."""
    name = split_name(split)
    try:
        # We put a name of our own there, because `datasets` takes no names such as "test-2016".
        part = ReadInstruction.from_spec(f"data{split.removeprefix(name)}").to_absolute({"data": count})[0]
    except AssertionError as error:
        raise ValueError(f"split {split!r}: {error}") from error
    return range(part.from_ or 0, count if part.to is None else part.to)


def take_options(source: Any) -> tuple[Any, dict[str, Any]]:
    """Take {"path": …, "name": …, "revision": …} apart into path and options of `load_dataset`; leave others whole."""
    if not isinstance(source, dict) or "path" not in source:
        return source, {}
    options = {key: value for key, value in source.items() if value is not None}
    return options.pop("path"), options


def take_split(source: dict, name: str) -> Any:
    """Files of one split out of {split: files}; raises ValueError if there are none."""
    check_name(name, [split for split, files in source.items() if files is not None], "split")
    return source[name]


def read_hub(name: str, split: str, options: dict[str, Any]) -> Dataset | IterableDataset:
    """Load a split from the Hub."""
    with explain_read_errors(f"{name}, split {split!r}"):
        dataset = load_dataset(name, split=split, **options)
        if dataset.info.builder_name == "csv":  # `datasets` would guess that cells are numbers or missing.
            columns = dataset.column_names or next(iter(dataset))
            text = Features(dict.fromkeys(columns, Value("string")))
            dataset = load_dataset(name, split=split, features=text, keep_default_na=False, **options)
        return dataset


def read_parquet(files: list[str], *, streaming: bool = False) -> Dataset | IterableDataset:
    """Load the rows of parquet files; a column that is text in one and numbers in another is a ValueError."""
    with explain_read_errors(", ".join(files)):
        # `datasets` would cast all files to the first file's types in silence: "007" would become 7.
        pa.unify_schemas([pq.read_schema(file) for file in files], promote_options="permissive")
        names = {"data": list(map(glob.escape, files))}
        return load_dataset("parquet", data_files=names, split="data", streaming=streaming)


def read_with(
    read: Callable[..., Iterator[dict[str, Any]]], *, files: Any, features: Features, streaming: bool, **options: Any
) -> Dataset | IterableDataset:
    """Load the rows that a function reads out of files, or open them as a stream.

    Args:
        read: Function of `files`, `stamps` (to be ignored) and the options.
        files: Paths, or a dict of paths.
        features: Of the rows.
        streaming: Whether to read them later.
        options: For the function.
    """
    with explain_read_errors(""):  # The function names the file in its errors.
        paths = files.values() if isinstance(files, dict) else files
        # A file that has changed is read again. They are a dict, as `datasets` would take a list for shards.
        stamps = {path: (os.path.getsize(path), os.stat(path).st_mtime_ns) for path in paths}
        options = {"files": files, "stamps": stamps, **options}
        builder = Tables(read=read, options=options, features=features)
        if streaming:
            return builder.as_streaming_dataset("data")
        builder.download_and_prepare()
        return builder.as_dataset("data")


def take_slice(dataset: Dataset, split: str) -> Dataset:
    """Rows of the slice in `split`, such as "train[:90%]"; a ValueError if there are none."""
    rows = _rows_of(split, len(dataset))
    if not rows:
        raise ValueError(f"split {split!r}: this part of {len(dataset)} rows is empty; choose a bigger one")
    return dataset.select(rows)


@contextmanager
def explain_read_errors(data_name: str) -> Iterator[None]:
    """Turn what `datasets` raises into a ValueError of one line that names the source; it wraps and logs the cause."""
    verbosity = datasets_logging.get_verbosity()
    datasets_logging.set_verbosity(datasets_logging.CRITICAL)
    try:
        yield
    except (ValueError, RuntimeError, OSError, DatasetsError, pa.ArrowException) as error:
        cause: BaseException = error
        while isinstance(cause, DatasetsError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise ValueError(f"{data_name}: {describe_error(cause)}".removeprefix(": ")) from error
    finally:
        datasets_logging.set_verbosity(verbosity)
