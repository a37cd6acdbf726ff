"""Train an image classifier from a recipe.

Example:
    python scripts/train_image_classification.py scripts/recipes/cifar10.yaml \
        data.path=data/cifar10 model.preset=relu-vit --output_dir runs/relu-vit
"""

from reluformers.commands.train import run_training_command
from reluformers.errors import run_main
from reluformers.images import ImageRecipe, train_image_classification


def main() -> None:
    run_training_command(ImageRecipe, train_image_classification, "Train an image classifier from a recipe.")


if __name__ == "__main__":
    run_main(main)
