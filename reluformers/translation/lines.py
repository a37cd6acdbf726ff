"""Texts translated line by line: any number of them, in their order, none cut."""

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TextIO

from transformers import PreTrainedModel

from reluformers.files import LINES, check_lines, iterate_lines
from reluformers.modeling.pipeline_translation import TOKENIZING, TranslationPipeline, most_positions

from .decoding import translate
from .rows import read_rows, read_text
from .tokenization import Tokenizers

BLOCK_LINES = 2000  # held and sorted by length together
TABLES = (".jsonl", ".json", ".tsv", ".csv")
_SENTENCE_ENDS, _CLOSING = tuple(".!?…。！？"), "\"'»”’)]"
Parts = list[tuple[str, str]]  # of a text, each with its translation


def split_text(text: str, count_tokens: Callable[[str], int], limit: int) -> list[str]:
    """Cut a text that is too long at the ends of its sentences, and a sentence that is too long between words.

    Args:
        text: without line breaks.
        count_tokens: of a text.
        limit: most tokens of a part.

    Returns:
        The text alone if it is short enough, else its parts; none of an empty one.
    """
    words = text.split()
    text = " ".join(words)
    if not text:
        return []
    if count_tokens(text) <= limit or len(text) == 1:
        return [text]
    ends = [number for number, word in enumerate(words[:-1], 1) if word.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)]
    if not ends:
        ends = [len(words) // 2]
    parts = [" ".join(words[start:end]) for start, end in pairwise([0, *ends, len(words)])]
    if len(words) == 1:
        parts = [text[: len(text) // 2], text[len(text) // 2 :]]
    return [piece for part in parts for piece in split_text(part, count_tokens, limit)]


def translate_blocks(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    texts: Iterable[str],
    *,
    block_lines: int | None = None,
    **options: Any,
) -> Iterator[list[tuple[str, Parts]]]:
    """Translate texts as they come, in blocks.

    Args:
        model: encoder–decoder model.
        tokenizers: of source and target.
        texts: any number; white space in them becomes blanks.
        block_lines: texts that are read, sorted by length and translated together; `BLOCK_LINES` if None.
        options: of `translate`.

    Yields:
        The texts of a block, in their order, each with its parts and their translations: the text alone unless the
        model cannot take it as a whole; none of an empty one.
    """
    tokenizer = tokenizers[0]
    limit = min(most_positions(model.config), tokenizer.model_max_length)

    def count_tokens(text: str) -> int:
        with TOKENIZING:
            return len(tokenizer(text, verbose=False)["input_ids"])

    texts = iter(texts)
    while block := [" ".join(text.split()) for text in islice(texts, block_lines or BLOCK_LINES)]:
        parts = [split_text(text, count_tokens, limit) for text in block]
        translated = iter(translate(model, tokenizers, [part for row in parts for part in row], **options))
        yield [(text, [(part, next(translated)) for part in row]) for text, row in zip(block, parts, strict=True)]


def translate_lines(
    model: PreTrainedModel, tokenizers: Tokenizers, texts: Iterable[str], **options: Any
) -> Iterator[str]:
    """Translate texts as `translate_blocks` does; yields their translations, a line each, those of parts joined."""
    for block in translate_blocks(model, tokenizers, texts, **options):
        for _, row in block:
            # a vocabulary of bytes can spell a line break, behind which every later line would be another text's
            yield " ".join(line for _, translation in row for line in translation.splitlines())


def align_lines(
    model: PreTrainedModel, tokenizers: Tokenizers, texts: Iterable[str], **options: Any
) -> Iterator[dict[str, Any]]:
    """Translate texts as `translate_blocks` does, and align the words of the translations.

    Yields:
        Of each text `source`, `translation_text` and `alignments`, as `TranslationPipeline` has them; the numbers of
        source words are those of the whole text.
    """
    pipe = TranslationPipeline(model, *tokenizers)
    for block in translate_blocks(model, tokenizers, texts, **options):
        for text, row in block:
            links, start = [], 0
            for part, translation in row:
                start = text.index(part, start)
                before = text.count(" ", 0, start)
                start += len(part)
                for link in pipe.align(part, translation) if translation.strip() else []:
                    if link["source_index"] is not None:
                        link["source_index"] += before
                    links.append(link)
            translation = " ".join(translation for _, translation in row)
            yield {"source": text, "translation_text": translation, "alignments": links}


def read_texts(source: str, column: str | None = None) -> Iterator[str]:
    """Read texts, a line or row each.

    Args:
        source: a file of plain text, JSON lines, TSV or CSV, also .gz; "-" for the lines of the standard input.
        column: of a table: key or column of the texts, in the rows or in their dict "translation".

    Raises:
        ValueError: a row cannot be read, or has no text there; or there is a column too many or too few.
    """
    if source.removesuffix(".gz").endswith(TABLES) != (column is not None):
        raise ValueError(f"{source}: --column names the texts of a table ({', '.join(TABLES)}), and of nothing else")
    if source == "-":
        # in UTF-8 as files are, whatever the locale says
        sys.stdin.reconfigure(**LINES)
        yield from check_lines(sys.stdin, "standard input")
    elif column is None:
        yield from iterate_lines(source)
    else:
        for number, row in enumerate(read_rows(source), start=1):
            yield read_text(row, column, f"{source}, row {number}")


@contextmanager
def continued_file(path: str, identity: dict[str, Any]) -> Iterator[tuple[TextIO, int]]:
    """Write lines into a file beside PATH, which becomes PATH at the end; a later call goes on there.

    Args:
        path: of the file.
        identity: what the lines follow from, as JSON has it; a call with another one begins anew.

    Yields:
        The file to write to, and how many lines it has already.

    Raises:
        ValueError: another call is writing the same lines.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    part = target.with_name(f"{target.name}.{digest[:8]}.part")
    with open(part, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it goes with the process
        except BlockingIOError as error:
            raise ValueError(f"{part}: another call is writing it") from error
        file.seek(0)
        whole = [len(line) for line in file if line.endswith(b"\n")]  # the last one may be cut short
        file.truncate(sum(whole))
        with open(part, "a", encoding="utf-8") as text:
            yield text, len(whole)
        part.replace(target)
