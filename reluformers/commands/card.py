r"""Write the model card of a finished run: README.md with metadata for the Hub, and the pictures it shows.

Example:
    reluformers card runs/reluformer --repo_id ORG/multi30k-en-de --dataset bentrevett/multi30k \
        --baseline runs/softmax/evaluation.json --example "Two dogs run along the beach."
"""

import argparse
from pathlib import Path
from typing import Any

from reluformers.publish.card import write_card
from reluformers.training.checkpoints import check_model

from .terminal import silence_transformers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", type=Path, help="folder of the model")
    parser.add_argument("--repo_id", required=True, help="where it is to be published, ORG/NAME")
    parser.add_argument("--revision", default="v1", help="tag that the card's snippets pin")
    add_card_arguments(parser)
    parser.add_argument("--output", type=Path, help="folder for the card, if not FOLDER")
    parser.add_argument("--overwrite", action="store_true", help="replace a card that is there")


def add_card_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that say what is to be in a card."""
    parser.add_argument("--evaluation", type=Path, help="results of the evaluation; FOLDER/evaluation.json if missing")
    parser.add_argument("--baseline", type=Path, help="results of a softmax model, scored with the same command")
    parser.add_argument("--licence", help="of weights and code; that of README.md if missing, else apache-2.0")
    parser.add_argument(
        "--base_model", metavar="ORG/NAME", help="what it was fine-tuned from, if the folder does not say"
    )
    parser.add_argument("--dataset", help="Hub id of the data set that the model was trained and scored on")
    parser.add_argument("--data_name", help="what the training data are called")
    parser.add_argument("--data_domain", help="what they are about, such as 'captions of photographs'")
    parser.add_argument("--data_terms", help="their licence, in words")
    parser.add_argument("--example", action="append", default=[], help="text or image file to show; may be repeated")
    parser.add_argument(
        "--no_held_out",
        action="store_true",
        help="keep rows of the test and validation set out of the card and, with push, out of results.json, and "
        "measure nothing on them",
    )
    parser.add_argument("--hardware", help="what it was trained on, if the run did not write it down")
    parser.add_argument("--note", action="append", default=[], help="sentence on the results; may be repeated")


def card_options(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `write_card` for these options."""
    return {
        "evaluation": options.evaluation,
        "baseline": options.baseline,
        "licence": options.licence,
        "base_model": options.base_model,
        "dataset": options.dataset,
        **{name: getattr(options, name) for name in ("data_name", "data_domain", "data_terms")},
        "examples": options.example,
        "held_out": not options.no_held_out,
        "hardware": options.hardware,
        "notes": options.note,
    }


def run(options: argparse.Namespace) -> None:
    """Write the card."""
    silence_transformers()
    check_model(options.folder)
    place = {"revision": options.revision, "output": options.output, "overwrite": options.overwrite}
    print(write_card(options.folder, options.repo_id, **place, **card_options(options)))
