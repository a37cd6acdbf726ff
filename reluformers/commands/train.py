r"""Train a model from a recipe, which names its task.

It runs under `accelerate launch` and `torchrun` as well: give them scripts/train.py.

Example:
    reluformers train scripts/recipes/multi30k_en_de.yaml data.train=train.jsonl.gz \
        data.validation=validation.jsonl.gz model.preset=reluformer --output_dir runs/reluformer
"""

import argparse
from functools import partial

from reluformers.errors import UserError, describe_error, is_disk_full
from reluformers.tasks import load_recipe, task_named

from .terminal import hide_unwatched_progress, shows_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("recipe", help="YAML file with `task:` and its sections")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="section.key=value",
        help="changes to the recipe; the value is read as YAML",
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
    parser.add_argument(
        "--early_stopping",
        type=int,
        metavar="N",
        help="stop after N evaluations without a better one: training.early_stopping_patience",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="train 20 updates and print parameters, memory, tokens and time of the whole run; write nothing but the "
        "cache of datasets",
    )


def run(options: argparse.Namespace) -> None:
    """Train."""
    hide_unwatched_progress()
    report = partial(print, flush=True)
    if options.early_stopping is not None:
        options.overrides.append(f"training.early_stopping_patience={options.early_stopping}")
    recipe = load_recipe(options.recipe, options.overrides)
    if shows_progress() and not any(text.startswith("training.disable_tqdm=") for text in options.overrides):
        recipe.training.pop("disable_tqdm", None)  # recipes ask for lines because of files
    try:
        task_named(recipe.task).train(
            recipe, options.output_dir, resume=options.resume, dry_run=options.dry_run, report=report
        )
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise UserError(f"{describe_error(error)} with --resume auto") from error
