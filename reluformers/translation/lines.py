"""Texts translated line by line: any number of them, in their order, none cut."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from reluformers.files import check_text, decode_lines, iterate_lines, read_json, write_json
from reluformers.modeling.pipeline_translation import TOKENIZING, TranslationPipeline, most_positions

from .decoding import translate
from .rows import read_rows
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

    texts, options = iter(texts), {"reported": set(), **options}
    while block := list(islice(texts, block_lines or BLOCK_LINES)):
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
        aligned = iter(align_pairs(pipe, [pair for _, row in block for pair in row]))
        for source, row in block:
            text, links, end, words_before = " ".join(source.split()), [], 0, 0
            for part, translation in row:
                start = text.index(part, end)
                words_before += text.count(" ", end, start)
                of_part = next(aligned)
                # words that are beyond the model's positions when they are read again
                rest = translation.split()[len(of_part) :]
                of_part += [{"target": word, "source": None, "source_index": None, "weight": 0.0} for word in rest]
                for link in of_part:
                    is_linked = link["source_index"] is not None
                    links.append({**link, "source_index": link["source_index"] + words_before} if is_linked else link)
                end = start + len(part)
                words_before += part.count(" ")
            translation = " ".join(translation for _, translation in row)
            yield {"source": source, "translation_text": translation, "alignments": links}


def align_pairs(
    pipe: TranslationPipeline, pairs: Sequence[tuple[str, str]], batch_size: int = 32
) -> list[list[dict[str, Any]]]:
    """Align texts and their translations as `pipe.align` does, in batches; an empty translation has no words.

    Args:
        pipe: its device computes.
        pairs: in any order; they are sorted by length.
        batch_size: pairs at a time.
    """
    links: list[list[dict[str, Any]]] = [[] for _ in pairs]
    kept = [place for place, (_, translation) in enumerate(pairs) if translation.strip()]
    sources = {place: pipe.preprocess(pairs[place][0])["input_ids"][0] for place in kept}
    targets = {place: pipe.read_target(pairs[place][1]) for place in kept}
    kept.sort(key=lambda place: (len(targets[place]), len(sources[place])))
    for places in (kept[start : start + batch_size] for start in range(0, len(kept), batch_size)):
        source, target = (
            pad_sequence([rows[place] for place in places], True, pipe.model.config.pad_token_id)
            for rows in (sources, targets)
        )
        mask = pad_sequence([torch.ones_like(sources[place]) for place in places], True)
        for place, weights in zip(places, pipe.alignment_weights(source, mask, target), strict=True):
            row, columns = targets[place], sources[place]
            weights = weights[: len(row) - 1, : len(columns)]
            links[place] = pipe.links(pairs[place][0], columns, row, weights)
    return links


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
        yield from decode_lines(sys.stdin.buffer, "the standard input")
    elif column is None:
        yield from iterate_lines(source)
    else:
        for number, row in enumerate(read_rows(source), start=1):
            sentences = row["translation"] if isinstance(row.get("translation"), dict) else row
            yield check_text(sentences.get(column), column, f"{source}, row {number}")


@contextmanager
def continued_file(path: str, identity: dict[str, Any]) -> Iterator[tuple[TextIO, int]]:
    """Write lines into PATH.part, which becomes PATH at the end; a later call with the same identity goes on there.

    Args:
        path: of the file.
        identity: what the lines follow from, as JSON has it.

    Yields:
        The file to write to, and how many lines it has already.

    Raises:
        ValueError: there are lines that follow from something else, or another call is writing them.
    """
    target = Path(os.path.realpath(path))
    part, record = (target.with_name(f"{target.name}.part{ending}") for ending in ("", ".json"))
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it goes with the process
        except BlockingIOError as error:
            raise ValueError(f"{part}: another call is writing it") from error
        if os.fstat(file.fileno()).st_size and (known := read_json(record) if record.is_file() else {}) != identity:
            differing = [name for name in identity if known.get(name) != identity[name]]
            raise ValueError(
                f"{part}: was begun with another {', '.join(differing)}; delete it, or choose another --output"
            )
        write_json(record, identity)
        file.seek(0)
        content_end = lines = 0
        for line in file:
            if line.endswith(b"\n"):  # the last one may be cut by whatever ended the call
                content_end, lines = content_end + len(line), lines + 1
        file.truncate(content_end)
        with open(part, "a", encoding="utf-8") as text:
            yield text, lines
        part.replace(target)
        record.unlink()
