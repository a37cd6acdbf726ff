"""Translation: from sentence pairs to a trained model, its translations and their scores."""

from importlib import import_module
from typing import Any

_MODULES = {
    "TranslationRecipe": "recipe",
    "TranslationTrainer": "trainer",
    "TranslationTrainingArguments": "recipe",
    "train_translation": "run",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import what training needs when it is asked for, as it takes seconds for which no translation should wait."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
