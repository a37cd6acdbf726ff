"""Training runs of image classifiers."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForImageClassification, PreTrainedModel, ViTImageProcessorPil

from reluformers.conversion.convert import open_processor
from reluformers.conversion.start import open_start, spread_batches, start_model
from reluformers.data.sources import check_apart, naming
from reluformers.evaluation.plotting import plot_confusion_matrix
from reluformers.training.dry_run import estimate
from reluformers.training.meter import median_speed
from reluformers.training.run import TaskRun

from .augmentation import ImageCollator
from .batches import check_images
from .loading import class_names, describe_images, load_image_split
from .processing import build_image_processor
from .recipe import ImageDataSection, ImageRecipe
from .trainer import ImageTrainer

logger = logging.getLogger(__name__)

CONFUSION_FILE = "confusion_matrix.png"
# a picture of more would show nothing
MOST_DRAWN_CLASSES = 300
_CALIBRATION_BATCH = 16  # images


def train_image_classification(
    recipe: ImageRecipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
    dry_run: bool = False,
    report: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Train an image classifier, evaluate it and save everything that belongs to it.

    Under `accelerate launch` or `torchrun` every process calls this; the first one writes and reports.

    Args:
        recipe: what to train on what; it stays as it is.
        output_dir: folder for checkpoints and, at the end, the model, image processor, `recipe.yaml`,
            `log_history.json`, `results.json`, `curves.png` and `confusion_matrix.png` (of the test set, else of the
            validation set).
        resume: None for a fresh run, `"last"`, `"auto"` or a checkpoint's path: see `checkpoint_to_resume`.
        dry_run: write nothing, and return what the run would take: see `training.dry_run.estimate`.
        report: takes lines for the user.

    Returns:
        The content of `results.json`: `validation_accuracy`, `validation_top5_accuracy` (of more than five classes),
        `validation_loss`, the same of the test set, as far as there are such sets, `images_per_second` of training
        (median of the log), `parameters`, `steps`, the `Circumstances` and, unless it was resumed, `training_seconds`.

    Raises:
        ValueError: the recipe, the data, the folder or the checkpoint is not usable; the message says why.
    """
    if dry_run:
        return estimate(_ImageRun, recipe, report)
    return _ImageRun(recipe, output_dir, report).run(resume)


def load_splits(data: ImageDataSection) -> dict[str, Dataset]:
    """Read the splits that a recipe names: `train`, perhaps `validation` and `test`, with the classes of `train`.

    Raises:
        ValueError: the recipe does not say where the training set is, a split cannot be read, has other classes or
            shares rows with the training set.
    """
    sources = data.sources()
    if "train" not in sources:
        raise ValueError("data.train is not given; add data.train=FILE_OR_FOLDER, or data.path=HUB_ID_OR_FOLDER")
    check_apart(data.path, sources)
    location = {name: getattr(data, name) for name in ("path", "name", "revision") if getattr(data, name) is not None}
    splits: dict[str, Dataset] = {}
    for name, source in sources.items():
        where = (location, source) if data.path is not None else ({name: source}, name)
        with naming(f"data.{name}"):
            splits[name] = load_image_split(
                *where,
                image_column=data.image_column,
                label_column=data.label_column,
                classes=class_names(splits["train"]) if splits else None,
            )
    return splits


class _ImageRun(TaskRun):
    """What is peculiar to images: classes, the image processor, accuracy."""

    recipe: ImageRecipe

    def prepare(self, checkpoint: Path | None) -> None:
        """Splits and the names of their classes."""
        splits = load_splits(self.recipe.data)
        self.classes = class_names(splits["train"])
        if len(self.classes) < 2:
            raise ValueError(f"data.train has one class, {self.classes[0]!r}, but there must be two to tell apart")
        counts = ", ".join(f"{name} {len(split):,}" for name, split in splits.items())
        self.report(f"images of {len(self.classes)} classes: {counts}")
        best = (self.args.metric_for_best_model or "").removeprefix("eval_")
        if best == "top5_accuracy" and len(self.classes) <= 5:
            raise ValueError(
                f"training.metric_for_best_model is {best}, which {len(self.classes)} classes do not have"
            )
        if self.recipe.data.check_images and self.args.process_index == 0:
            for name, split in splits.items():
                with naming(f"data.{name}"):
                    check_images(split, self.args.dataloader_num_workers, show_progress=not self.args.disable_tqdm)
        self.train, self.evaluation = splits.pop("train"), splits

    def build_model(self, checkpoint: Path | None) -> PreTrainedModel:
        """A model for the recipe and the classes."""
        id2label = dict(enumerate(self.classes))
        label2id = {name: label for label, name in id2label.items()}
        if self.recipe.start is not None:
            return self._start_model(checkpoint, {"id2label": id2label, "label2id": label2id})
        return AutoModelForImageClassification.from_config(
            self.recipe.model_config(id2label=id2label, label2id=label2id)
        )

    def _start_model(self, checkpoint: Path | None, labels: dict[str, dict]) -> PreTrainedModel:
        """The model that the recipe starts from, with a fresh head for other classes than its own."""
        self.has_new_head = open_start(self.recipe.start).fields.get("id2label") != labels["id2label"]
        if self.has_new_head:
            self.report("the classes are others than those of model.start: the head starts anew")
        count = self.recipe.calibration_rows if checkpoint is None else 0
        batches = spread_batches(self.train, count, ImageCollator(self._processor()), _CALIBRATION_BATCH)
        options = {**self.recipe.start_options, **labels}
        return start_model(**options, batches=batches, new_head=self.has_new_head, report=self.report)

    def _processor(self) -> ViTImageProcessorPil:
        """The image processor of the model that the recipe starts from, if it has one, else the usual one."""
        processor = None if self.recipe.start is None else open_processor(open_start(self.recipe.start))
        return build_image_processor(self.recipe.model_config()) if processor is None else processor

    def build_trainer(self, model: PreTrainedModel) -> ImageTrainer:
        """A trainer with the model's image processor."""
        return ImageTrainer(
            model,
            self.args,
            train_dataset=self.train,
            eval_dataset=self.evaluation.get("validation"),
            processing_class=self._processor(),
            augmentation=self.recipe.augmentation,
        )

    def describe_data(self) -> dict[str, dict[str, Any]]:
        """Classes, labels and a sample of the images."""
        splits = {"train": self.train, "validation": self.evaluation.get("validation")}
        return {
            name: {"classes": self.classes, **describe_images(split)}
            for name, split in splits.items()
            if split is not None
        }

    def evaluate(self, trainer: ImageTrainer) -> dict[str, Any]:
        """Accuracy and loss of every evaluation split, and the speed of training."""
        results: dict[str, Any] = {}
        if speed := median_speed(trainer.state.log_history, ("images_per_second",)):
            results["images_per_second"] = speed
        for name, dataset in self.evaluation.items():
            metrics = trainer.evaluate(dataset, metric_key_prefix=name)
            keys = (f"{name}_{metric}" for metric in ("accuracy", "top5_accuracy", "loss"))
            results |= {key: metrics[key] for key in keys if key in metrics}
            self.report(f"{name}: accuracy {results[f'{name}_accuracy']:.2%}, loss {results[f'{name}_loss']:.3f}")
        if self.evaluation and trainer.is_world_process_zero() and len(self.classes) <= MOST_DRAWN_CLASSES:
            matrix = trainer.classified.confusion_matrix(len(self.classes))
            plot_confusion_matrix(matrix, self.classes, self.output_dir / CONFUSION_FILE, title=f"{name} set")
        return results
