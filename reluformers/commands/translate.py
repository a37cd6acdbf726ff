r"""Translate a text, the lines of a file or a column of a table.

A line of the output is the translation of the line of the input; empty lines stay empty, and a line that is too long
for the model is translated sentence by sentence. A call with --output that was cut off goes on where it was.

What is the name of a file is read as a file: give a text that is one by the standard input.

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

from tqdm.auto import tqdm

from reluformers.evaluation.scorer import check_at_least
from reluformers.files import check_output_files
from reluformers.saved_models import DTYPES, WEIGHTS, model_files
from reluformers.training.checkpoints import check_model
from reluformers.translation.decoding import load_translation_model, saved_search
from reluformers.translation.lines import align_lines, continued_file, read_texts, translate_lines

from .terminal import shows_progress, silence_transformers

CLONED_MODEL = Path(__file__).resolve().parents[2] / "models" / "tatoeba-en-de"
_FILE_NAME = re.compile(r"\S+\.[a-z][a-z0-9]+")  # news.en, and no "U.S." or "3.50"
WATCHED_LINES = 16  # that are translated together where somebody looks at the lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("text", nargs="?", default="-", help="a text, a file, or - for the standard input")
    parser.add_argument("--model", help="folder of a saved model, or Hub id; models/tatoeba-en-de if missing")
    parser.add_argument("--column", help="of a file .jsonl, .json, .tsv or .csv: key or column of the texts")
    parser.add_argument("--output", help="file for the translations, instead of the standard output")
    parser.add_argument("--num_beams", type=int, help="beams of the search; those that the model was saved with")
    parser.add_argument("--dtype", choices=DTYPES, help="data type to compute in; that of the saved model if missing")
    parser.add_argument("--batch_size", type=int, help="most sentences of a batch, beside --max_tokens")
    parser.add_argument("--max_tokens", type=int, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument("--alignments", action="store_true", help="write JSON lines with the source word of each word")
    parser.add_argument(
        "--runtime", choices=("torch", "onnx"), default="torch", help="onnx for a folder of `reluformers export`"
    )
    parser.add_argument("--precision", help="of --runtime onnx: fp32, fp16, int8 or q4; the finest that is there")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code of the repository")


def default_model() -> str:
    """Folder of the model that the repository brings along.

    Raises:
        ValueError: this is no clone of it, or one without the weights.
    """
    if not (CLONED_MODEL / WEIGHTS).is_file():
        raise ValueError(
            f"--model is not given, and there is no {CLONED_MODEL} with weights, which a clone of the repository of "
            "reluformers has: run this from a clone (`pip install -e .`), or name the folder or Hub id of any "
            "translation model with --model"
        )
    return str(CLONED_MODEL)


def run(options: argparse.Namespace) -> None:
    """Translate."""
    silence_transformers()
    check_at_least(options, num_beams=1, batch_size=1, max_tokens=1)
    source, is_typed = options.text, False
    is_file = os.path.isfile(source)
    if not is_file and os.path.exists(source):  # such as <(zcat news.gz)
        raise ValueError(f"{source}: is no file, but a folder or a pipe; give a file, or - for the standard input")
    if not is_file and _FILE_NAME.fullmatch(source):
        raise ValueError(f"{source}: no such file; give - and the text by the standard input to translate that")
    if options.column is not None and not is_file:
        raise ValueError(
            f"--column is {options.column!r}, but there is no table: give a .jsonl, .json, .tsv or .csv file"
        )
    if is_file and not Path(source).suffix and "/" not in source:
        sys.stderr.write(f"{source}: is read as a file; give - and the text by the standard input to translate that\n")
    check_output_files(options.output, inputs=[*([source] if is_file else []), *model_files(options.model)])
    if options.precision and options.runtime != "onnx":
        raise ValueError("--precision is of --runtime onnx; --dtype is of PyTorch")
    if options.dtype and options.runtime == "onnx":
        raise ValueError("--dtype is of PyTorch; --precision is of --runtime onnx")
    if options.runtime == "onnx":
        from reluformers.translation.onnx_runtime import load_onnx_translator  # its packages are an extra

        if options.model is None:
            raise ValueError("--runtime onnx needs --model, a folder that `reluformers export MODEL` has written")
        place = options.model
        model, tokenizers = load_onnx_translator(place, options.precision)
    else:
        place = options.model or default_model()
        check_model(place)
        model, tokenizers = load_translation_model(
            place, trust_remote_code=options.trust_remote_code, dtype=options.dtype
        )
    search = saved_search(model.generation_config)
    search |= {} if options.num_beams is None else {"num_beams": options.num_beams}
    if source == "-" and sys.stdin is not None and sys.stdin.isatty():
        is_typed = True
        sys.stderr.write("type a text and press Enter; Ctrl-D ends\n")

    def texts() -> Iterator[str]:
        if is_file or source == "-":
            return read_texts(source, options.column)
        return iter(source.splitlines() or [""])

    # whoever looks at the lines should not have to wait for many
    is_watched = options.output is None and sys.stdout is not None and sys.stdout.isatty()
    block_lines = 1 if is_typed else WATCHED_LINES if is_watched else None

    def translations(start: int, bar: tqdm | None = None) -> Iterator[str]:
        batches = {"max_tokens": options.max_tokens, "batch_size": options.batch_size, "block_lines": block_lines}
        given = (model, tokenizers, islice(texts(), start, None))
        if options.alignments:
            for found in align_lines(*given, bar=bar, **search, **batches):
                yield json.dumps(found, ensure_ascii=False)
        else:
            yield from translate_lines(*given, bar=bar, **search, **batches)

    def progress(done: int) -> tqdm:
        is_hidden = not shows_progress() or is_watched or is_typed or not (is_file or source == "-")
        total = sum(1 for _ in texts()) if is_file and not is_hidden else None
        return tqdm(initial=done, total=total, unit=" lines", unit_scale=True, disable=is_hidden)

    if options.output is None:
        with progress(0) as bar:
            for line in translations(0, bar):
                print(line, flush=source == "-")
        return
    stamp = os.stat(source) if is_file else None
    weights = sorted(Path(place).glob("*.safetensors"))  # none of a Hub id
    identity = {
        "model": os.path.abspath(place) if os.path.isdir(place) else place,
        **({"precision": options.precision} if options.runtime == "onnx" else {}),
        "weights of": [path.stat().st_mtime_ns for path in weights],
        "text": os.path.abspath(source) if is_file else source,
        "size and time": [stamp.st_size, stamp.st_mtime_ns] if stamp else None,
        "column": options.column,
        "alignments": options.alignments,
        **({} if options.dtype is None else {"dtype": options.dtype}),
        **search,
    }
    with continued_file(options.output, identity) as (file, done):
        if done and source == "-":
            raise ValueError(f"{options.output}.part: the standard input cannot be read again; delete it")
        with progress(done) as bar:
            for line in translations(done, bar):
                file.write(f"{line}\n")
    sys.stderr.write(f"{options.output}: done\n")
