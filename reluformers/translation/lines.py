"""Texts translated line by line: any number of them, in their order, none cut."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedModel

from reluformers.files import LINES, check_lines, iterate_lines
from reluformers.modeling.pipeline_translation import TOKENIZING, TranslationPipeline, most_positions

from .decoding import translate
from .rows import read_rows, read_text
from .tokenization import Tokenizers

BLOCK_LINES = 2000  # So many lines are held and sorted by length together.
TABLES = (".jsonl", ".json", ".tsv", ".csv")
Parts = list[tuple[str, str]]  # The parts of a text, each with its translation.
# These signs also stand within words: 3.5, U.S., a?b=c.
_WEAK_ENDS = ".!?…\N{ONE DOT LEADER}\N{SMALL FULL STOP}\N{FULLWIDTH FULL STOP}"
_ENDS = r"[\p{Sentence_Terminal}…]"
_CLOSING = r"""(?:["'\p{Pe}\p{Pf}]|[“‘«](?!\S))*+"""
# A weak end counts before a blank, a letter of a script without capitals and, all but the full stop, a capital.
_SENTENCES = (
    rf"(?<!{_ENDS})(?:[{_WEAK_ENDS}]*+[\p{{Sentence_Terminal}}&&[^{_WEAK_ENDS}]]{_ENDS}*+"
    rf"|[{_WEAK_ENDS}]++(?={_CLOSING}(?:\s|\z|\p{{Lo}})|(?<=[!?…])\p{{Lu}})){_CLOSING}\s*"
)
# A long sentence is cut after the first of these that it has: blanks, commas, words (UAX 29), characters.
_WITHIN = (r"\s", r"\p{Terminal_Punctuation}(?!\p{Nd})", r"(?y{w})\X", r"\X")
_QUOTES = "\"'«»“”‘’()[]"
_IDEOGRAPHIC = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uff9f\U00020000-\U0003ffff"
_SOUTH_EAST_ASIAN = "\u0e00-\u109f\u1780-\u17ff"  # Blanks stand between its sentences, not its words.


def cut_text(text: str, count_tokens: Callable[[str], int], limit: int) -> list[str]:
    """Cut a text that is too long at the ends of its sentences, and a sentence that is too long between words.

    Args:
        text: without line breaks.
        count_tokens: of a text.
        limit: most tokens of a part.

    Returns:
        The text alone if it is short enough, else its parts; none of an empty one.
    """
    text = " ".join(text.split())
    if not text:
        return []
    if count_tokens(text) <= limit or len(text) == 1:
        return [text]
    ends = _ends_of(_SENTENCES, text)
    if not ends:
        ends = next(filter(None, (_ends_of(pattern, text) for pattern in _WITHIN)), [len(text) // 2])
        ends = [min(ends, key=lambda end: abs(2 * end - len(text)))]
    parts = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
    return [piece for part in parts for piece in cut_text(part, count_tokens, limit)]


def _ends_of(pattern: str, text: str) -> list[int]:
    """Where each match of a pattern ends, but for the end of the text."""
    pieces = Split(Regex(pattern), "merged_with_previous").pre_tokenize_str(text)
    return list(accumulate(len(piece) for piece, _ in pieces[:-1]))


def join_parts(text: str, parts: Parts) -> str:
    """Join the translations of a text's parts, with blanks where the language of the translation has them."""
    joined = ""
    end = 0
    for part, translation in parts:
        start = text.index(part, end)
        # A vocabulary of bytes can spell a line break, which would shift every later line to another text.
        line = " ".join(translation.splitlines())
        if joined and line:
            joined += _blank_between(text[start - 1 : start + 1], joined, line)
        joined += line
        end = start + len(part)
    return joined


def _blank_between(cut: str, before: str, after: str) -> str:
    """A blank or nothing between two translations; `cut` are the two characters where their text was cut."""
    nearest = before.rstrip(_QUOTES)[-1:] + after.lstrip(_QUOTES)[:1]
    if re.search(f"[{_IDEOGRAPHIC}]", nearest):
        return ""
    if " " in cut:
        return " "
    # A language without blanks between its sentences is translated into one that has them.
    unspaced = f"[{_IDEOGRAPHIC}{_SOUTH_EAST_ASIAN}]"
    if re.search(unspaced, cut) and not re.search(unspaced, nearest):
        return " "
    return ""


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
        parts = [cut_text(text, count_tokens, limit) for text in block]
        translated = iter(translate(model, tokenizers, [part for row in parts for part in row], **options))
        yield [(text, [(part, next(translated)) for part in row]) for text, row in zip(block, parts, strict=True)]


def translate_lines(
    model: PreTrainedModel, tokenizers: Tokenizers, texts: Iterable[str], **options: Any
) -> Iterator[str]:
    """Translate texts as `translate_blocks` does; yields their translations, a line each, those of parts joined."""
    for block in translate_blocks(model, tokenizers, texts, **options):
        yield from (join_parts(text, row) for text, row in block)


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
            links = []
            start = 0
            for part, translation in row:
                start = text.index(part, start)
                before = text.count(" ", 0, start)
                start += len(part)
                for link in pipe.align(part, translation) if translation.strip() else []:
                    if link["source_index"] is not None:
                        link["source_index"] += before
                    links.append(link)
            yield {"source": text, "translation_text": join_parts(text, row), "alignments": links}


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
        # We read UTF-8 as in files, whatever the locale says.
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
        Timeout: another call is writing the same lines; it is an OSError of filelock.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    part = target.with_name(f"{target.name}.{digest[:8]}.part")
    with FileLock(f"{part}.lock", timeout=0) as lock:  # The system frees the lock when the process ends.
        with open(part, "a+b") as file:
            file.seek(0)
            # A killed call may have cut the last line short.
            whole = [len(line) for line in file if line.endswith(b"\n")]
            file.truncate(sum(whole))
        with open(part, "a", encoding="utf-8", newline="\n") as text:
            yield text, len(whole)
        part.replace(target)
        with suppress(PermissionError):  # Windows removes no open file; there the release does it.
            os.unlink(lock.lock_file)
