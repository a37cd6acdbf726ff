"""Sentence pairs of JSON, CSV and TSV files, to the letter: no cell is guessed to be a number, a date or nothing.

The readers of `datasets` guess the type of a column from blocks of its cells, also where they are told one, and give
`7` for `007` and a point in time for `2024-05-01`.
"""

import csv
import json
import textwrap
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from reluformers.files import check_text, iterate_lines

ADVICE = "correct or remove the row"


def row_pairs(
    files: list[str],
    translation_column: str,
    languages: tuple[str, str],
    document_column: str | None = None,
    stamps: dict | None = None,
) -> Iterator[dict[str, Any]]:
    """Read files of rows; see `load_translation_split`.

    Args:
        files: .json, .jsonl, .csv or .tsv, also .gz.
        translation_column: key of the dicts of both sentences, if rows have one.
        languages: keys or columns of the source and of the target.
        document_column: key or column of document ids, strings or integers.
        stamps: what else tells these files from others of that name, for caches.

    Yields:
        "source" and "target", both str, and "document" if asked for; of dicts that list their languages those with
        both.

    Raises:
        ValueError: a row cannot be read, or a cell of it is no text; names file, row and column.
    """
    pairs = incomplete = 0
    kind = None
    for path in files:
        for number, row in enumerate(read_rows(path), start=1):
            place = f"{path}, row {number}"
            sentences = _sentences(row, place, translation_column, languages)
            if sentences is None:
                incomplete += 1
                continue
            pairs += 1
            pair = {
                side: check_text(sentences[language], language, place)
                for side, language in zip(("source", "target"), languages, strict=True)
            }
            if document_column is not None:
                pair["document"] = _document(row, place, document_column, kind)
                kind = type(pair["document"])
            yield pair
    if incomplete and not pairs:
        raise ValueError(
            f"{', '.join(files)}: no row of {translation_column!r} has both {languages[0]!r} and {languages[1]!r}"
        )


def _sentences(
    row: dict[str, Any], place: str, translation_column: str, languages: tuple[str, str]
) -> dict[str, Any] | None:
    """What holds both sentences of a row; None if it lists languages without one of them."""
    sentences = row.get(translation_column, row)
    if not isinstance(sentences, dict):
        shown = textwrap.shorten(repr(sentences), 60)
        raise ValueError(f"{place}: {translation_column!r} holds {shown}, not a dict of sentences; {ADVICE}")
    names, texts = sentences.get("language"), sentences.get("translation")
    if sentences is not row and isinstance(names, list) and isinstance(texts, list):
        if len(names) != len(texts):
            raise ValueError(f"{place}: {len(names)} languages, but {len(texts)} translations; {ADVICE}")
        sentences = dict(zip(names, texts, strict=True))
        return sentences if all(sentences.get(language) for language in languages) else None
    for language in languages:
        if language not in sentences:
            found = ", ".join(map(repr, sentences)) or "nothing"
            where = "" if sentences is row else f" in {translation_column!r}"
            raise ValueError(
                f"{place}: lacks the key {language!r}{where}; found {found}; {ADVICE}, or set the languages "
                "to two of them"
            )
    return sentences


def _document(row: dict[str, Any], place: str, column: str, kind: type | None) -> str | int:
    if column not in row:
        raise ValueError(f"{place}: no column {column!r} of document ids; found {', '.join(map(repr, row))}")
    value = row[column]
    if type(value) not in (str, int) or kind not in (None, type(value)):
        shown = textwrap.shorten(repr(value), 60)
        allowed = {None: "a string or an integer", str: "a string", int: "an integer"}[kind]
        raise ValueError(f"{place}: {column!r} holds {shown}, but the id of a document must be {allowed}; {ADVICE}")
    return check_text(value, column, place) if isinstance(value, str) else value


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Rows of a .json, .jsonl, .csv or .tsv file, also .gz; cells of the latter two are text.

    Raises:
        ValueError: one cannot be read; names file and line.
    """
    name = path.removesuffix(".gz")
    return _csv_rows(path) if name.endswith(".csv") else (_tsv_rows if name.endswith(".tsv") else _json_rows)(path)


def _json_rows(path: str) -> Iterator[dict[str, Any]]:
    """One object per line, or one array of them."""
    lines = ((number, line) for number, line in enumerate(iterate_lines(path), start=1) if line.strip())
    first = next(lines, (1, ""))
    if first[1].lstrip().startswith("["):
        text = "\n".join(line for _, line in chain([first], lines))
        for number, row in enumerate(_parse(text, path, first[0]), start=1):
            yield _check_object(row, f"{path}, row {number}")
        return
    for number, line in chain([first] if first[1] else [], lines):
        yield _check_object(_parse(line, path, number), f"{path}, line {number}")


def _parse(text: str, path: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{path}, line {line + error.lineno - 1}, character {error.colno}"
        raise ValueError(f"{place}: not JSON ({error.msg}); write one object per line") from error
    except ValueError as error:  # of a number with too many digits
        raise ValueError(f"{path}, line {line}: {error}") from error


def _check_object(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"{place}: not a JSON object; write one object per line")
    return row


def _csv_rows(path: str) -> Iterator[dict[str, str]]:
    reader = csv.reader(iterate_lines(path, keep_ends=True), strict=True)
    try:
        yield from _name_fields(path, ((reader.line_num, fields) for fields in reader if fields))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV ({error}); correct the row") from error


def _tsv_rows(path: str) -> Iterator[dict[str, str]]:
    """Quotation marks are ordinary characters."""
    lines = enumerate(iterate_lines(path), start=1)
    return _name_fields(path, ((number, line.split("\t")) for number, line in lines if line))


def _name_fields(path: str, records: Iterable[tuple[int, list[str]]]) -> Iterator[dict[str, str]]:
    """Rows of the fields of numbered lines, of which the first is the header."""
    records = iter(records)
    _, header = next(records, (1, []))
    for name in header:
        if name and header.count(name) > 1:
            raise ValueError(f"{path}: the header has several columns {name!r}; give each a name of its own")
    for line, fields in records:
        if len(fields) != len(header):
            many = "more" if len(fields) > len(header) else "fewer"
            raise ValueError(
                f"{path}, line {line}: the row has {many} fields than the header, {len(fields)} for {len(header)}; "
                "in .csv files, quote sentences that hold a comma or a line break"
            )
        yield dict(zip(header, fields, strict=True))
