"""Training from recipes."""

from .arguments import TaskTrainingArguments, TranslationTrainingArguments
from .image_recipe import ImageRecipe
from .image_run import train_image_classification
from .image_trainer import ImageTrainer
from .translation_recipe import TranslationRecipe
from .translation_run import train_translation
from .translation_trainer import TranslationTrainer

__all__ = [
    "ImageRecipe",
    "ImageTrainer",
    "TaskTrainingArguments",
    "TranslationRecipe",
    "TranslationTrainer",
    "TranslationTrainingArguments",
    "train_image_classification",
    "train_translation",
]
