"""Scores image classifiers: classes of images, accuracy, and recall and precision of each class."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForImageClassification, PreTrainedConfig, PreTrainedModel

# It is imported from its module: some supported versions ask for torchvision behind the short name.
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from reluformers.evaluation.plotting import check_picture_path, plot_confusion_matrix
from reluformers.evaluation.results import Checksum, Evaluation, Score, ScoredData
from reluformers.evaluation.scorer import Scorer, ScoringOptions
from reluformers.saved_models import load_model

from .augmentation import ImageCollator
from .loading import load_image_split

TOP = 5  # So many classes of each image are kept.
NOWHERE = -1  # An image whose logits are not finite has this class.


def load_image_model(name_or_path: str | Path, *, trust_remote_code: bool = False) -> tuple[PreTrainedModel, Any]:
    """Load an image classifier, in evaluation mode, and its image processor from a folder or the Hub."""
    model = load_model(AutoModelForImageClassification, name_or_path, trust_remote_code=trust_remote_code)
    return model, AutoImageProcessor.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)


def model_classes(config: PreTrainedConfig) -> list[str]:
    """List the classes of a model, by which `load_image_split` numbers the labels of a data set."""
    names = [config.id2label[label] for label in range(config.num_labels)]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"the model has several classes {repeated[0]!r}, so that data cannot name one; rename them")
    return names


def image_batches(dataset: Dataset, processor: Any, *, batch_size: int = 64, num_workers: int = 0) -> DataLoader:
    """Turn a split, loaded with the classes of a model, into batches of `ImageCollator` with their files, in order."""
    collator = ImageCollator(processor, keep_files=True)
    return DataLoader(dataset, batch_size, collate_fn=collator, num_workers=num_workers)


@dataclass(frozen=True)
class Classified:
    """What a model says of the images of a data set.

    Args:
        loss: mean of the model's own loss, in nats.
        top: the classes with the highest logits, as `top_classes` orders them, int64 [images, min(5, classes)].
        labels: true classes, int64 [images].
        classes: how many there are.
    """

    loss: float
    top: np.ndarray
    labels: np.ndarray
    classes: int

    @property
    def hits(self) -> np.ndarray:
        """Whether the most likely class is the true one, bool [images]."""
        return self.top[:, 0] == self.labels

    def scores(self) -> dict[str, float]:
        """`accuracy` and, of more than five classes, `top5_accuracy` (0 to 1), and `loss` (nats)."""
        scores = {"accuracy": float(self.hits.mean())}
        if self.classes > TOP:
            scores["top5_accuracy"] = float((self.top == self.labels[:, None]).any(1).mean())
        return {**scores, "loss": self.loss}

    def confusion_matrix(self) -> np.ndarray:
        """Counts int64 [true classes, predicted classes], without images whose logits are not finite."""
        known = self.top[:, 0] != NOWHERE
        matrix = np.zeros((self.classes, self.classes), dtype=np.int64)
        np.add.at(matrix, (self.labels[known], self.top[known, 0]), 1)
        return matrix


@torch.no_grad()
def classify(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Any]], gather: Callable[[list], list] = list
) -> Classified:
    """Run a classifier, in evaluation mode, over batches.

    Args:
        model: its loss is a mean over images.
        batches: dicts with `pixel_values` [batch, channels, height, width] and `labels` int64 [batch].
        gather: gives the parts of all processes for those of this one; these alone by default.
    """
    parts = []
    for batch in batches:
        outputs = model(**{name: batch[name].to(model.device) for name in ("pixel_values", "labels")})
        logits = outputs.logits.float()
        labels = batch["labels"].cpu().numpy()
        parts.append((float(outputs.loss) * len(labels), top_classes(logits).cpu().numpy(), labels))
    losses, tops, labels = zip(*gather(parts), strict=True)
    labels = np.concatenate(labels)
    return Classified(sum(losses) / len(labels), np.concatenate(tops), labels, model.config.num_labels)


def top_classes(logits: Tensor) -> Tensor:
    """Order the classes of the highest logits [images, classes], best first, of equal ones the lower.

    Returns:
        int64 [images, min(5, classes)]; −1 where a logit is not finite.
    """
    top = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :TOP]
    return top.where(logits.isfinite().all(-1, keepdim=True), NOWHERE)


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
    classes = {}
    for label, name in enumerate(names):
        row = matrix[label]
        correct = int(matrix[label, label])
        images = int(row.sum())
        taken = int(matrix[:, label].sum())
        order = [other for other in np.argsort(-row, kind="stable") if row[other]]
        classes[name] = {
            "images": images,
            "recall": correct / images if images else None,
            "precision": correct / taken if taken else None,
            "predicted_as": {names[other]: int(row[other]) for other in order},
        }
    return classes


@dataclass(kw_only=True)
class ImageScoring(ScoringOptions):
    """How an image classifier is scored, beside what all models need.

    Args:
        image_column: column of the images, if several columns hold images.
        label_column: column of the classes, if several columns hold classes.
        batch_size: images in a batch.
        num_workers: processes that decode images; with 0, the main process decodes them.
        confusion_matrix: picture of the predicted class of each true class, .png or .svg.
    """

    image_column: str | None = None
    label_column: str | None = None
    batch_size: int = 64
    num_workers: int = 0
    confusion_matrix: str | None = None

    written: ClassVar[tuple[str, ...]] = ("output", "confusion_matrix")

    def __post_init__(self):
        super().__post_init__()
        if self.confusion_matrix:
            check_picture_path(self.confusion_matrix)


class ImageScorer(Scorer):
    """Classifies a split and compares with its labels; see `Scorer`."""

    task = "image-classification"
    options_class = ImageScoring
    options: ImageScoring

    def load(self) -> ScoredData:
        """The model first, as its classes number the labels."""
        options = self.options
        self.model, processor = load_image_model(options.model, trust_remote_code=options.trust_remote_code)
        self.names = model_classes(self.model.config)
        columns = {"image_column": options.image_column, "label_column": options.label_column}
        dataset = load_image_split(options.source, options.split, classes=self.names, **columns)
        self.batches = image_batches(
            dataset, processor, batch_size=options.batch_size, num_workers=options.num_workers
        )
        self.data = ScoredData(options.split, options.data, options.data_config, rows=len(dataset), unit="images")
        return self.data

    def answer(self) -> Classified:
        """The classes of all images, whose checksum is taken as they pass."""
        checksum = Checksum()

        def passing() -> Iterator[Mapping[str, Any]]:
            for batch in tqdm(self.batches, unit=" batches", disable=None):
                for file, label in zip(batch["files"], batch["labels"].tolist(), strict=True):
                    checksum.add(file, self.names[label].encode())
                yield batch

        answers = classify(self.model, passing())
        self.data.checksum = str(checksum)
        return answers

    def count(self, answers: Classified) -> dict[str, Any]:
        """Accuracies and loss, and the scores of each class by name."""
        scores = {name: Score(value) for name, value in answers.scores().items()}
        return {"scores": scores, "classes": class_results(answers.confusion_matrix(), self.names)}

    def attention_batches(self) -> Iterable[Mapping[str, Tensor]]:
        """The images again, and their labels."""
        for batch in self.batches:
            yield {name: batch[name] for name in ("pixel_values", "labels")}

    def write_files(self, answers: Classified, evaluation: Evaluation) -> None:
        """Draw the confusion matrix."""
        if self.options.confusion_matrix:
            plot_confusion_matrix(answers.confusion_matrix(), self.names, self.options.confusion_matrix)
