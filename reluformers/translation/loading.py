"""Sentence pairs from the Hub or from local files, checked before anything is trained on them."""

import os
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from datasets import Dataset, Features, IterableDataset, List, TranslationVariableLanguages, Value

from reluformers.data.sources import (
    check_file,
    find_value,
    names_in,
    read_hub,
    read_parquet,
    read_with,
    split_name,
    take_options,
    take_slice,
    take_split,
)
from reluformers.files import iterate_lines

from .rows import ADVICE, row_pairs
from .tokenization import ROWS_PER_BLOCK

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}
_PAIRS = Features({"source": Value("string"), "target": Value("string")})


def load_translation_split(
    source: str | os.PathLike | list | dict,
    split: str,
    *,
    source_lang: str,
    target_lang: str,
    translation_column: str = "translation",
    document_column: str | None = None,
) -> Dataset:
    """Load one split of a translation corpus.

    Rows hold both sentences either in a dict under `translation_column`, keyed by language, or in two columns
    named like the languages; of a dict with the lists "language" and "translation" the rows with both languages
    are taken. Formats of local files: .jsonl, .json, .csv and .tsv (UTF-8, also .gz), .parquet, and pairs of plain
    text files with a sentence per line. In .tsv files quotation marks are ordinary characters. A sentence is text to
    the letter, be it `007` or `NA`; JSON that is no string is refused.

    Args:
        source: One of
            a Hub id, such as "wmt14";
            a folder with a file for each split, `<split>.jsonl.gz` or the like, or `<split>.de` and `<split>.en`;
            files, read whatever the name of the split: a path, a list of paths, or {"source": path, "target": path}
            for a pair of plain text files;
            {split: files, ...};
            {"path": Hub id or folder, "name": configuration, "revision": ...}, the last two as far as needed.
        split: Name of the split, perhaps with a slice: "train" or "train[:1000]".
        source_lang: Key or column of the source sentences, such as "de".
        target_lang: Key or column of the target sentences.
        translation_column: Column of the dicts.
        document_column: Column of document ids, to be kept under the name "document".

    Returns:
        Rows with "source" and "target", both str, and "document" if asked for.

    Raises:
        ValueError: If files, columns, languages or sentences are missing or unreadable; names file and row.
    """
    languages = (source_lang, target_lang)
    location, options = _resolve(source, split, languages)
    place = f"{_describe(location)}, split {split!r}"
    if isinstance(location, dict):
        if document_column is not None:
            raise ValueError(f"{place}: plain text has no document ids; use a .jsonl file with them")
        dataset = _read_parallel_text(location, split)
    elif isinstance(location, list) and _kind(location) != "parquet":
        columns = {"translation_column": translation_column, "document_column": document_column}
        dataset = take_slice(read_with(row_pairs, files=location, languages=languages, **columns), split)
    else:
        if isinstance(location, list):
            dataset = take_slice(read_parquet(location), split)
        else:
            dataset = read_hub(location, split, options)
        dataset, names = _find_columns(dataset, place, translation_column, languages, document_column)
        dataset = dataset.select_columns(list(names)).rename_columns(names)
    _check_sentences(dataset, place, languages)
    return dataset


def stream_translation_split(
    source: str | os.PathLike | list | dict,
    split: str,
    *,
    source_lang: str,
    target_lang: str,
    translation_column: str = "translation",
) -> tuple[IterableDataset, Callable[[Dataset], Dataset]]:
    """Open one split of a translation corpus without reading it; see `load_translation_split`.

    Args:
        source, split, source_lang, target_lang, translation_column: as there, but for slices of a split.

    Returns:
        Rows as they lie in the files, each file of them a shard, and what makes of some of them rows with "source" and
        "target", both str; it raises ValueError for rows without them.

    Raises:
        ValueError: If files are missing, or a slice of the split is asked for.
    """
    languages = (source_lang, target_lang)
    if split != split_name(split):
        raise ValueError(f"split {split!r}: a stream has no slices; name whole splits or files")
    location, options = _resolve(source, split, languages)
    place = f"{_describe(location)}, split {split!r}"
    if isinstance(location, dict):
        return read_with(_pairs, files=location, features=_PAIRS), lambda rows: rows
    if isinstance(location, list) and _kind(location) != "parquet":
        columns = {"translation_column": translation_column, "languages": languages}
        return read_with(row_pairs, files=location, features=_PAIRS, **columns), lambda rows: rows
    if isinstance(location, list):
        dataset = read_parquet(location, streaming=True)
    else:
        dataset = read_hub(location, split, {**options, "streaming": True})

    def lay_out(rows: Dataset) -> Dataset:
        rows, names = _find_columns(rows, place, translation_column, languages, None)
        rows = rows.select_columns(list(names)).rename_columns(names)
        _check_sentences(rows, place, languages)
        return rows

    return dataset, lay_out


