"""Scores saved image classifiers: accuracy, and recall and precision of each class."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from tqdm.auto import tqdm

from reluformers.evaluation.plotting import check_picture_path, plot_confusion_matrix
from reluformers.evaluation.results import Checksum, Evaluation, Score, ScoredData
from reluformers.evaluation.scorer import ScoreOfSums, Scorer, ScoringOptions

from .loading import load_image_split
from .recipe import ImageRecipe
from .scoring import Classified, class_results, classify, image_batches, load_image_model, model_classes


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

    task = ImageRecipe.task
    options_class = ImageScoring
    options: ImageScoring

    @staticmethod
    def recipe_options(recipe: ImageRecipe) -> dict[str, Any]:
        """Columns."""
        return {"image_column": recipe.data.image_column, "label_column": recipe.data.label_column}

    def load(self) -> ScoredData:
        """The model first, as its classes number the labels."""
        options = self.options
        self.model, processor = load_image_model(options.model, trust_remote_code=options.trust_remote_code)
        self.names = model_classes(self.model.config)
        columns = {"image_column": options.image_column, "label_column": options.label_column}
        dataset = load_image_split(options.source, options.split, classes=self.names, **columns)
        loading = {"batch_size": options.batch_size, "num_workers": options.num_workers}
        self.batches = image_batches(dataset, processor, **loading)
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

    def row_statistics(self, answers: Classified) -> dict[str, np.ndarray]:
        """Hits and images: 1 or 0, and 1."""
        return {"accuracy": np.stack([answers.hits, np.ones(len(answers.hits))], axis=1).astype(np.int64)}

    @staticmethod
    def scores_of_sums() -> dict[str, ScoreOfSums]:
        """Accuracy."""
        return {"accuracy": lambda sums: float(sums[0] / sums[1])}

    def attention_batches(self) -> Iterable[Mapping[str, Tensor]]:
        """The images again."""
        return self.batches

    def write_files(self, answers: Classified, evaluation: Evaluation) -> None:
        """Draw the confusion matrix."""
        if self.options.confusion_matrix:
            plot_confusion_matrix(answers.confusion_matrix(), self.names, self.options.confusion_matrix)
