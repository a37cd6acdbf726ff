r"""Translate a text, the lines of a file or a column of a table.

A line of the output is the translation of the line of the input; empty lines stay empty, and a line that is too long
for the model is translated sentence by sentence. A call with --output that was cut off goes on where it was.

Examples:
    reluformers translate --model ./runs/reluformer "Two dogs run along the beach."
    reluformers translate --model ./runs/reluformer news.en --output news.de
    cut -f 1 pairs.tsv | reluformers translate --model ./runs/reluformer -
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tqdm.auto import tqdm

from reluformers.errors import UserError
from reluformers.evaluation.scorer import check_at_least
from reluformers.files import check_output_files
from reluformers.modeling.pipeline_translation import TranslationPipeline
from reluformers.saved_models import opening
from reluformers.training.checkpoints import check_model
from reluformers.translation.decoding import ONE_BEST, load_translation_model, saved_search
from reluformers.translation.lines import TABLES, continued_file, read_texts, translate_lines

from .terminal import shows_progress, silence_transformers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("text", nargs="?", default="-", help="a text, a file, or - for the standard input")
    parser.add_argument("--model", required=True, help="folder of a saved model, or Hub id")
    parser.add_argument("--column", help="of a file .jsonl, .json, .tsv or .csv: key or column of the texts")
    parser.add_argument("--output", help="file for the translations, instead of the standard output")
    parser.add_argument("--num_beams", type=int, help="beams of the search; those that the model was saved with")
    parser.add_argument("--batch_size", type=int, help="most sentences of a batch, beside --max_tokens")
    parser.add_argument("--max_tokens", type=int, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument("--alignments", action="store_true", help="write JSON lines with the source word of each word")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code of the repository")


def run(options: argparse.Namespace) -> None:
    """Translate."""
    silence_transformers()
    check_at_least(options, num_beams=1, batch_size=1, max_tokens=1)
    source = options.text
    is_file = os.path.isfile(source)
    if not is_file and " " not in source and Path(source.removesuffix(".gz")).suffix in (*TABLES, ".txt"):
        raise UserError(f"{source}: no such file; check the path")
    if not is_file and "/" in source and os.path.exists(source):  # such as <(zcat news.gz)
        raise UserError(f"{source}: is no file, but a folder or a pipe; give a file, or - for the standard input")
    if options.column is not None and not is_file:
        raise UserError(
            f"--column is {options.column!r}, but there is no table: give a .jsonl, .json, .tsv or .csv file"
        )
    check_output_files(options.output, inputs=[source] if is_file else [])
    check_model(options.model)
    model, tokenizers = load_translation_model(options.model, trust_remote_code=options.trust_remote_code)
    search = saved_search(model.generation_config)
    search |= {} if options.num_beams is None else {"num_beams": options.num_beams}

    def texts() -> Iterator[str]:
        return read_texts(source, options.column) if is_file or source == "-" else iter([source])

    def translations(start: int) -> Iterator[str]:
        if options.alignments:
            pipe = TranslationPipeline(model, tokenizers[0], tokenizers[1])
            for text in islice(texts(), start, None):
                with opening(options.model, "a translation by its generation_config.json"):
                    found = [{"translation_text": ""}]
                    if text.strip():
                        found = pipe(text, return_alignments=True, **ONE_BEST, **search)
                yield json.dumps({"source": text, **found[0]}, ensure_ascii=False)
            return
        batches = {"max_tokens": options.max_tokens, "batch_size": options.batch_size}
        yield from translate_lines(model, tokenizers, islice(texts(), start, None), **search, **batches)

    if options.output is None:
        for line in translations(0):
            print(line, flush=source == "-")
        return
    stamp = os.stat(source) if is_file else None
    weights = sorted(Path(options.model).glob("*.safetensors"))  # none of a Hub id
    identity = {
        "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
        "weights of": [path.stat().st_mtime_ns for path in weights],
        "text": os.path.abspath(source) if is_file else source,
        "size and time": [stamp.st_size, stamp.st_mtime_ns] if stamp else None,
        "column": options.column,
        "alignments": options.alignments,
        **search,
    }
    total = sum(1 for _ in texts()) if is_file and shows_progress() else None
    with continued_file(options.output, identity) as (file, done):
        if done and source == "-":
            raise UserError(f"{options.output}.part: the standard input cannot be read again; delete it")
        bar = tqdm(translations(done), initial=done, total=total, unit=" lines", disable=not shows_progress())
        for line in bar:
            file.write(f"{line}\n")
    sys.stderr.write(f"{options.output}: done\n")
