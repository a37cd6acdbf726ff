"""Image classification: from labelled images to a trained model and its scores."""

from .recipe import ImageRecipe
from .run import train_image_classification
from .trainer import ImageTrainer

__all__ = ["ImageRecipe", "ImageTrainer", "train_image_classification"]
