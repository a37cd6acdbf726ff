r"""Write a saved model as ONNX graphs, for runtimes other than PyTorch.

The folder has the names of optimum and transformers.js: onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx with
its cache, or onnx/model.onnx, each with _fp16, _quantized (int8) or _q4. Its export.json says how far logits and
answers are those of PyTorch, with --data on rows of yours, with scores and seconds.

Examples:
    reluformers export models/tatoeba-en-de --data test.jsonl.gz
    reluformers translate --model tatoeba-en-de-onnx --precision int8 "The soup is too hot to eat."
"""

import argparse
from pathlib import Path

from reluformers.errors import UserError
from reluformers.export.onnx_folder import export_onnx
from reluformers.onnx.precision import SUFFIXES
from reluformers.training.checkpoints import check_model

from .terminal import silence_transformers

TARGETS = ("onnx",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("model", help="folder or Hub id of a saved model")
    parser.add_argument("--to", choices=TARGETS, default="onnx", help="what to write")
    parser.add_argument("--output", type=Path, help="folder to write; MODEL-onnx here if missing")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder if it exists")
    parser.add_argument(
        "--precision", nargs="+", choices=SUFFIXES, default=["fp32", "int8"], help="number formats of the graphs"
    )
    parser.add_argument("--attentions", action="store_true", help="let the graphs give the weights of each layer too")
    parser.add_argument("--data", help="rows to compare answers and scores on: Hub id, folder or file")
    parser.add_argument("--split", help="of --data; may carry a slice, such as test[:100]")


def run(options: argparse.Namespace) -> None:
    """Export."""
    silence_transformers()
    if options.split and not options.data:
        raise UserError("--split is of --data, which is not given")
    check_model(options.model)
    name = Path(options.model).resolve().name if Path(options.model).exists() else options.model.rpartition("/")[2]
    output = options.output or Path(f"{name}-{options.to}")
    data = {"data": options.data, "split": options.split} if options.data else None
    record = export_onnx(
        options.model,
        output,
        precisions=options.precision,
        attentions=options.attentions,
        data=data,
        overwrite=options.overwrite,
    )
    for line in describe(record):
        print(line)
    print(f"{output}: done")


def describe(record: dict) -> list[str]:
    """Lines that say what an export is like beside PyTorch."""
    lines = []
    rows = record["data"]
    if rows:
        lines.append(f"{rows['rows']} {rows['unit']} of {rows['source']}; rows whose answer differs from PyTorch's")
    pytorch = record["pytorch"] or {}
    for search, found in pytorch.items():
        lines.append(f"{'pytorch':<8}{search:<9}{_scores(found)}")
    for precision, found in record["precisions"].items():
        size = sum(found["files"].values()) / 1e6
        differing = ", ".join(f"{name} {count}" for name, count in found["differing_drawn"].items())
        lines.append(
            f"{precision:<8}{size:.1f} MB, logits within {found['logits']:.1e}, drawn rows that differ: {differing}"
        )
        for search, answers in found.get("answers", {}).items():
            lines.append(f"{precision:<8}{search:<9}{_scores(answers)}, {answers['differing']} differ")
    return lines


def _scores(found: dict) -> str:
    scores = ", ".join(f"{name} {value:.2f}" for name, value in found["scores"].items() if value is not None)
    return f"{scores}, {found['seconds']:.1f} s"
