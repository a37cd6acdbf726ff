r"""Write a saved model as ONNX graphs, or as a page that computes in the browser.

The folder of ONNX has the file names of optimum and transformers.js: onnx/encoder_model.onnx and
onnx/decoder_model_merged.onnx, or onnx/model.onnx, with _fp16, _quantized (int8) or _q4 for other precisions. Its
export.json says how far logits are from PyTorch's; with --data, it also has scores and seconds on your rows.

Any server of files can show a page, and so can a Space with `sdk: static`. Make it from models, or from folders of
ONNX that you exported with --attentions.

Examples:
    reluformers export models/tatoeba-en-de --data test.jsonl.gz
    reluformers translate --model tatoeba-en-de-onnx --runtime onnx --precision int8 "The soup is too hot to eat."
    reluformers export models/tatoeba-en-de models/digits-relu-vit --to page --output page --bundle
"""

import argparse
from pathlib import Path

from reluformers.export.onnx_folder import export_onnx
from reluformers.export.page import export_page
from reluformers.onnx import SUFFIXES
from reluformers.training.checkpoints import check_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("model", nargs="+", help="folder or Hub id of a saved model; a page takes several")
    parser.add_argument("--to", choices=("onnx", "page"), default="onnx", help="what to write (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder to write; without it, MODEL-onnx or MODEL-page")
    parser.add_argument("--overwrite", action="store_true", help="replace the output folder if a command wrote it")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=SUFFIXES,
        help="number formats of the graphs; without it, fp32 and int8; a page takes one, without it int8",
    )
    parser.add_argument("--attentions", action="store_true", help="let the graphs also return the attention weights")
    parser.add_argument("--data", help="rows to compare answers and scores on: Hub id, folder or file")
    parser.add_argument(
        "--bundle",
        nargs="?",
        const=True,
        default=False,
        metavar="NODE_MODULES",
        help="put the JavaScript of a page into the folder, from the npm registry or from NODE_MODULES; without it, "
        "the browser loads it from a content delivery network",
    )
    parser.add_argument("--split", help="split of --data, perhaps with a slice, such as test[:100]")


def run(options: argparse.Namespace) -> None:
    """Run `reluformers export`: write models as ONNX graphs or as a page."""
    for model in options.model:
        check_model(model)
    first = options.model[0]
    name = Path(first).resolve().name if Path(first).exists() else first.rpartition("/")[2]
    output = options.output or Path(f"{name.removesuffix('-onnx')}-{options.to}")
    if options.to == "page":
        (precision,) = options.precision or ["int8"]
        page = export_page(
            options.model, output, precision=precision, bundle=options.bundle, overwrite=options.overwrite
        )
        print(f"{page['bytes'] / 1e6:.1f} MB to load; to look at it: python -m http.server --directory {output}")
    else:
        (model,) = options.model
        record = export_onnx(
            model,
            output,
            precisions=options.precision or ["fp32", "int8"],
            attentions=options.attentions,
            data={"data": options.data, "split": options.split} if options.data else None,
            overwrite=options.overwrite,
        )
        print("\n".join(describe(record)))
    print(f"{output}: done")


def describe(record: dict) -> list[str]:
    """Lines that say what an export is like beside PyTorch."""
    lines = []
    if rows := record["data"]:
        lines.append(f"{rows['rows']} {rows['unit']} of {rows['source']}; rows whose answer differs from PyTorch's")
    for search, answers in (record["pytorch"] or {}).items():
        lines.append(f"{'pytorch':<8}{search:<9}{_scores(answers)}")
    for precision, measured in record["precisions"].items():
        size = sum(measured["files"].values()) / 1e6
        error = measured["logits"]
        drawn = ", ".join(f"{name} {count}" for name, count in measured["differing_drawn"].items())
        lines.append(f"{precision:<8}{size:.1f} MB, logits within {error:.1e}, drawn rows that differ: {drawn}")
        for search, answers in measured.get("answers", {}).items():
            lines.append(f"{precision:<8}{search:<9}{_scores(answers)}, {answers['differing']} differ")
    return lines


def _scores(answers: dict) -> str:
    scores = ", ".join(f"{name} {value:.2f}" for name, value in answers["scores"].items() if value is not None)
    return f"{scores}, {answers['seconds']:.1f} s"
