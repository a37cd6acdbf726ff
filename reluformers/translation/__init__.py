"""Translation: from sentence pairs to a trained model, its translations and their scores."""

from .arguments import TranslationTrainingArguments
from .recipe import TranslationRecipe
from .run import train_translation
from .trainer import TranslationTrainer

__all__ = ["TranslationRecipe", "TranslationTrainer", "TranslationTrainingArguments", "train_translation"]
