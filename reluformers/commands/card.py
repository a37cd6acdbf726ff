r"""Write the model card of a finished run: README.md with metadata for the Hub, and its pictures.

Example:
    reluformers card runs/reluformer --repo_id ORG/multi30k-en-de --dataset bentrevett/multi30k \
        --baseline runs/softmax/evaluation.json --example "Two dogs run along the beach." licence=mit

NAME=VALUE sets evaluation (a file of results, instead of FOLDER/evaluation.json), licence, hardware, base_model (that
was tuned), notes (a list of sentences about the results), data_name, data_domain or data_terms. The last three say in
words what the training data are called, their subject, their licence.
"""

import argparse
from pathlib import Path
from typing import Any

from reluformers.data.checked_fields import check_fields
from reluformers.publish.card import CardOptions, write_card
from reluformers.training.checkpoints import check_model
from reluformers.training.yaml_files import read_fields


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", type=Path, help="folder of the model")
    parser.add_argument("--repo_id", required=True, help="repository on the Hub, ORG/NAME")
    parser.add_argument("--revision", default="v1", help="tag that the card's code names (default: %(default)s)")
    add_card_arguments(parser)
    parser.add_argument("--output", type=Path, help="folder for the card; without it, FOLDER")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing card")


def add_card_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that choose what a card shows."""
    parser.add_argument("settings", nargs="*", default=[], metavar="NAME=VALUE", help="more fields, see `card --help`")
    parser.add_argument("--baseline", type=Path, help="results of a softmax model, scored with the same command")
    parser.add_argument("--dataset", help="Hub id of the data set of training and test")
    parser.add_argument(
        "--example", action="append", default=[], dest="examples", help="text or image file to show; may be repeated"
    )
    parser.add_argument(
        "--no_held_out",
        dest="held_out",
        action="store_false",
        help="show no row of the test and validation set in the card; with push, also take them out of results.json",
    )


def card_options(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of `CardOptions` that are given."""
    names = ("baseline", "dataset", "examples", "held_out")
    given = {name: getattr(options, name) for name in names if getattr(options, name) not in (None, [], True)}
    settings = check_fields("card", read_fields(options.settings, "NAME=VALUE"), CardOptions)
    return dict(**given, **settings)  # Python refuses a name that stands in both.


def run(options: argparse.Namespace) -> None:
    """Write the card."""
    check_model(options.folder)
    target = {"revision": options.revision, "output": options.output, "overwrite": options.overwrite}
    print(write_card(options.folder, options.repo_id, **target, **card_options(options)))
