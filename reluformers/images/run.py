"""Training of image classifiers, from a recipe to a folder that opens anywhere."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForImageClassification, BaseImageProcessor, PreTrainedModel, set_seed

from reluformers.conversion.convert import open_processor, open_source
from reluformers.conversion.start import spread_batches, start_model
from reluformers.data.sources import name_in_errors
from reluformers.evaluation.plotting import plot_confusion_matrix
from reluformers.training.recipe import TaskTrainingArguments
from reluformers.training.run import Run, identify_run, open_run, save_run, train_model
from reluformers.training.run_files import CONFUSION_FILE
from reluformers.training.transfer import add_transfer

from .augmentation import ImageCollator
from .loading import check_images, class_names, describe_images, load_image_split
from .processing import build_image_processor
from .recipe import ImageDataSection, ImageRecipe
from .trainer import ImageTrainer

logger = logging.getLogger(__name__)

# A picture of more classes would show nothing.
MOST_DRAWN_CLASSES = 300
_CALIBRATION_BATCH = 16  # In images.


def train_image_classification(
    recipe: ImageRecipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
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
        report: takes lines for the user.

    Returns:
        The content of `results.json`: `validation_accuracy`, `validation_top5_accuracy` (of more than five classes),
        `validation_loss`, the same of the test set, as far as there are such sets, `parameters`, `steps`, the
        `Circumstances` and, unless it was resumed, `training_seconds`.

    Raises:
        ValueError: the recipe, the data, the folder or the checkpoint is not usable; the message says why.
    """
    with open_run(recipe, output_dir, resume, report) as run:
        with run.args.main_process_first(local=False):
            splits = load_splits(recipe.data)
        classes = class_names(splits["train"])
        if len(classes) < 2:  # transformers takes one class for a regression.
            raise ValueError(f"data.train has one class, {classes[0]!r}, but there must be two to tell apart")
        counts = ", ".join(f"{name} {len(split):,}" for name, split in splits.items())
        run.report(f"images of {len(classes)} classes: {counts}")
        if recipe.data.check_images and run.is_first:
            for name, split in splits.items():
                with name_in_errors(f"data.{name}"):
                    check_images(split, run.args.dataloader_num_workers, show_progress=not run.args.disable_tqdm)
        described = {name: splits[name] for name in ("train", "validation") if name in splits}
        rows = {name: {"classes": classes, **describe_images(split)} for name, split in described.items()}
        record = identify_run(run, rows)
        set_seed(run.args.seed)
        model, new_labels = build_model(recipe, splits["train"], run.checkpoint, run.report)
        trainer = build_trainer(recipe, run.args, splits, model, new_labels)
        seconds = train_model(run, trainer, record)
        splits.pop("train")
        return save_run(run, trainer, _score(run, trainer, splits), seconds)


def load_splits(data: ImageDataSection) -> dict[str, Dataset]:
    """Read the splits that a recipe names: `train`, perhaps `validation` and `test`, with the classes of `train`."""
    names: list[str] | None = None

    def load(_name: str, source: Any, split: str) -> Dataset:
        nonlocal names
        columns = {"image_column": data.image_column, "label_column": data.label_column}
        images = load_image_split(source, split, **columns, classes=names)
        names = names or class_names(images)  # The training set comes first and has the classes.
        return images

    return data.read(load)


def build_model(
    recipe: ImageRecipe, train: Dataset, checkpoint: Path | None, report: Callable[[str], None] = logger.info
) -> tuple[PreTrainedModel, dict[str, Any] | None]:
    """A model for the recipe and the classes, and the labels of its head if that is fresh on another body.

    An exchanged attention is fitted on some rows of the training set, unless the run goes on from a checkpoint.
    """
    id2label = dict(enumerate(class_names(train)))
    labels = {"id2label": id2label, "label2id": {name: label for label, name in id2label.items()}}
    if recipe.start is None:
        return AutoModelForImageClassification.from_config(recipe.model_config(**labels)), None
    new_labels = labels if open_source(recipe.start).fields.get("id2label") != id2label else None
    if new_labels:
        report("the classes are others than those of model.start: the head starts anew")
    count = recipe.calibration_rows if checkpoint is None else 0
    batches = spread_batches(train, count, ImageCollator(_processor(recipe)), _CALIBRATION_BATCH)
    options = {**recipe.start_options, **labels}
    return start_model(**options, batches=batches, new_head=new_labels is not None, report=report), new_labels


def _processor(recipe: ImageRecipe) -> BaseImageProcessor:
    """The image processor of the model that the recipe starts from, if it has one, else the usual one."""
    processor = None if recipe.start is None else open_processor(recipe.start, AutoModelForImageClassification)
    return build_image_processor(recipe.model_config()) if processor is None else processor


def build_trainer(
    recipe: ImageRecipe,
    args: TaskTrainingArguments,
    splits: dict[str, Dataset],
    model: PreTrainedModel,
    new_labels: dict[str, Any] | None = None,
) -> ImageTrainer:
    """A trainer with the model's image processor."""
    trainer = ImageTrainer(
        model,
        args,
        train_dataset=splits["train"],
        eval_dataset=splits.get("validation"),
        processing_class=_processor(recipe),
        augmentation=recipe.augmentation,
    )
    add_transfer(trainer, recipe, new_labels)
    return trainer


def _score(run: Run, trainer: ImageTrainer, splits: dict[str, Dataset]) -> dict[str, Any]:
    """Accuracy and loss of every evaluation split."""
    scores: dict[str, Any] = {}
    for name, dataset in splits.items():
        metrics = trainer.evaluate(dataset, metric_key_prefix=name)
        scores |= {f"{name}_{metric}": metrics[f"{name}_{metric}"] for metric in trainer.classified.scores()}
        run.report(f"{name}: accuracy {scores[f'{name}_accuracy']:.2%}, loss {scores[f'{name}_loss']:.3f}")
    classes = list(trainer.model.config.id2label.values())
    if splits and run.is_first and len(classes) <= MOST_DRAWN_CLASSES:
        matrix = trainer.classified.confusion_matrix()
        plot_confusion_matrix(matrix, classes, run.output_dir / CONFUSION_FILE, title=f"{name} set")
    return scores
