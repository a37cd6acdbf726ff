"""Train a translation model from a recipe.

Example:
    python scripts/train_translation.py scripts/recipes/multi30k_en_de.yaml \
        data.train=train.jsonl.gz data.validation=validation.jsonl.gz \
        model.preset=reluformer --output_dir runs/reluformer
"""

import argparse
import sys

import datasets
import transformers

from reluformers.errors import run_main
from reluformers.training import TranslationRecipe, train_translation


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a translation model from a recipe. Also runs under `accelerate launch` and `torchrun`."
    )
    parser.add_argument("recipe", help="YAML file with sections model, tokenizer, data, training, decoding")
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
    recipe = TranslationRecipe.load(options.recipe, options.overrides)
    train_translation(recipe, options.output_dir, resume=options.resume, report=print)


if __name__ == "__main__":
    run_main(main)
