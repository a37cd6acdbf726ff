"""Train a translation model from a recipe.

Example:
    python scripts/train_translation.py scripts/recipes/multi30k_en_de.yaml \
        data.train=train.jsonl.gz data.validation=validation.jsonl.gz \
        model.preset=reluformer --output_dir runs/reluformer
"""

from reluformers.commands.train import run_training_command
from reluformers.errors import run_main
from reluformers.translation import TranslationRecipe, train_translation


def main() -> None:
    run_training_command(TranslationRecipe, train_translation, "Train a translation model from a recipe.")


if __name__ == "__main__":
    run_main(main)
