"""The training step of both demos."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reluformers.files import atomic_directory
from reluformers.images import ImageRecipe
from reluformers.translation import TranslationRecipe


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
