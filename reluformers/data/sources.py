"""Where the rows of a split lie, for sentence pairs and for images alike: on the Hub, in a folder or in files."""

import glob
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, IterableDataset, ReadInstruction, Value, load_dataset
from datasets import logging as datasets_logging
from datasets.exceptions import DatasetsError

from reluformers.errors import describe_error
from reluformers.files import check_name

from .names import named_split
from .tables import Tables

logger = logging.getLogger(__name__)

# more than any data set has
_MANY_ROWS = 10**12


@contextmanager
def naming(key: str) -> Iterator[None]:
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

    Raises:
        ValueError: one shares rows with "train".
    """
    others = dict(sources)
    train = others.pop("train")
    for name, source in others.items():
        if _share_files(train, source) if path is None else _share_rows(train, source):
            raise ValueError(
                f"data.{name} is {source}, which shares rows with data.train, {train}: name parts that do not, "
                "such as data.train=train[5000:] data.validation=train[:5000] of a data.path"
            )


def _share_files(*sources: Any) -> bool:
    first, second = ({Path(os.path.expanduser(file)).resolve() for file in _files(source)} for source in sources)
    return bool(first & second)


def _share_rows(first: str, second: str) -> bool:
    """Whether two splits, such as "train[:90%]+test", have rows in common where there are very many."""
    parts = itertools.product(*([part.strip() for part in split.split("+")] for split in (first, second)))
    return any(split_name(one) == split_name(other) and _overlap(one, other) for one, other in parts)


def _overlap(*splits: str) -> bool:
    slices = [split.removeprefix(split_name(split)) for split in splits]
    try:
        parts = [ReadInstruction.from_spec(f"data{part}").to_absolute({"data": _MANY_ROWS})[0] for part in slices]
    except (ValueError, AssertionError):  # no slice at all, which the loader puts into words
        return False
    return max(part.from_ or 0 for part in parts) < min(part.to or _MANY_ROWS for part in parts)


def take_options(source: Any) -> tuple[Any, dict[str, Any]]:
    """Take {"path": …, "name": …, "revision": …} apart into the path and the options of `load_dataset`.

    Args:
        source: What a user gave as the source of a split; anything but a dict with a "path" is returned as it is.

    Returns:
        The source proper, and those options that are set.

    Raises:
        ValueError: If there are other keys beside "path".
    """
    if not isinstance(source, dict) or "path" not in source:
        return source, {}
    unknown = set(source) - {"path", "name", "revision"}
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r} beside 'path'; allowed are 'name' and 'revision'")
    return source["path"], {key: value for key, value in source.items() if key != "path" and value is not None}


def local_source(data: Mapping[str, Any], split: str) -> tuple[Any, str] | None:
    """Where a recipe's split lies on this machine, as `load_…_split` take it: the source and the name of the split.

    Args:
        data: section of a recipe, as it was written.
        split: "train", "validation" or "test".

    Returns:
        None if the recipe does not name the split, or a file or folder of it is not here.
    """
    if data.get(split) is None:
        return None
    if data.get("path") is not None:
        return (data["path"], data[split]) if Path(os.path.expanduser(data["path"])).is_dir() else None
    is_here = all(Path(os.path.expanduser(file)).exists() for file in _files(data[split]))
    return ({split: data[split]}, split) if is_here else None


def check_files(data: Mapping[str, Any]) -> None:
    """Check that the files of a recipe are there, but for what is read out of a `path`.

    Args:
        data: section of a recipe, as it was written.

    Raises:
        ValueError: one is missing or empty.
    """
    if data.get("path") is None:
        for split in ("train", "validation", "test"):
            if data.get(split) is not None:
                for file in _files(data[split]):
                    check_file(file)


def _files(value: Any) -> list[Any]:
    """Files of a split: one, several, or one for each side."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def load_held_out(data: Mapping[str, Any], load: Callable[[Any, str], Dataset]) -> tuple[Dataset, str] | None:
    """Rows of the test set, else of the validation set, if they lie on this machine and can be read.

    Args:
        data: section of a recipe, as it was written.
        load: `load_…_split` with the columns of the recipe.

    Returns:
        The rows and what the split is called where it lies; None if there are none.
    """
    for split in ("test", "validation"):
        source = local_source(data, split)
        if source is None:
            continue
        try:
            return load(*source), data[split] if data.get("path") else named_split(data[split], split)
        except ValueError as error:
            logger.info("no examples of %s: %s", split, error)
    return None


