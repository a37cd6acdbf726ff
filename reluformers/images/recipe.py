"""Recipes of image classification: their sections and checks."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reluformers.families import vision_config
from reluformers.training.recipe import Recipe, TaskTrainingArguments

from .augmentation import Augmentation


@dataclass
class ImageDataSection:
    """Which labelled images.

    Args:
        path: Hub id of a data set, folder or file; None if `train` and the others are files or folders.
        name: configuration of the data set on the Hub.
        revision: branch, tag or commit on the Hub.
        train, validation, test: with `path`, the name of the split, perhaps with a slice: `train[5000:]`; without it
            a parquet file, a list of them, or a folder with one folder of images for each class. `train` is
            `"train"` by default. Training evaluates on `validation`. At its end it scores the model on `test`,
            which chooses nothing. Both may be missing.
        image_column, label_column: columns of the data set; None means the only column of that type.
        check_images: decode every image before training, to find a broken image then and not hours later.
    """

    path: str | None = None
    name: str | None = None
    revision: str | None = None
    train: str | list[str] | None = None
    validation: str | list[str] | None = None
    test: str | list[str] | None = None
    image_column: str | None = None
    label_column: str | None = None
    check_images: bool = False

    def sources(self) -> dict[str, str | list[str]]:
        """Where each split is that the recipe names."""
        train = "train" if self.train is None and self.path is not None else self.train
        sources = {"train": train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in sources.items() if source is not None}


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
    arguments_class: ClassVar[type[TaskTrainingArguments]] = TaskTrainingArguments
    model_options: ClassVar[tuple[str, ...]] = (*Recipe.model_options, "size")
    decided_fields: ClassVar[Collection[str]] = ("id2label", "label2id", "num_labels")

    model: dict[str, Any] = field(default_factory=dict)
    data: ImageDataSection = field(default_factory=ImageDataSection)
    augmentation: Augmentation = field(default_factory=Augmentation)
    training: dict[str, Any] = field(default_factory=dict)
