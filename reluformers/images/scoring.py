"""Classifies images with a trained model and counts what it gets right."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForImageClassification, PreTrainedConfig, PreTrainedModel

# its home: the short name `transformers.AutoImageProcessor` asks for torchvision in some supported versions
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from reluformers.saved_models import load_model, opening

from .augmentation import ImageCollator

# what is cropped is made somewhat larger before: sides of a processor, in those of the model, and in pixels
_MOST_TIMES, _LEAST_BOUND = 4, 1024
NOWHERE = -1  # class of an image whose logits are not finite


@dataclass(frozen=True)
class Predictions:
    """What a model says of images.

    Args:
        logits: float32 [images, classes].
        labels: true classes, int64 [images].
        loss: mean of the model's own loss over the images, in nats.
    """

    logits: Tensor
    labels: Tensor
    loss: float


def load_image_model(name_or_path: str | Path, *, trust_remote_code: bool = False) -> tuple[PreTrainedModel, Any]:
    """Load an image classifier, in evaluation mode, and its image processor from a folder or the Hub.

    Raises:
        ValueError: the folder, its weights or its processor are missing or damaged, or the processor makes far larger
            images than the model's, which would take memory first.
    """
    model = load_model(AutoModelForImageClassification, name_or_path, trust_remote_code=trust_remote_code)
    with opening(name_or_path, "the image processor"):
        processor = AutoImageProcessor.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    most = max(_LEAST_BOUND, _MOST_TIMES * int(np.max(getattr(model.config, "image_size", 0) or 0)))
    for sizes in (getattr(processor, name, None) for name in ("size", "crop_size", "pad_size")):
        sides = [sizes] if isinstance(sizes, int) else dict(sizes or {}).values()
        if any(side is not None and side > most for side in sides):
            raise ValueError(f"{name_or_path}: its image processor has {sizes}, but at most {most} pixels may be")
    return model, processor


def model_classes(config: PreTrainedConfig) -> list[str]:
    """List the classes of a model, by which `load_image_split` numbers the labels of a data set.

    Raises:
        ValueError: two labels have one name.
    """
    names = [config.id2label[label] for label in range(config.num_labels)]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"the model has several classes {repeated[0]!r}, so that data cannot name one; rename them")
    return names


def image_batches(dataset: Dataset, processor: Any, *, batch_size: int = 64, num_workers: int = 0) -> DataLoader:
    """Turn a split, loaded with the classes of a model, into batches of `ImageCollator` with their files, in order."""
    collator = ImageCollator(processor, keep_files=True)
    return DataLoader(dataset, batch_size, collate_fn=collator, num_workers=num_workers)


def predict(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Any]],
    *,
    progress: bool | None = False,
    see: Callable[[Mapping[str, Any]], None] = lambda batch: None,
) -> Predictions:
    """Run a classifier over batches.

    Args:
        model: it is put in evaluation mode and back.
        batches: dicts with `pixel_values` [batch, channels, height, width] and `labels` int64 [batch].
        progress: whether to show a progress bar; None for where somebody looks at the terminal.
        see: called with each batch, so that nobody has to read the images again.

    Returns:
        Logits and labels in the order of the batches, on the CPU, and the loss.

    Raises:
        ValueError: the model computes NaN or infinite logits.
    """
    logits, labels, loss = [], [], 0.0
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for batch in tqdm(batches, unit=" batches", disable=None if progress is None else not progress):
                see(batch)
                outputs = model(**{name: batch[name].to(model.device) for name in ("pixel_values", "labels")})
                logits.append(outputs.logits.float().cpu())
                labels.append(batch["labels"].cpu())
                loss += float(outputs.loss) * len(logits[-1])
    finally:
        model.train(training)
    predictions = Predictions(torch.cat(logits), torch.cat(labels), loss / sum(map(len, logits)))
    if broken := int((~predictions.logits.isfinite()).any(-1).sum()):
        raise ValueError(f"the model computes NaN or infinite logits for {broken} of {len(predictions.logits)} images")
    return predictions


def top_classes(logits: Tensor, count: int) -> Tensor:
    """Order the classes of the highest logits [images, classes], best first, of equal ones the lower.

    Returns:
        int64 [images, count]; −1 where a logit is not finite.
    """
    top = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :count]
    return top.where(logits.isfinite().all(-1, keepdim=True), NOWHERE)


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> np.ndarray:
    """Count how often each class was taken for which, int64 [true classes, predicted classes], of int64 [images]."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes).numpy()


def evaluate(predictions: Predictions) -> dict[str, float]:
    """Score predictions: `accuracy` and, of more than five classes, `top5_accuracy` (0 to 1), and `loss` (nats)."""
    hits = top_classes(predictions.logits, 5) == predictions.labels.unsqueeze(-1)  # [images, 5]
    scores = {"accuracy": hits[:, 0].double().mean().item()}
    if predictions.logits.shape[-1] > 5:
        scores["top5_accuracy"] = hits.any(1).double().mean().item()
    return {**scores, "loss": predictions.loss}


def class_results(matrix: np.ndarray, names: list[str]) -> dict[str, dict[str, Any]]:
    """Score each class by name from a confusion matrix.

    Args:
        matrix: counts [true classes, predicted classes].
        names: of the classes.

    Returns:
        Class → `images` (their number), `recall`, the share of its images that were found, `precision`, the share of
        right ones among those taken for it (both None where there are no such images), and `predicted_as`, the counts
        of its row, most frequent first.
    """
    classes, taken = {}, matrix.sum(0).tolist()
    for label, (name, row) in enumerate(zip(names, matrix.tolist(), strict=True)):
        images, found = sum(row), row[label]
        predicted = sorted(
            ((names[other], count) for other, count in enumerate(row) if count), key=lambda item: -item[1]
        )
        classes[name] = {
            "images": images,
            "recall": found / images if images else None,
            "precision": found / taken[label] if taken[label] else None,
            "predicted_as": dict(predicted),
        }
    return classes
