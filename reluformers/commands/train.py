r"""Train a model from a recipe, or a small translation model from sentence pairs.

With --data, `train` writes a recipe for your pairs, recipe.yaml in the output folder. You can edit it and train with
it. `accelerate launch` and `torchrun` take scripts/train.py.

Examples:
    reluformers train --data train.en train.de --source_lang en --target_lang de --output_dir runs/first
    reluformers train scripts/recipes/multi30k_en_de.yaml data.train=train.jsonl.gz \
        data.validation=validation.jsonl.gz model.preset=reluformer --output_dir runs/reluformer
"""

import argparse
import sys
from functools import partial

import torch

from reluformers.tasks import load_recipe, task_named
from reluformers.training.callbacks import keep_freed_memory
from reluformers.training.recipe import Recipe
from reluformers.training.yaml_files import override

from . import rows_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reluformers train`."""
    parser.add_argument("recipe", nargs="?", help="YAML file with `task:` and its sections")
    parser.add_argument(
        "changes",
        nargs="*",
        default=[],
        metavar="section.key=value",
        help="change of one key of the recipe; the value is YAML",
    )
    pairs = parser.add_argument_group("without a recipe")
    for name, what in (("data", "train"), ("validation", "evaluate")):
        pairs.add_argument(
            f"--{name}",
            nargs="+",
            metavar="FILE",
            help=f"sentence pairs to {what} on: a file of sources and one of their translations, or a file of rows",
        )
    for side in ("source", "target"):
        pairs.add_argument(f"--{side}_lang", help=f"language of the {side}, such as en; in rows its key or column")
    parser.add_argument("--output_dir", required=True, help="folder for checkpoints and the finished model")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="continue from this checkpoint; without a value, from the newest complete one; "
        "`auto` starts from scratch if there is none",
    )


def read_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe that is named, or that follows from the data, with the changes."""
    given = [name for name in ("data", "validation", "source_lang", "target_lang") if getattr(options, name)]
    if options.recipe is not None and not given:
        return load_recipe(options.recipe, options.changes)
    if options.recipe is not None or not {"data", "source_lang", "target_lang"} <= set(given):
        raise ValueError("give either a recipe, or --data, --source_lang and --target_lang")
    # Imported here, as a recipe of another task needs none of it.
    from reluformers.translation.recipe import TranslationRecipe, default_recipe

    data = rows_of(options.data)
    validation = rows_of(options.validation) if options.validation else None
    sections = default_recipe(data, options.source_lang, options.target_lang, validation)
    override(sections, options.changes)
    return TranslationRecipe.from_sections(sections, "--data")


def run(options: argparse.Namespace) -> None:
    """Train."""
    report = partial(print, flush=True)
    recipe = read_recipe(options)
    if sys.stderr.isatty() and not any(text.startswith("training.disable_tqdm=") for text in options.changes):
        recipe.training["disable_tqdm"] = False  # Recipes ask for lines because output may go to a file.
    if not torch.accelerator.is_available():
        keep_freed_memory()  # It changes the process for good, so only the command may call it.
    task_named(recipe.task).train(recipe, options.output_dir, resume=options.resume, report=report)
