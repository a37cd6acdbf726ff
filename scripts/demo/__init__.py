"""The demo: a ReLUFormer learns to say dates, places, amounts and lists in German, in minutes, offline."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reluformers.files import atomic_directory
from reluformers.tasks import task_named
from reluformers.training.recipe import Recipe


def train_model(recipe: Recipe, files: dict[str, Path], folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Train, score on the held-out rows of `files` and save, whole or not at all; an earlier model is replaced."""
    data = replace(recipe.data, **{split: str(file) for split, file in files.items()})
    with atomic_directory(folder, overwrite=True) as temporary:
        return task_named(recipe.task).train(replace(recipe, data=data), temporary, report=report)
