"""Recipes of image classification: their sections and checks."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reluformers.data.sources import DataSection
from reluformers.families import vision_config
from reluformers.training.recipe import Recipe

from .augmentation import Augmentation


@dataclass
class ImageDataSection(DataSection):
    """Which labelled images; `validation` may stay None.

    Args:
        image_column, label_column: columns of the data set; None means the only column of that type.
        check_images: decode every image before training, to find a broken image then and not hours later.
    """

    image_column: str | None = None
    label_column: str | None = None
    check_images: bool = False


@dataclass
class ImageRecipe(Recipe):
    """Everything that defines the training of an image classifier.

    Args:
        model: `preset` (a name of `ATTENTION_PRESETS`, "softmax" if missing), `size` (a name of `VISION_SIZES`) and
            fields of its configuration class.
        data, augmentation: see the sections.
        training: fields of `TaskTrainingArguments`, all but `output_dir`.
    """

    task: ClassVar[str] = "image-classification"
    make_config = staticmethod(vision_config)
    model_options: ClassVar[tuple[str, ...]] = (*Recipe.model_options, "size")
    decided_fields: ClassVar[Collection[str]] = ("id2label", "label2id", "num_labels")

    model: dict[str, Any] = field(default_factory=dict)
    data: ImageDataSection = field(default_factory=ImageDataSection)
    augmentation: Augmentation = field(default_factory=Augmentation)
    training: dict[str, Any] = field(default_factory=dict)
