"""Classifies images with a trained model and counts what it gets right."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForImageClassification, PreTrainedConfig, PreTrainedModel

# its home: the short name `transformers.AutoImageProcessor` asks for torchvision in some supported versions
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from reluformers.saved_models import load_model, opening

from .processing import decode_image

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
    """Load an image classifier and its image processor.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
        trust_remote_code: whether to run code of the repository, for models that are not in this library.

    Returns:
        The model in evaluation mode, and the processor.

    Raises:
        ValueError: the folder, its weights or its processor are missing or damaged, the model takes no RGB, or the
            processor makes far larger images than the model's.
    """
    model = load_model(AutoModelForImageClassification, name_or_path, trust_remote_code=trust_remote_code)
    channels = getattr(model.config, "num_channels", 3)
    if channels != 3:
        raise ValueError(f"{name_or_path}: the model takes {channels} channels, but images are read as RGB.")
    with opening(name_or_path, "the image processor"):
        processor = AutoImageProcessor.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
        _check_sides(processor, model.config)
        processor(images=Image.new("RGB", (16, 16)), return_tensors="pt")["pixel_values"]
    return model, processor


def _check_sides(processor: Any, config: PreTrainedConfig) -> None:
    """Refuse a processor that makes images far larger than the model's, before they take memory."""
    most = max(_LEAST_BOUND, _MOST_TIMES * int(np.max(getattr(config, "image_size", 0) or 0)))
    for name in ("size", "crop_size", "pad_size"):
        sides = getattr(processor, name, None) or {}
        for side in dict(sides).values() if not isinstance(sides, int) else [sides]:
            if side is not None and (not isinstance(side, int) or side > most):
                raise ValueError(
                    f"{name} of preprocessor_config.json is {side!r:.60}, but must be at most {most} pixels"
                )


def model_classes(config: PreTrainedConfig) -> list[str]:
    """List the classes of a model, as `load_image_split` takes them to number the labels of a data set by name.

    Args:
        config: configuration of an image classifier.

    Returns:
        The name of each label.

    Raises:
        ValueError: two labels have one name.
    """
    names = [config.id2label[label] for label in range(config.num_labels)]
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise ValueError(f"the model has several classes {repeated!r}, so that data cannot name one; rename them")
    return names


def image_batches(dataset: Dataset, processor: Any, *, batch_size: int = 64, num_workers: int = 0) -> DataLoader:
    """Turn a split into batches for a model, in the order of its rows.

    Args:
        dataset: of `load_image_split`, loaded with the classes of the model (`model_classes`).
        processor: image processor of the model.
        batch_size: images of a batch.
        num_workers: processes that decode images; 0 = this one.

    Returns:
        Loader of dicts with `pixel_values` float32 [batch, channels, height, width] and `labels` int64 [batch].

    Raises:
        ValueError: while iterating, an image cannot be decoded.
    """
    return DataLoader(dataset, batch_size, collate_fn=partial(_collate, processor), num_workers=num_workers)


def _collate(processor: Any, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """One batch, by the processor itself, which may be of any kind."""
    pictures = [decode_image(row["image"], row["place"]) for row in rows]
    pixel_values = processor(images=pictures, return_tensors="pt")["pixel_values"]
    return {"pixel_values": pixel_values, "labels": torch.tensor([row["label"] for row in rows])}


def predict(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, progress: bool | None = False
) -> Predictions:
    """Run a classifier over batches.

    Args:
        model: it is put in evaluation mode and back.
        batches: dicts with `pixel_values` [batch, channels, height, width] and `labels` int64 [batch].
        progress: whether to show a progress bar; None for where somebody looks at the terminal.

    Returns:
        Logits and labels in the order of the batches, on the CPU, and the loss.

    Raises:
        ValueError: there are no batches, a label is that of no class, or the model computes NaN or infinite logits.
    """
    logits, labels, loss = [], [], 0.0
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for batch in tqdm(batches, unit=" batches", disable=None if progress is None else not progress):
                given, classes = batch["labels"], model.config.num_labels
                if len(wrong := given[(given < 0) | (given >= classes)]):
                    raise ValueError(f"the label {wrong[0]} is none of the model's, from 0 to {classes - 1}")
                outputs = model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
                logits.append(outputs.logits.float().cpu())
                labels.append(given.cpu())
                loss += float(outputs.loss) * len(logits[-1])
    finally:
        model.train(training)
    if not logits:
        raise ValueError("there are no images to classify")
    predictions = Predictions(torch.cat(logits), torch.cat(labels), loss / sum(map(len, logits)))
    broken = int((~predictions.logits.isfinite()).any(-1).sum())
    if broken:
        raise ValueError(f"the model computes NaN or infinite logits for {broken} of {len(predictions.logits)} images")
    return predictions


def top_classes(logits: Tensor, count: int) -> Tensor:
    """The classes of the highest logits [images, classes], best first, of equal ones the lower: int64 [images, count].

    They are −1 where a logit is not finite.
    """
    top = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :count]
    return top.where(logits.isfinite().all(-1, keepdim=True), NOWHERE)


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> np.ndarray:
    """Count how often each class was taken for which.

    Args:
        predicted: classes int64 [images].
        labels: true classes int64 [images].
        classes: number of classes.

    Returns:
        Counts int64 [true classes, predicted classes].
    """
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes).numpy()


def evaluate(predictions: Predictions) -> dict[str, Any]:
    """Score predictions.

    Args:
        predictions: of `predict`.

    Returns:
        `images` (their number), `accuracy` and `top5_accuracy` (0 to 1; None where there are five classes or fewer),
        `loss` (nats), `confusion_matrix` (int64 [true classes, predicted classes]), and for each class `recall`, the
        share of its images that were found, and `precision`, the share of right ones among those taken for it; None
        where there are no such images.
    """
    logits, labels = predictions.logits, predictions.labels
    classes = logits.shape[-1]
    hits = top_classes(logits, 5) == labels.unsqueeze(-1)  # [images, 5]
    matrix = confusion_matrix(logits.argmax(-1), labels, classes)
    return {
        "images": len(labels),
        "accuracy": hits[:, 0].double().mean().item(),
        "top5_accuracy": hits.any(1).double().mean().item() if classes > 5 else None,
        "loss": predictions.loss,
        "confusion_matrix": matrix,
        "recall": _shares(matrix.diagonal(), matrix.sum(1)),
        "precision": _shares(matrix.diagonal(), matrix.sum(0)),
    }


def _shares(parts: np.ndarray, wholes: np.ndarray) -> list[float | None]:
    return [part / whole if whole else None for part, whole in zip(parts.tolist(), wholes.tolist(), strict=True)]
