"""Steps that both demos take: where the model goes, and training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reluformers.files import atomic_directory
from reluformers.images import ImageRecipe
from reluformers.training.run import RECIPE_FILE
from reluformers.translation import TranslationRecipe


def check_output(folder: Path) -> None:
    """Refuse to replace a folder that no training run has made.

    Args:
        folder: where the model is to go.

    Raises:
        ValueError: the folder holds something else.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECIPE_FILE).is_file():
        raise ValueError(f"{folder}: holds something that is no trained model; choose another folder")


def train_model(
    train: Callable[..., dict[str, Any]],
    recipe: TranslationRecipe | ImageRecipe,
    files: dict[str, Path],
    folder: Path,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Train, score on the held-out rows and save, whole or not at all.

    Args:
        train: `train_translation` or `train_image_classification`.
        recipe: with everything but the data.
        files: "train" and "validation".
        folder: where the model goes; an earlier one is replaced when the new one is finished.
        report: takes lines for the user.

    Returns:
        Results of the training run.
    """
    data = replace(recipe.data, **{split: str(file) for split, file in files.items()})
    with atomic_directory(folder, overwrite=True) as temporary:
        return train(replace(recipe, data=data), temporary, report=report)
