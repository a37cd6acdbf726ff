"""Sentence pairs of JSON, CSV and TSV files, to the letter: no cell is guessed to be a number, a date or nothing.

The readers of `datasets` guess the type of a column from blocks of its cells, also where they are told one, and give
`7` for `007` and a point in time for `2024-05-01`.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from reluformers.files import check_sentence, iterate_lines


@dataclass
class PairColumns:
    """Where the sentences of a row are.

    Args:
        source_lang: language to translate from, such as en: key of the source sentences, or their column.
        target_lang: language to translate to, such as de.
        translation_column: column with a dict of both languages, if there is one.
        document_column: column with the document's id, for document_tokens.
    """

    source_lang: str | None = None
    target_lang: str | None = None
    translation_column: str = "translation"
    document_column: str | None = None


def row_pairs(files: list[str], columns: PairColumns, stamps: dict | None = None) -> Iterator[dict[str, str]]:
    """Read files of rows; see `load_translation_split`.

    Args:
        files: .json, .jsonl, .csv or .tsv, also .gz.
        columns: where the sentences are.
        stamps: what else tells these files from others of that name, for caches.

    Yields:
        "source", "target" and, if asked for, "document", all str.

    Raises:
        ValueError: a row cannot be read, or a sentence of it is no text; names file, row and column.
    """
    keys = {"source": columns.source_lang, "target": columns.target_lang}
    for path in files:
        for number, row in enumerate(read_rows(path), start=1):
            row_name = f"{path}, row {number}"
            pair = {side: read_text(row, key, row_name, columns.translation_column) for side, key in keys.items()}
            if columns.document_column is not None:
                document = _cell(row, columns.document_column, row_name)
                document = str(document) if type(document) is int else document
                pair["document"] = check_sentence(document, columns.document_column, row_name)
            yield pair


def read_text(row: dict[str, Any], key: str, row_name: str, translation_column: str = "translation") -> str:
    """The text of a row under a key, there or in its dict of sentences; a ValueError that names the row if none."""
    sentences = row[translation_column] if isinstance(row.get(translation_column), dict) else row
    return check_sentence(_cell(sentences, key, row_name), key, row_name)


def _cell(row: dict[str, Any], name: str, row_name: str) -> Any:
    if name not in row:
        raise ValueError(f"{row_name}: there is no {name!r}, but {list(row)!r:.200}")
    return row[name]


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Rows of a .json, .jsonl, .csv or .tsv file, also .gz; cells of the latter two are text.

    Raises:
        ValueError: one cannot be read; names file and line.
    """
    name = path.removesuffix(".gz")
    if not name.endswith((".csv", ".tsv")):
        yield from _json_rows(path)
        return
    # In .tsv files quotation marks are ordinary characters.
    form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if name.endswith(".tsv") else {"strict": True}
    reader = csv.reader(iterate_lines(path, keep_ends=name.endswith(".csv")), **form)
    records = filter(None, reader)
    try:
        header = next(records, [])
        for fields in records:
            if len(fields) != len(header) or len(set(header)) < len(header):
                raise ValueError(f"{path}, line {reader.line_num}: {len(fields)} fields for the columns {header}")
            yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not a table ({error})") from error


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
        except ValueError as error:  # A number of too many digits is a ValueError too.
            raise ValueError(f"{path}, line {number}: not JSON ({error}); write one object per line") from error
        for row in content if isinstance(content, list) else [content]:
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: not a JSON object; write one object per line")
            yield row
