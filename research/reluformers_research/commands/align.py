r"""Align the words of parallel text by a translation model's cross-attention.

DATA is a .jsonl or .tsv file, or two plain text files; also .gz, and with a slice: 'gold.jsonl[:100]'. White space
separates words. Rows of JSON may hold lists of words, and alignments made by hand: `sure` and `possible`, lists of
[source word, target word], counted from 0. For such rows `align` prints the alignment error rate.

Formats:
    pharaoh  a line for each pair, `source-target` …, counted from 0 (Moses, fast_align)
    naacl    a line for each link, `pair source target`, counted from 1 (shared task of NAACL 2003)
    json     an object for each pair with its words, `alignment`, counted from 0, and `index_base`

Examples:
    reluformers align ./runs/rela test.en test.de --format pharaoh --output test.align
    reluformers align ./runs/rela 'gold.jsonl[100:]' --development 'gold.jsonl[:100]' --save --report aer.json
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import TextIO

from tqdm.auto import tqdm

from reluformers.evaluation.alignments import AlignmentHead, WordAlignments, word_alignments
from reluformers.files import atomic_write, check_output_files, write_json, write_text
from reluformers.saved_models import model_files
from reluformers.training.checkpoints import MANIFEST_FILE, check_model
from reluformers.translation.decoding import load_translation_model, saved_languages
from reluformers_research.analysis.gold_alignments import FORMATS, GoldAlignment, LinkCounts
from reluformers_research.analysis.parallel_text import ParallelRow, ParallelText, add_pair_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_pair_arguments(parser)
    parser.add_argument("--format", choices=FORMATS, default="pharaoh", help="format of the alignments")
    parser.add_argument("--output", help="file for the alignments, instead of the standard output")
    parser.add_argument("--development", help="file of rows with sure links; `align` chooses layer and head by them")
    parser.add_argument("--save", action="store_true", help="save that layer and head in the model's config.json")
    parser.add_argument("--report", help="JSON file for the error rates of all layers and heads")


def run(options: argparse.Namespace) -> None:
    """Choose the head, align, and say how good it is."""
    languages = (options.source_lang, options.target_lang, saved_languages(options.model))
    data = ParallelText(options.data, *languages)
    development = ParallelText([options.development], *languages) if options.development else None
    config_file = Path(options.model, "config.json")
    if options.save and not (development and config_file.is_file()):
        raise ValueError("--save needs --development to choose the head by, and the model in a folder")
    if options.save and Path(options.model, MANIFEST_FILE).is_file():
        raise ValueError(f"{options.model}: with another config.json training would not go on from this checkpoint")
    read = [*data.paths, *(development.paths if development else [])]
    check_output_files(options.output, options.report, inputs=[*read, *model_files(options.model)])
    check_model(options.model)
    model, tokenizers = load_translation_model(options.model, trust_remote_code=options.trust_remote_code)

    def align(text: ParallelText) -> Iterator[tuple[ParallelRow, WordAlignments]]:
        rows, again = tee(text)
        aligned = word_alignments(model, tokenizers, (row.texts for row in rows), max_tokens=options.max_tokens)
        return zip(again, tqdm(aligned, unit=" pairs", disable=not sys.stderr.isatty()), strict=True)

    head, tables = AlignmentHead.of_config(model.config), {}
    if development:
        counts = LinkCounts()
        for row, aligned in align(development):
            add_gold(counts, row, aligned)
        head = counts.best()
        tables["development"] = report(counts, head, "development")
        if options.save:
            save_choice(config_file, head)
    counts = LinkCounts()
    with open_output(options.output) as file:
        for number, (row, aligned) in enumerate(align(data)):
            file.write(FORMATS[options.format](number, aligned, aligned.of(head)))
            add_gold(counts, row, aligned)
    if counts.pairs:
        tables["test"] = report(counts, head, "test")
    if options.report:
        write_json(options.report, {**head.config_fields(), **tables})


def add_gold(counts: LinkCounts, row: ParallelRow, aligned: WordAlignments) -> None:
    """Count a row, if it has links made by hand."""
    if gold := GoldAlignment.from_row(row.values):
        counts.add(aligned, gold, row.place)


def report(counts: LinkCounts, head: AlignmentHead, part: str) -> dict:
    """Say how good a head is on a part of the data; returns that and the error rates of all."""
    table = {"pairs": counts.pairs, "chosen": counts.of(head), "aer": counts.error_rates_by_layer()}
    scores = ", ".join(f"{name} {value:.4f}" for name, value in table["chosen"].items())
    sys.stderr.write(f"{part}, {counts.pairs} pairs, {head}: {scores}\n")
    return table


def save_choice(config_file: Path, head: AlignmentHead) -> None:
    """Write the head into config.json, from where the translation pipeline reads it."""
    values = json.loads(config_file.read_text(encoding="utf-8"))
    write_text(config_file, json.dumps({**values, **head.config_fields()}, indent=2) + "\n")


@contextmanager
def open_output(name: str | None) -> Iterator[TextIO]:
    """A file that is whole or absent, or the standard output."""
    if name is None:
        yield sys.stdout
        return
    with atomic_write(name) as path, path.open("w", encoding="utf-8") as file:
        yield file
