r"""Write the model card of a finished run: README.md with metadata for the Hub, and the pictures it shows.

Example:
    reluformers card runs/reluformer --repo_id ORG/multi30k-en-de --dataset bentrevett/multi30k \
        --baseline runs/softmax/evaluation.json --example "Two dogs run along the beach."
"""

import argparse
from pathlib import Path

import transformers

from reluformers.cards.card import write_card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", type=Path, help="folder of the model")
    parser.add_argument("--repo_id", required=True, help="where it is to be published, ORG/NAME")
    parser.add_argument("--evaluation", type=Path, help="results of the evaluation; FOLDER/evaluation.json if missing")
    parser.add_argument("--baseline", type=Path, help="results of a softmax model, scored with the same command")
    parser.add_argument("--revision", default="v1", help="tag that the card's snippets pin")
    parser.add_argument("--licence", default="apache-2.0", help="of weights and code, as the Hub spells it")
    parser.add_argument("--dataset", help="Hub id of the data set that the model was trained and scored on")
    parser.add_argument("--example", action="append", default=[], help="text or image file to show; may be repeated")
    parser.add_argument("--hardware", help="what it was trained on, if the run did not write it down")
    parser.add_argument("--note", action="append", default=[], help="sentence on the results; may be repeated")
    parser.add_argument("--output", type=Path, help="folder for the card, if not FOLDER")
    parser.add_argument("--overwrite", action="store_true", help="replace a card that is there")


def run(options: argparse.Namespace) -> None:
    """Write the card."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(
        write_card(
            options.folder,
            options.repo_id,
            revision=options.revision,
            evaluation=options.evaluation,
            baseline=options.baseline,
            licence=options.licence,
            dataset=options.dataset,
            examples=options.example,
            hardware=options.hardware,
            notes=options.note,
            output=options.output,
            overwrite=options.overwrite,
        )
    )