def _resolve(
    source: str | os.PathLike | list | dict, split: str, languages: tuple[str, str]
) -> tuple[str | list[str] | dict[str, str], dict[str, Any]]:
    """Find a Hub id with options, a list of files of rows, or a pair of text files {"source", "target"}."""
    if languages[0] == languages[1]:
        raise ValueError(f"source_lang and target_lang are both {languages[0]!r}; name two languages")
    source, options = take_options(source)
    name = split_name(split)
    if isinstance(source, list) or (isinstance(source, dict) and set(source) == {"source", "target"}):
        return _check_files(source), options
    if isinstance(source, dict):
        return _check_files(take_split(source, name)), options
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        return _files_in_folder(path, name, languages), options
    looks_local = _format(path.name) is not None or str(source).startswith((".", "/", "~"))
    return (_check_files(str(path)) if path.exists() or looks_local else str(source)), options


def _format(name: str) -> str | None:
    return FORMATS.get(Path(name.removesuffix(".gz")).suffix)


def _check_files(files: str | os.PathLike | list | dict) -> list[str] | dict[str, str]:
    """Bring the files of a split to one form and check that they are there and hold something."""
    if isinstance(files, dict):
        if set(files) != {"source", "target"}:
            raise ValueError(f"a pair of text files needs the keys 'source' and 'target', got {', '.join(files)}")
        files = {side: check_file(path) for side, path in files.items()}
        if os.path.samefile(*files.values()):
            raise ValueError(f"{files['target']}: is the file of both source and target; name two")
        return files
    checked = [check_file(path) for path in (files if isinstance(files, list) else [files])]
    for path in checked:
        if _format(path) is None:
            raise ValueError(
                f"{path}: unknown kind of file; allowed are {', '.join(FORMATS)}, or two text files given as source: "
                "and target:"
            )
    return checked


def _files_in_folder(folder: Path, name: str, languages: tuple[str, str]) -> list[str] | dict[str, str]:
    found = sorted(path for path in folder.glob(f"{name}.*") if _format(path.name) and _stem(path) == name)
    if len(found) > 1:
        raise ValueError(f"{folder}: several files for split {name!r} ({', '.join(p.name for p in found)}); name one")
    if found:
        return _check_files(str(found[0]))
    for ending in ("", ".gz"):
        pair = [folder / f"{name}.{language}{ending}" for language in languages]
        if all(path.is_file() for path in pair):
            return _check_files(dict(zip(("source", "target"), pair, strict=True)))
    raise ValueError(
        f"{folder}: no file {name} ({', '.join(FORMATS)}, also .gz), nor {name}.{languages[0]} and "
        f"{name}.{languages[1]}; there is {names_in(folder)}"
    )


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem


def _describe(location: str | list[str] | dict[str, str]) -> str:
    if isinstance(location, dict):
        return " and ".join(location.values())
    return location if isinstance(location, str) else ", ".join(location)


def _kind(files: list[str]) -> str:
    """Name the kind of files of rows."""
    kinds = {_format(path) for path in files}
    if len(kinds) > 1:
        raise ValueError(f"{_describe(files)}: different kinds of files in one split; use one kind")
    return kinds.pop()


def _read_parallel_text(files: dict[str, str], split: str) -> Dataset:
    counts = {side: sum(1 for _ in iterate_lines(path)) for side, path in files.items()}
    if counts["source"] != counts["target"]:
        raise ValueError(
            f"{files['source']} has {counts['source']} lines, but {files['target']} has {counts['target']}; "
            "line n of the one must be the translation of line n of the other"
        )
    return take_slice(read_with(_pairs, files=files), split)


def _pairs(files: dict[str, str], stamps: dict) -> Iterator[dict[str, str]]:
    for number, pair in enumerate(zip_longest(*map(iterate_lines, (files["source"], files["target"]))), start=1):
        if None in pair:  # in a stream, whose lines nobody has counted
            shorter, longer = (files["source"], files["target"])[:: 1 if pair[0] is None else -1]
            raise ValueError(f"{shorter} ends before line {number} of {longer}, which must be its translation")
        yield dict(zip(("source", "target"), pair, strict=True))


