"""Files of sentence pairs, read as a stream and written again with a score."""

import argparse
import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from reluformers.evaluation.alignments import MAX_TOKENS
from reluformers.files import atomic_write, check_text, iterate_lines
from reluformers.translation.rows import read_rows

_SLICE = re.compile(r"(?P<path>.+)\[(?P<start>\d*):(?P<stop>\d*)\]")
_KEYS = ("source", "target")


class ParallelRow(NamedTuple):
    """One pair.

    Args:
        source, target: texts; tokens of a list are joined by blanks.
        values: of a file of rows all that the row has, else empty.
        place: file and line, for errors.
    """

    source: str
    target: str
    values: dict[str, Any]
    place: str

    @property
    def texts(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target


class ParallelText:
    """Sentence pairs of a .jsonl or .tsv file, or of two plain text files with a sentence per line; also .gz.

    Rows of JSON hold both sentences in a dict under `translation`, keyed by language, or under two keys of their own;
    the first line of a .tsv file names its columns, and quotation marks are ordinary characters in it. A file of rows
    may have a slice behind its name: `rows.jsonl[:100]` are the first hundred.

    Args:
        paths: one file of rows, or two of plain text.
        source_lang, target_lang: keys or columns of the sentences in a file of rows.
        known: keys for those that are None, where a row has both; else they are "source" and "target".

    Raises:
        ValueError: there are more than two files, or two slices.
    """

    def __init__(
        self,
        paths: Sequence[str],
        source_lang: str | None = None,
        target_lang: str | None = None,
        known: Sequence[str | None] = _KEYS,
    ):
        if len(paths) not in (1, 2):
            raise ValueError(f"{len(paths)} data files: give one of rows, or two of plain text, source and target")
        slices = [split_slice(path) for path in paths]
        self.paths = [path for path, _ in slices]
        self.rows = slices[0][1]
        if any(rows != self.rows for _, rows in slices):
            raise ValueError(f"{' and '.join(paths)}: the two have different slices")
        self.keys, self.known = (source_lang, target_lang), known
        self.is_text = len(paths) == 2

    def __str__(self) -> str:
        return " and ".join(self.paths)

    def __iter__(self) -> Iterator[ParallelRow]:
        """Yield the rows."""
        read = self._text_rows if self.is_text else self._file_rows
        return islice(read(), self.rows.start, self.rows.stop)

    def _file_rows(self) -> Iterator[ParallelRow]:
        path = self.paths[0]
        for number, values in enumerate(read_rows(path), start=1):
            place = f"{path}, row {number}"
            sentences = values.get("translation", values)
            if not isinstance(sentences, dict):
                raise ValueError(f"{place}: 'translation' is {sentences!r}, but must be an object with two sentences")
            usual = self.known if set(self.known) <= sentences.keys() else _KEYS
            keys = (given or key for given, key in zip(self.keys, usual, strict=True))
            yield ParallelRow(*(_sentence(sentences, key, place) for key in keys), values, place)

    def _text_rows(self) -> Iterator[ParallelRow]:
        sides = [iterate_lines(path) for path in self.paths]
        for number, lines in enumerate(zip_longest(*sides), start=1):
            if None in lines:
                raise ValueError(f"{self.paths[lines.index(None)]}: ends before line {number} of the other file")
            yield ParallelRow(*lines, {}, f"{self}, line {number}")

    def check_outputs(self, outputs: Sequence[str]) -> None:
        """Refuse output files that rows with a score are not written to."""
        if self.is_text:
            if len(outputs) != 3:
                raise ValueError(f"{len(outputs)} output files: two of text need three, source, target and score")
        elif len(outputs) != 1 or not outputs[0].removesuffix(".gz").endswith(".jsonl"):
            raise ValueError(f"{' and '.join(outputs)}: a file of rows needs one .jsonl or .jsonl.gz")

    def write(self, outputs: Sequence[str], name: str, rows: Iterable[tuple[ParallelRow, float]]) -> int:
        """Write rows with a score, whole files or none.

        Args:
            outputs: as `check_outputs` has them.
            name: of the score, a key.
            rows: of this text, each with its score.

        Returns:
            Number of rows.
        """
        count = 0
        with ExitStack() as stack:
            files = [stack.enter_context(_open_to_write(stack.enter_context(atomic_write(path)))) for path in outputs]
            for row, score in rows:
                count += 1
                of_file = [json.dumps({**row.values, name: score}, ensure_ascii=False)]
                for file, line in zip(files, [*row.texts, score] if self.is_text else of_file, strict=True):
                    file.write(f"{line}\n")
        return count


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what commands that read sentence pairs by a model share."""
    parser.add_argument("model", help="folder or Hub id of a saved model")
    parser.add_argument("data", nargs="+", help="file of rows, or two plain text files, source and target")
    for side in ("source", "target"):
        text = f"key or column of the {side} sentences; without it, the model's language or {side}"
        parser.add_argument(f"--{side}_lang", help=text)
    parser.add_argument("--max_tokens", type=int, default=MAX_TOKENS, help="most tokens in a batch, with padding")
    parser.add_argument("--trust_remote_code", action="store_true", help="run the model code of the repository")


def split_slice(name: str) -> tuple[str, slice]:
    """A path and the rows of it that are meant, all if its name has no slice behind it."""
    match = _SLICE.fullmatch(name)
    if match is None or Path(name).exists():
        return str(Path(os.path.expanduser(name))), slice(0, None)
    start, stop = (int(match[side]) if match[side] else None for side in ("start", "stop"))
    return str(Path(os.path.expanduser(match["path"]))), slice(start or 0, stop)


def _sentence(sentences: dict[str, Any], key: str, place: str) -> str:
    text = sentences.get(key)
    if isinstance(text, list):
        for word in text:
            if not isinstance(word, str) or len(word.split()) != 1:
                raise ValueError(f"{place}: {key!r} holds {word!r}, which is not one word")
        text = " ".join(text)
    if key not in sentences:
        raise ValueError(f"{place}: {key!r} holds no sentence; found {', '.join(map(repr, sentences))}")
    return check_text(text, key, place)


def _open_to_write(path: Path) -> TextIO:
    # the ending of the path that is written to is that of the file
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8", newline="\n")
    return path.open("w", encoding="utf-8", newline="\n")
