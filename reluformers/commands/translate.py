r"""Translate a text, the lines of a file or a column of a table.

Line n of the output is the translation of line n of the input; an empty line stays empty. If a line is too long for
the model, `translate` splits it into sentences. If a call with --output was cut off, the same call continues it.

If TEXT is the name of a file, `translate` reads the file. To translate the name itself, use the standard input.

Examples:
    reluformers translate "Two dogs run along the beach."
    reluformers translate --model ./runs/reluformer news.en --output news.de
    reluformers translate --model ./reluformer-onnx --runtime onnx --precision int8 news.en
    cut -f 1 pairs.tsv | reluformers translate --model ./runs/reluformer -
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from reluformers.conversion.sources import SOURCES
from reluformers.files import check_output_files, stamp
from reluformers.onnx import SUFFIXES
from reluformers.saved_models import DTYPES, model_files
from reluformers.training.checkpoints import check_model
from reluformers.translation.decoding import load_translation_model, note_on_search, saved_search
from reluformers.translation.lines import align_lines, continued_file, read_texts, translate_lines
from reluformers.translation.tokenization import Tokenizers

CLONED_MODEL = str(Path(__file__).resolve().parents[2] / "models" / "tatoeba-en-de")
_FILE_NAME = re.compile(r"\S+\.[a-z][a-z0-9]+")  # It matches news.en, but not "U.S." or "3.50".
WATCHED_LINES = 16  # So many lines are translated together if somebody looks at them.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("text", nargs="?", default="-", help="a text, a file, or - for the standard input")
    parser.add_argument("--model", help="folder or Hub id of a model; without it, models/tatoeba-en-de of a clone")
    parser.add_argument("--column", help="key or column of the texts in a file .jsonl, .json, .tsv or .csv")
    parser.add_argument("--output", help="file for the translations, instead of the standard output")
    parser.add_argument("--num_beams", type=int, help="beams of the search; without it, the model's own number")
    parser.add_argument("--dtype", choices=DTYPES, help="data type to compute in; without it, the saved model's")
    parser.add_argument("--batch_size", type=int, help="most sentences in a batch")
    parser.add_argument("--max_tokens", type=int, default=4096, help="most source tokens in a batch (default: 4096)")
    parser.add_argument("--alignments", action="store_true", help="write JSON lines with the source word of each word")
    parser.add_argument(
        "--runtime", choices=("torch", "onnx"), default="torch", help="onnx opens a folder of `reluformers export`"
    )
    parser.add_argument("--precision", choices=SUFFIXES, help="number format of an export; without it, the finest")
    parser.add_argument("--trust_remote_code", action="store_true", help="run the model code of the repository")


def run(options: argparse.Namespace) -> None:
    """Run `reluformers translate`: translate a text or a file."""
    options.model = options.model or CLONED_MODEL
    source = options.text
    is_file = os.path.isfile(options.text)
    if not is_file and (os.path.exists(source) or _FILE_NAME.fullmatch(source)):
        raise ValueError(f"{source}: no such file; give - and the text by the standard input to translate that")
    check_output_files(options.output, inputs=[*([source] if is_file else []), *model_files(options.model)])
    model, tokenizers = load(options)
    search = saved_search(model.generation_config)
    if options.num_beams is not None:
        search["num_beams"] = options.num_beams
    note = note_on_search(model, **search)
    if options.runtime == "torch" and model.config.model_type in SOURCES:
        note = "transformers' search translates; compiled code does for what `reluformers convert` makes of this model"
    if note:
        sys.stderr.write(f"{options.model}: {note}\n")
    is_typed = source == "-" and sys.stdin.isatty()
    is_watched = options.output is None and sys.stdout.isatty()
    batches = {"max_tokens": options.max_tokens, "batch_size": options.batch_size}
    if is_typed:
        batches["block_lines"] = 1
    elif is_watched:  # Somebody who looks at the lines should not wait for a whole block.
        batches["block_lines"] = WATCHED_LINES
    is_read = is_file or source == "-" or options.column
    is_hidden = not sys.stderr.isatty() or is_watched or is_typed or not is_read
    translate = align_lines if options.alignments else translate_lines

    def translations(start: int) -> Iterator[str]:
        texts = read_texts(source, options.column) if is_read else iter(source.splitlines() or [""])
        with tqdm(unit=" sentences", disable=is_hidden) as bar:
            translated = translate(
                model, tokenizers, islice(texts, start, None), progress=bar.update, **search, **batches
            )
            for line in translated:
                yield json.dumps(line, ensure_ascii=False) if options.alignments else line

    if options.output is None:
        for line in translations(0):
            print(line, flush=source == "-")
        return
    with continued_file(options.output, identity_of(options, search)) as (file, done):
        if done and source == "-":
            raise ValueError(f"{options.output}: the standard input cannot be read again; delete what was begun")
        for line in translations(done):
            file.write(f"{line}\n")
    sys.stderr.write(f"{options.output}: done\n")


def load(options: argparse.Namespace) -> tuple[Any, Tokenizers]:
    """Open the model, in PyTorch or in onnxruntime."""
    if (options.precision and options.runtime != "onnx") or (options.dtype and options.runtime == "onnx"):
        raise ValueError("--precision is of --runtime onnx, and --dtype of PyTorch")
    if options.runtime == "onnx":
        from reluformers.translation.onnx_runtime import load_onnx_translator  # Its packages are an extra.

        return load_onnx_translator(options.model, options.precision)
    check_model(options.model)
    return load_translation_model(options.model, trust_remote_code=options.trust_remote_code, dtype=options.dtype)


def identity_of(options: argparse.Namespace, search: dict[str, Any]) -> dict[str, Any]:
    """What the lines of an output follow from."""
    read = [Path(options.text), *sorted(model_files(options.model))]  # A Hub id has no files here.
    stamps = [(str(path.resolve()), *stamp(path)) for path in read if path.is_file()]
    names = ("model", "text", "column", "alignments", "dtype", "precision", "runtime")
    return {"files": stamps, **{name: getattr(options, name) for name in names}, **search}
