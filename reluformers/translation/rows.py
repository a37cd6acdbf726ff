"""Sentence pairs of JSON, CSV and TSV files, to the letter: no cell is guessed to be a number, a date or nothing.

The readers of `datasets` guess the type of a column from blocks of its cells, also where they are told one, and give
`7` for `007` and a point in time for `2024-05-01`.
"""

import csv
import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from reluformers.files import check_text, iterate_lines


def row_pairs(
    files: list[str],
    translation_column: str,
    languages: tuple[str, str],
    document_column: str | None = None,
    stamps: dict | None = None,
) -> Iterator[dict[str, str]]:
    """Read files of rows; see `load_translation_split`.

    Args:
        files: .json, .jsonl, .csv or .tsv, also .gz.
        translation_column: key of the dicts of both sentences, if rows have one.
        languages: keys or columns of the source and of the target.
        document_column: key or column of document ids.
        stamps: what else tells these files from others of that name, for caches.

    Yields:
        "source", "target" and, if asked for, "document", all str; of dicts that list their languages those with both.

    Raises:
        ValueError: a row cannot be read, or a sentence of it is no text; names file, row and column.
    """
    columns = dict(zip(("source", "target"), languages, strict=True))
    for path in files:
        for number, row in enumerate(read_rows(path), start=1):
            place = f"{path}, row {number}"
            sentences = row.get(translation_column, row)
            if not isinstance(sentences, dict):
                raise ValueError(f"{place}: {translation_column!r} holds {sentences!r:.60}, not a dict of sentences")
            if sentences is not row and isinstance(sentences.get("language"), list):
                sentences = dict(zip(sentences["language"], sentences["translation"], strict=True))
                if not all(sentences.get(language) for language in languages):
                    continue
            if missing := [language for language in languages if language not in sentences]:
                raise ValueError(f"{place}: lacks {missing[0]!r}; found {', '.join(map(repr, sentences))}")
            pair = {side: check_text(sentences[language], language, place) for side, language in columns.items()}
            if document_column is not None:
                document = row.get(document_column)
                document = str(document) if type(document) is int else document
                pair["document"] = check_text(document, document_column, place)
            yield pair


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Rows of a .json, .jsonl, .csv or .tsv file, also .gz; cells of the latter two are text.

    Raises:
        ValueError: one cannot be read; names file and line.
    """
    name = path.removesuffix(".gz")
    if not name.endswith((".csv", ".tsv")):
        yield from _json_rows(path)
        return
    lines = iterate_lines(path, keep_ends=name.endswith(".csv"))
    reader = csv.reader(lines, strict=True)
    # in .tsv files quotation marks are ordinary characters
    tabs = ((number, line.split("\t")) for number, line in enumerate(lines, start=1) if line)
    records = tabs if name.endswith(".tsv") else ((reader.line_num, fields) for fields in reader if fields)
    header: list[str] = []
    try:
        for number, fields in records:
            if not header:
                header = fields
            elif len(fields) != len(header) or len(set(header)) < len(header):
                raise ValueError(f"{path}, line {number}: {len(fields)} fields for the columns {header}")
            else:
                yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _json_rows(path: str) -> Iterator[dict[str, Any]]:
    """One object per line, or one array of them."""
    lines = ((number, line) for number, line in enumerate(iterate_lines(path), start=1) if line.strip())
    number, first = next(lines, (1, ""))
    if first.lstrip().startswith("["):
        lines = iter([(number, "\n".join([first, *(line for _, line in lines)]))])
    elif first:
        lines = chain([(number, first)], lines)
    for number, line in lines:
        try:
            content = json.loads(line)
        except ValueError as error:  # too many digits of a number too
            raise ValueError(f"{path}, line {number}: not JSON ({error}); write one object per line") from error
        for row in content if isinstance(content, list) else [content]:
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: not a JSON object; write one object per line")
            yield row
