"""Sentence pairs from the Hub or from local files."""

import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, Features, IterableDataset, Value

from reluformers.data.sources import (
    name_in_errors,
    read_hub,
    read_parquet,
    read_with,
    split_name,
    take_options,
    take_slice,
    take_split,
)
from reluformers.files import iterate_lines

from .rows import PairColumns, row_pairs
from .tokenized_rows import PairStream

if TYPE_CHECKING:
    from .recipe import TranslationDataSection

FORMATS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
_PAIRS = {"source": Value("string"), "target": Value("string")}
LayOut = Callable[[Dataset], Dataset]


def load_translation_split(source: str | os.PathLike | list | dict, split: str, columns: PairColumns) -> Dataset:
    """Load one split of a translation corpus.

    Rows hold both sentences either in a dict under `translation_column`, keyed by language, or in two columns
    named like the languages. Formats of local files: .jsonl, .json, .csv and .tsv (UTF-8, also .gz), .parquet, and
    pairs of plain text files with a sentence per line. In .tsv files quotation marks are ordinary characters. A
    sentence is text to the letter, be it `007` or `NA`; JSON that is no string is refused.

    Args:
        source: One of
            a Hub id, such as "wmt14";
            a folder with a file for each split, `<split>.jsonl.gz` or the like, or `<split>.de` and `<split>.en`;
            files, read whatever the name of the split: a path, a list of paths, or {"source": path, "target": path}
            for a pair of plain text files;
            {split: files, ...};
            {"path": Hub id or folder, "name": configuration, "revision": ...}, the last two as far as needed.
        split: Name of the split, perhaps with a slice: "train" or "train[:1000]".
        columns: Where the sentences are; document ids are kept under the name "document".

    Returns:
        Rows with "source" and "target", both str, and "document" if asked for.

    Raises:
        ValueError: If files, columns, languages or, but in Parquet, sentences are missing or unreadable.
    """
    rows, lay_out = open_translation_split(source, split, columns)
    return lay_out(rows)


def load_splits(data: "TranslationDataSection") -> dict[str, Dataset | PairStream]:
    """Read the splits that a recipe names: `train`, which may be a stream, `validation` and perhaps `test`.

    Raises:
        ValueError: the recipe does not say where they are, they cannot be read, or share rows with the training set.
    """
    splits = data.read(partial(_load_split, data))
    if data.held_out is not None:
        splits["train"], splits["validation"] = hold_out(splits["train"], data.held_out, data.held_out_seed or 0)
    return splits


def hold_out(rows: Dataset, count: int, seed: int) -> tuple[Dataset, Dataset]:
    """Draw `count` pairs out of a training set to evaluate on, none with an empty side.

    Returns:
        The rows whose source is not among those taken, and those taken, both in their order.
    """
    sources = rows["source"][:]
    whole = [row for row, pair in enumerate(zip(sources, rows["target"], strict=True)) if all(map(str.strip, pair))]
    drawn = np.random.default_rng(seed).permutation(whole)[:count]
    taken = {sources[row] for row in drawn}
    left = [row for row, source in enumerate(sources) if source not in taken]
    return rows.select(left), rows.select(sorted(drawn))


def _load_split(data: "TranslationDataSection", name: str, source: Any, split: str) -> Dataset | PairStream:
    is_stream = data.streaming and name == "train"
    rows, lay_out = open_translation_split(source, split, data, is_stream)
    if is_stream:
        return PairStream(rows, lay_out, data.buffer_rows)
    return lay_out(rows)


