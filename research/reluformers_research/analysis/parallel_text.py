"""Files of sentence pairs, read as a stream and written again in their own format with a score."""

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from reluformers.files import atomic_write, check_text, iterate_lines
from reluformers.translation.languages import saved_languages
from reluformers.translation.rows import read_rows

KINDS = {".jsonl": "jsonl", ".tsv": "tsv"}
_SLICE = re.compile(r"(?P<path>.+)\[(?P<start>\d*):(?P<stop>\d*)\]")


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
        source_lang, target_lang: keys or columns of the sentences; of plain text they are not needed.

    Raises:
        ValueError: the file is of another kind, or there are more than two.
    """

    def __init__(self, paths: Sequence[str], source_lang: str = "source", target_lang: str = "target"):
        if len(paths) not in (1, 2):
            raise ValueError(f"{len(paths)} data files: give one of rows, or two of plain text, source and target")
        slices = [split_slice(path) for path in paths]
        self.paths = [path for path, _ in slices]
        self.rows = slices[0][1]
        if any(rows != self.rows for _, rows in slices):
            raise ValueError(f"{' and '.join(paths)}: the two have different slices")
        self.keys = source_lang, target_lang
        self.kind = "text" if len(paths) == 2 else kind_of(self.paths[0])

    def __str__(self) -> str:
        return " and ".join(self.paths)

    def __iter__(self) -> Iterator[ParallelRow]:
        """Yield the rows.

        Raises:
            ValueError: a row cannot be read, lacks a sentence, or the two files differ in their number of lines.
        """
        read = self._text_rows if self.kind == "text" else self._file_rows
        return islice(read(), self.rows.start, self.rows.stop)

    def _file_rows(self) -> Iterator[ParallelRow]:
        path = self.paths[0]
        for number, values in enumerate(read_rows(path), start=1):
            place = f"{path}, row {number}"
            sentences = values.get("translation", values)
            if not isinstance(sentences, dict):
                raise ValueError(f"{place}: 'translation' is {sentences!r}, but must be an object with two sentences")
            yield ParallelRow(*(_sentence(sentences, key, place) for key in self.keys), values, place)

    def _text_rows(self) -> Iterator[ParallelRow]:
        sides = [iterate_lines(path) for path in self.paths]
        for number, lines in enumerate(zip_longest(*sides), start=1):
            if None in lines:
                raise ValueError(f"{self.paths[lines.index(None)]}: ends before line {number} of the other file")
            yield ParallelRow(*lines, {}, f"{self}, line {number}")

    def check_outputs(self, outputs: Sequence[str]) -> None:
        """Refuse output files that rows with a score cannot be written to.

        Raises:
            ValueError: their number or kind is another one.
        """
        if len(outputs) != (3 if self.kind == "text" else 1):
            raise ValueError(f"{len(outputs)} output files: a file of rows needs one, two of text three")
        if self.kind != "text" and kind_of(outputs[0]) != self.kind:
            raise ValueError(f"{outputs[0]}: must be .{self.kind} or .{self.kind}.gz, as {self} is")

    def write(self, outputs: Sequence[str], name: str, rows: Iterable[tuple[ParallelRow, float]]) -> int:
        """Write rows with a score, whole files or none.

        Args:
            outputs: as `check_outputs` has them.
            name: of the score: a key, or the name of the last column.
            rows: of this text, each with its score.

        Returns:
            Number of rows.
        """
        count = 0
        with ExitStack() as stack:
            files = [stack.enter_context(_open_to_write(stack.enter_context(atomic_write(path)))) for path in outputs]
            if self.kind == "tsv":
                files[0].write(f"{next(iterate_lines(self.paths[0]))}\t{name}\n")
            for row, score in rows:
                count += 1
                for file, line in zip(files, self._lines(row, name, score), strict=True):
                    file.write(f"{line}\n")
        return count

    def _lines(self, row: ParallelRow, name: str, score: float) -> tuple[str, ...]:
        if self.kind == "jsonl":
            return (json.dumps({**row.values, name: score}, ensure_ascii=False),)
        return ("\t".join((*row.values.values(), str(score))),) if self.kind == "tsv" else (*row.texts, str(score))


def keys_for(model: str, path: str, source_lang: str | None, target_lang: str | None) -> tuple[str, str]:
    """Keys of the sentences in a file of rows: languages of a saved model, else "source" and "target".

    Args:
        model: folder or Hub id.
        path: of the file, whose first row is looked at.
        source_lang, target_lang: go before what is found.
    """
    given, known, first = (source_lang, target_lang), saved_languages(model), {}
    path = split_slice(path)[0]
    if None in given and None not in known and _ending(path) in KINDS and Path(path).is_file():
        first = next(read_rows(path), {})
    sentences = first.get("translation", first)
    found = known if isinstance(sentences, dict) and all(name in sentences for name in known) else ("source", "target")
    return tuple(name or key for name, key in zip(given, found, strict=True))


def kind_of(path: str) -> str:
    """Kind of a file of rows, by its name.

    Raises:
        ValueError: it is none.
    """
    ending = _ending(path)
    if ending not in KINDS:
        raise ValueError(f"{path}: must be {' or '.join(KINDS)}, also with .gz, or two plain text files")
    return KINDS[ending]


def _ending(path: str) -> str:
    return Path(path.removesuffix(".gz")).suffix


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