def take_split(source: dict, name: str) -> Any:
    """Files of one split out of {split: files}; raises ValueError if there are none."""
    if source.get(name) is None:
        raise ValueError(f"no files for split {name!r}; there are: {', '.join(map(str, source))}")
    return source[name]


def check_file(path: str | os.PathLike) -> str:
    """Check that a file is there and holds something; gives its path as str, with the home folder filled in."""
    path = check_name(Path(os.path.expanduser(path)))
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file; check the path")
    if os.path.getsize(path) == 0:
        raise ValueError(f"{path}: the file is empty; fetch or make it again")
    return path


def read_hub(name: str, split: str, options: dict[str, Any]) -> Dataset | IterableDataset:
    """Load a split from the Hub, or raise a ValueError that says why it does not come."""
    try:
        dataset = load_dataset(name, split=split, **options)
        if dataset.info.builder_name == "csv":  # whose cells would be guessed to be numbers or nothing
            columns = dataset.column_names or next(iter(dataset))
            text = Features(dict.fromkeys(columns, Value("string")))
            dataset = load_dataset(name, split=split, features=text, keep_default_na=False, **options)
        return dataset
    except (ValueError, RuntimeError, OSError, DatasetsError) as error:
        raise ValueError(
            f"{name}, split {split!r}: no such file or folder here, and the Hub does not give it ({reason(error)})"
        ) from error


def read_parquet(files: list[str], *, streaming: bool = False) -> Dataset | IterableDataset:
    """Load the rows of parquet files.

    Raises:
        ValueError: one cannot be read, or a column is text in one file and numbers in another.
    """
    names = [glob.escape(file) for file in files]
    try:
        # `datasets` would cast them to the first file's types, in silence: "007" would become 7
        pa.unify_schemas([pq.read_schema(file) for file in files], promote_options="permissive")
        with _quiet():
            return load_dataset("parquet", data_files={"data": names}, split="data", streaming=streaming)
    except (ValueError, OSError, DatasetsError, pa.ArrowException) as error:
        raise ValueError(f"{', '.join(files)}: could not be read as parquet ({reason(error)})") from error


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

    Raises:
        ValueError: As the function raises it.
    """
    options = {"files": files, "stamps": _stamps(files), **options}
    builder = Tables(read=read, options=options, features=features)
    if streaming:
        return builder.as_streaming_dataset("data")
    try:
        return _load(builder)
    except DatasetsError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ValueError):
            cause = cause.__cause__
        raise cause or error from error


def _stamps(files: list[str] | dict[str, str]) -> dict[str, Any]:
    """What tells files from others of these names, in a cache: a changed file is read again."""
    paths = files.values() if isinstance(files, dict) else files
    return {path: (os.path.getsize(path), os.stat(path).st_mtime_ns) for path in paths}  # a list would mean shards


def _load(builder: Tables) -> Dataset:
    with _quiet():
        builder.download_and_prepare()
    return builder.as_dataset("data")


def take_slice(dataset: Dataset, split: str) -> Dataset:
    """Rows of the slice in `split`, such as "train[:90%]", counted as `datasets` does it."""
    name = split_name(split)
    try:
        # a name of its own, because names such as "test-2016" are none for `datasets`
        part = ReadInstruction.from_spec(f"data{split.removeprefix(name)}").to_absolute({"data": len(dataset)})[0]
    except (ValueError, AssertionError) as error:
        raise ValueError(
            f"split {split!r}: no such part of {len(dataset)} rows; write it like {name}[:1000] or {name}[90%:]"
        ) from error
    rows = range(part.from_ or 0, len(dataset) if part.to is None else part.to)
    if not rows:
        raise ValueError(f"split {split!r}: this part of {len(dataset)} rows is empty; choose a bigger one")
    return dataset.select(rows)


def reason(error: BaseException) -> str:
    """Say in one line what an exception means that `datasets` has wrapped in others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return describe_error(error)


@contextmanager
def _quiet() -> Iterator[None]:
    # `datasets` logs what it then raises, and our own line is to be the only one
    verbosity = datasets_logging.get_verbosity()
    datasets_logging.set_verbosity(datasets_logging.CRITICAL)
    try:
        yield
    finally:
        datasets_logging.set_verbosity(verbosity)
