r"""Train a model from a recipe, which names its task, or a small translation model on sentence pairs.

With --data the recipe follows from the pairs; recipe.yaml in the output folder is that, to read, change and run again.
It runs under `accelerate launch` and `torchrun` as well: give them scripts/train.py.

Examples:
    reluformers train --data train.en train.de --source_lang en --target_lang de --output_dir runs/first
    reluformers train scripts/recipes/multi30k_en_de.yaml data.train=train.jsonl.gz \
        data.validation=validation.jsonl.gz model.preset=reluformer --output_dir runs/reluformer
"""

import argparse
from functools import partial

from reluformers.errors import describe_error, is_disk_full
from reluformers.tasks import load_recipe, recipe_for_pairs, task_named
from reluformers.training.recipe import Recipe

from . import SECTION_CHANGE, take_changes
from .terminal import hide_unwatched_progress, shows_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("recipe", nargs="?", help="YAML file with `task:` and its sections")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="section.key=value",
        help="changes to the recipe; the value is read as YAML",
    )
    pairs = parser.add_argument_group("without a recipe")
    for name, what in (("data", "train"), ("validation", "evaluate")):
        pairs.add_argument(
            f"--{name}",
            nargs="+",
            metavar="FILE",
            help=f"sentence pairs to {what} on: two text files, source and target line by line, or one of rows",
        )
    for side in ("source", "target"):
        pairs.add_argument(f"--{side}_lang", help=f"language of the {side}, key or column of rows, such as en")
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


def read_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe that is named, or that follows from the data, with the changes.

    Raises:
        ValueError: there is neither or both, or it is not valid.
    """
    take_changes(options, "overrides", SECTION_CHANGE, "data", "validation")
    if options.recipe is not None and SECTION_CHANGE.fullmatch(options.recipe):
        options.overrides, options.recipe = [options.recipe, *options.overrides], None
    if options.early_stopping is not None:
        options.overrides.append(f"training.early_stopping_patience={options.early_stopping}")
    given = [name for name in ("data", "validation", "source_lang", "target_lang") if getattr(options, name)]
    if options.recipe is not None:
        if given:
            raise ValueError(
                f"--{given[0]} is given beside the recipe {options.recipe}: say it there, or leave that out"
            )
        return load_recipe(options.recipe, options.overrides)
    if options.data is None:
        raise ValueError(
            "there is neither a recipe nor --data: name a YAML file, or sentence pairs as --help shows it"
        )
    for name in ("source_lang", "target_lang"):
        if name not in given:
            raise ValueError(f"--data needs --{name}, such as --{name} en")
    validation = None if options.validation is None else _source(options.validation)
    languages = options.source_lang, options.target_lang
    return recipe_for_pairs(_source(options.data), *languages, validation, options.overrides)


def _source(paths: list[str]) -> str | dict[str, str]:
    if len(paths) > 2:
        raise ValueError(
            f"{' '.join(paths)}: are {len(paths)} files; give two of text, source and target, or one of rows"
        )
    return paths[0] if len(paths) == 1 else dict(zip(("source", "target"), paths, strict=True))


def run(options: argparse.Namespace) -> None:
    """Train."""
    hide_unwatched_progress()
    report = partial(print, flush=True)
    recipe = read_recipe(options)
    if shows_progress() and not any(text.startswith("training.disable_tqdm=") for text in options.overrides):
        recipe.training["disable_tqdm"] = False  # recipes ask for lines because of files
    try:
        task_named(recipe.task).train(recipe, options.output_dir, resume=options.resume, report=report)
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise ValueError(f"{describe_error(error)} with --resume auto") from error