def _find_columns(
    dataset: Dataset, place: str, translation_column: str, languages: tuple[str, str], document_column: str | None
) -> tuple[Dataset, dict[str, str]]:
    """Lay the sentences into columns and say which become "source", "target" and "document"."""
    found = ", ".join(map(repr, dataset.column_names))
    wanted = [] if document_column is None else [document_column]
    if document_column is not None and document_column not in dataset.column_names:
        raise ValueError(f"{place}: no column {document_column!r} of document ids; found {found}")
    if _lists_languages(dataset.features.get(translation_column)):
        dataset = _pick_languages(dataset, place, translation_column, languages, wanted)
    if translation_column in dataset.column_names:
        dataset = dataset.select_columns([translation_column, *wanted]).flatten()
        prefix = f"{translation_column}."
        keys = [column.removeprefix(prefix) for column in dataset.column_names if column.startswith(prefix)]
        if not keys:
            _fail_on_translation(dataset, place, translation_column, languages)
        for language in languages:
            if language not in keys:
                raise ValueError(
                    f"{place}: no language {language!r} in column {translation_column!r}; "
                    f"found {', '.join(map(repr, keys))}"
                )
        names = [prefix + language for language in languages]
    else:
        names = list(languages)
        if any(name not in dataset.column_names for name in names):
            raise ValueError(
                f"{place}: neither a column {translation_column!r} nor columns {names[0]!r} and {names[1]!r}; "
                f"found {found}; set the languages to two of the columns"
            )
    return dataset, dict(zip([*names, *wanted], ["source", "target", "document"], strict=False))


def _lists_languages(feature: Any) -> bool:
    """Whether rows are {"language": […], "translation": […]}: any number of languages, as `datasets` has them."""
    if isinstance(feature, TranslationVariableLanguages):
        return True
    return isinstance(feature, dict) and all(isinstance(feature.get(key), List) for key in ("language", "translation"))


def _pick_languages(dataset: Dataset, place: str, column: str, languages: tuple[str, str], kept: list[str]) -> Dataset:
    """Two languages as columns, of the rows that have both."""

    def pick(batch: dict[str, list]) -> dict[str, list]:
        cells = [dict(zip(cell["language"], cell["translation"], strict=True)) for cell in batch[column]]
        rows = [row for row, cell in enumerate(cells) if all(cell.get(language) for language in languages)]
        picked = {language: [cells[row][language] for row in rows] for language in languages}
        return picked | {name: [batch[name][row] for row in rows] for name in kept}

    picked = dataset.select_columns([column, *kept]).map(pick, batched=True, remove_columns=[column])
    if not len(picked):
        raise ValueError(f"{place}: no row of {column!r} has both {languages[0]!r} and {languages[1]!r}")
    return picked


def _fail_on_translation(dataset: Dataset, place: str, column: str, languages: tuple[str, str]) -> NoReturn:
    """Name the first row because of which a column of dicts has no common keys."""

    def is_wrong(value: Any) -> bool:
        return not isinstance(value, dict) or any(language not in value for language in languages)

    row, shown = find_value(dataset, column, place, is_wrong, "dicts of sentences")
    value = dataset[row - 1][column]
    if not isinstance(value, dict):
        raise ValueError(f"{place}, row {row}: {column!r} holds {shown}, not a dict of sentences")
    missing = next(language for language in languages if language not in value)
    raise ValueError(f"{place}, row {row}: {column!r} lacks the key {missing!r} in {shown}; correct or remove the row")


def _check_sentences(dataset: Dataset, place: str, languages: tuple[str, str]) -> None:
    """Check that every source and target is text."""
    if not len(dataset):
        raise ValueError(f"{place}: there are no rows; check the file and the split")
    for column, language in zip(("source", "target"), languages, strict=True):
        if not _is_text(dataset, column):
            row, value = find_value(dataset, column, place, lambda value: not isinstance(value, str), "sentences")
            raise ValueError(f"{place}, row {row}: {language!r} holds {value}, not a sentence; {ADVICE}")


def _is_text(dataset: Dataset, column: str) -> bool:
    if getattr(dataset.features[column], "dtype", None) not in ("string", "large_string"):
        return False
    for block in dataset.select_columns([column]).with_format("arrow").iter(batch_size=ROWS_PER_BLOCK):
        if block[column].null_count:
            return False
        try:
            block[column].validate(full=True)
        except pa.ArrowInvalid:  # bytes that are not UTF-8
            return False
    return True
