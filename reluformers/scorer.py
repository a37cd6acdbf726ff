"""How a saved model is scored, whatever its task: load, answer, count, measure the attention."""

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .analysis.attention_report import attention_report
from .analysis.model_analysis import Side
from .circumstances import current_circumstances
from .errors import UserError
from .files import parse_yaml
from .results import Evaluation, Score, ScoredData
from .training.recipe import Recipe

# sums of all columns over the rows → score
ScoreOfSums = Callable[[np.ndarray], float]


@dataclass
class Scores:
    """What a task counts of a model's answers.

    Args:
        scores: name of `results.METRICS` → score.
        decoding: options of the search, where there was one.
        classes: of a classifier, what `Evaluation.classes` holds.
    """

    scores: dict[str, Score]
    decoding: dict[str, Any] = field(default_factory=dict)
    classes: dict[str, dict[str, Any]] | None = None


class Scorer(ABC):
    """Scores one saved model on one split.

    Args:
        options: of the command line: `task`, `model`, `data`, `data_config`, `data_revision`, `split`,
            `attention_report`, `output`, `trust_remote_code`, and those of the task's own `add_arguments`.

    Raises:
        UserError: an option has a value that is not allowed.
    """

    model: PreTrainedModel

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.check_options()

    @staticmethod
    @abstractmethod
    def add_data_arguments(group: argparse._ActionsContainer) -> None:
        """Add the options that say what the rows are and how they are batched."""

    @classmethod
    @abstractmethod
    def add_arguments(cls, group: argparse._ActionsContainer) -> None:
        """Add all options that this task has beside the common ones."""

    @classmethod
    def default_options(cls) -> dict[str, Any]:
        """Name → default of the options that are the task's own."""
        parser = argparse.ArgumentParser(add_help=False)
        cls.add_arguments(parser)
        return vars(parser.parse_args([]))

    @staticmethod
    @abstractmethod
    def recipe_options(recipe: Recipe) -> dict[str, Any]:
        """Options by which a model is scored as its recipe says, beside those of where the rows are."""

    @abstractmethod
    def check_options(self) -> None:
        """Refuse what would fail only after the work."""

    @abstractmethod
    def load(self) -> ScoredData:
        """Load the model, put it into `self.model`, and the rows; say which these are."""

    @abstractmethod
    def answer(self) -> Any:
        """Let the model answer all rows; this is what is timed."""

    @abstractmethod
    def count(self, answers: Any) -> Scores:
        """Score the answers."""

    @abstractmethod
    def row_statistics(self, answers: Any) -> dict[str, np.ndarray]:
        """What metrics count of each row [rows, columns], so that any selection of rows can be scored by its sums."""

    @staticmethod
    @abstractmethod
    def scores_of_sums() -> dict[str, ScoreOfSums]:
        """Metrics, the main one first, as functions of the sums of their `row_statistics` over rows."""

    @abstractmethod
    def attention_batches(self) -> Iterable[Mapping[str, Tensor]]:
        """The rows as `attention_report` takes them."""

    def sides(self) -> Sequence[Side]:
        """Tokenizers and texts of source and target; none of a task without texts."""
        return ()

    @abstractmethod
    def write_files(self, answers: Any, evaluation: Evaluation) -> None:
        """Write what the options ask for beside the record."""

    def further_lines(self, evaluation: Evaluation) -> list[str]:
        """What the command prints below the scores."""
        return []

    @property
    def source(self) -> str | dict[str, str]:
        """Where the rows are, as the tasks' loaders take it."""
        options = {"name": self.options.data_config, "revision": self.options.data_revision}
        if all(value is None for value in options.values()):
            return self.options.data
        return {"path": self.options.data, **options}

    def run(self) -> Evaluation:
        """Score the model.

        Raises:
            UserError: model or data cannot be loaded, or do not fit each other.
        """
        data = self.load()
        self.model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
        started = time.perf_counter()
        self.answers = answers = self.answer()
        seconds = time.perf_counter() - started
        scores = self.count(answers)
        evaluation = Evaluation(
            task=self.options.task,
            model=str(self.options.model),
            data=data,
            scores=scores.scores,
            decoding=scores.decoding,
            seconds=round(seconds, 3),
            classes=scores.classes,
            circumstances=current_circumstances(self.model.device, seed=_training_seed(self.options.model)),
        )
        if self.options.attention_report:
            evaluation.attention = attention_report(self.model, self.attention_batches())
        self.write_files(answers, evaluation)
        return evaluation


def check_at_least(options: argparse.Namespace, **least: float) -> None:
    """Refuse options below a bound.

    Raises:
        UserError: one is; names it.
    """
    for name, bound in least.items():
        if vars(options)[name] < bound:
            raise UserError(f"{name} must be at least {bound}, got {vars(options)[name]}")


def _training_seed(model: str | Path) -> int | None:
    """The seed in the recipe beside a model, if there is one."""
    path = Path(model, "recipe.yaml")
    try:
        training = (parse_yaml(path.read_text(encoding="utf-8")) or {}).get("training") if path.is_file() else None
    except (OSError, ValueError, AttributeError):
        return None  # whoever needs the recipe says what is wrong with it
    seed = training.get("seed") if isinstance(training, dict) else None
    return seed if isinstance(seed, int) else None
