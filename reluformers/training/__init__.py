"""Training of translation models from recipes."""

from .arguments import TranslationTrainingArguments
from .recipe import Recipe, load_recipe
from .run import train_translation
from .trainer import TranslationTrainer

__all__ = ["Recipe", "TranslationTrainer", "TranslationTrainingArguments", "load_recipe", "train_translation"]
