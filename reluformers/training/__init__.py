"""Training from recipes."""

from .arguments import TranslationTrainingArguments
from .translation_recipe import TranslationRecipe
from .translation_run import train_translation
from .translation_trainer import TranslationTrainer

__all__ = ["TranslationRecipe", "TranslationTrainer", "TranslationTrainingArguments", "train_translation"]