def open_translation_split(
    source: str | os.PathLike | list | dict, split: str, columns: PairColumns, streaming: bool = False
) -> tuple[Dataset | IterableDataset, LayOut]:
    """Open one split as `load_translation_split` does, or as a stream, without reading it.

    Returns:
        Rows as they lie in the files, each file of a stream a shard, and what makes of some of them rows with "source"
        and "target".
    """
    if streaming and split != split_name(split):
        raise ValueError(f"split {split!r}: a stream has no slices; name whole splits or files")
    location, options = _resolve(source, split, (columns.source_lang, columns.target_lang))
    files = location.values() if isinstance(location, dict) else location
    data_name = location if isinstance(location, str) else ", ".join(files)
    is_read = not isinstance(location, str) and _format(data_name) != ".parquet"
    # The rows follow from these fields alone, so other settings of a recipe do not change the cache's key.
    columns = PairColumns(**{item.name: getattr(columns, item.name) for item in fields(PairColumns)})
    features = _PAIRS | ({"document": Value("string")} if columns.document_column else {})
    given = {"files": location, "features": Features(features), "streaming": streaming}
    with name_in_errors(data_name):
        if isinstance(location, str):
            rows = read_hub(location, split, {**options, "streaming": True} if streaming else options)
        elif not is_read:
            rows = read_parquet(location, streaming=streaming)
        elif isinstance(location, dict):
            rows = read_with(_text_pairs, **given)
        else:
            rows = read_with(row_pairs, columns=columns, **given)
        if not streaming and not isinstance(location, str):
            rows = take_slice(rows, split)

    def lay_out(rows: Dataset) -> Dataset:
        with name_in_errors(data_name):
            return rows if is_read else _find_columns(rows, columns)

    return rows, lay_out


def _resolve(
    source: str | os.PathLike | list | dict, split: str, languages: tuple[str, str]
) -> tuple[str | list[str] | dict[str, str], dict[str, Any]]:
    """Find a Hub id with options, a list of files of rows, or a pair of text files {"source", "target"}."""
    # A language is None if neither a recipe nor a model's folder names it.
    if None in languages or languages[0] == languages[1]:
        raise ValueError(f"source_lang and target_lang are {languages}; name two languages")
    source, options = take_options(source)
    name = split_name(split)
    if isinstance(source, dict) and set(source) != {"source", "target"}:
        source = take_split(source, name)
    if isinstance(source, list | dict):
        return _check_files(source), options
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        return _files_in_folder(path, name, languages), options
    looks_local = _format(path) in FORMATS or str(source).startswith((".", "/", "~"))
    return (_check_files([path]) if path.exists() or looks_local else str(source)), options


def _format(path: str | os.PathLike) -> str:
    return Path(os.fspath(path).removesuffix(".gz")).suffix


def _check_files(files: list | dict) -> list[str] | dict[str, str]:
    """The paths of a split's files; a `ValueError` where a pair of text files is one."""
    if not isinstance(files, dict) or set(files) != {"source", "target"}:
        return list(map(os.path.expanduser, files))
    files = {side: os.path.expanduser(path) for side, path in files.items()}
    if os.path.samefile(files["source"], files["target"]):
        raise ValueError(f"{files['target']}: is the file of both source and target; name two")
    return files


def _files_in_folder(folder: Path, name: str, languages: tuple[str, str]) -> list[str] | dict[str, str]:
    names = [f"{name}{kind}{ending}" for kind in FORMATS for ending in ("", ".gz")]
    rows = [[folder / one] for one in names if (folder / one).is_file()]
    sides = [[folder / f"{name}.{language}{ending}" for language in languages] for ending in ("", ".gz")]
    texts = [dict(zip(("source", "target"), pair, strict=True)) for pair in sides if all(map(Path.is_file, pair))]
    if len(rows) > 1 or not (rows or texts):
        raise ValueError(f"{folder}: has no files, or several, for split {name!r}, such as {names[0]}")
    return _check_files((rows or texts)[0])


def _text_pairs(files: dict[str, str], stamps: dict) -> Iterator[dict[str, str]]:
    pairs = zip_longest(iterate_lines(files["source"]), iterate_lines(files["target"]))
    for number, (source, target) in enumerate(pairs, start=1):
        if source is None or target is None:
            shorter, longer = ("source", "target") if source is None else ("target", "source")
            raise ValueError(
                f"{files[shorter]} ends before line {number} of {files[longer]}, which must be its translation"
            )
        yield {"source": source, "target": target}


def _find_columns(dataset: Dataset, columns: PairColumns) -> Dataset:
    """Lay the sentences into columns "source", "target" and, if asked for, "document"."""
    kept = [] if columns.document_column is None else [columns.document_column]
    sides = [columns.source_lang, columns.target_lang]
    outer = columns.translation_column
    if outer in dataset.column_names:
        dataset = dataset.select_columns([outer, *kept]).flatten()
        sides = [f"{outer}.{side}" for side in sides]
    names = [*sides, *kept]
    return dataset.select_columns(names).rename_columns(
        dict(zip(names, ["source", "target", "document"], strict=False))
    )
