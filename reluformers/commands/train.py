"""The command line of training, the same for every task."""

import argparse
import dataclasses
import sys
from collections.abc import Callable

import datasets
import transformers

from reluformers.training.recipe import Recipe


def run_training_command(recipe_class: type[Recipe], train: Callable[..., object], description: str) -> None:
    """Parse the arguments of the process, read the recipe and train.

    Args:
        recipe_class: of the task.
        train: takes a recipe, the output folder, `resume` and `report`, as `train_translation` does.
        description: of the command.

    Raises:
        UserError: whatever reading the recipe or training finds wrong.
    """
    sections = ", ".join(item.name for item in dataclasses.fields(recipe_class))
    parser = argparse.ArgumentParser(description=f"{description} Also runs under `accelerate launch` and `torchrun`.")
    parser.add_argument("recipe", help=f"YAML file with sections {sections}")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="changes to the recipe; the value is read as YAML"
    )
    parser.add_argument("--output_dir", required=True, help="folder for checkpoints and the finished model")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="go on from this checkpoint; without a value, from the last complete one; "
        "`auto` starts anew if there is none",
    )
    options = parser.parse_intermixed_args()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
    recipe = recipe_class.load(options.recipe, options.overrides)
    train(recipe, options.output_dir, resume=options.resume, report=print)
