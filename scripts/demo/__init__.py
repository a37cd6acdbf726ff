"""The demo: a ReLUFormer learns to say dates, places, amounts and lists in German, in minutes, offline."""

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
    """Train, score on the held-out rows of `files` and save, whole or not at all; an earlier model is replaced."""
    data = replace(recipe.data, **{split: str(file) for split, file in files.items()})
    with atomic_directory(folder, overwrite=True) as temporary:
        return train(replace(recipe, data=data), temporary, report=report)
