"""Scores saved causal models: nats a token on the rows of the test set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from reluformers.evaluation.results import Score, ScoredData, checksum
from reluformers.evaluation.scorer import Scorer, ScoringOptions

from ..row_scores import ScoreOfSums
from .measures import token_losses
from .models import GatedLlamaForCausalLM
from .recipe import CausalRecipe
from .rows import load_stream, load_tokenizer, windows

UNITS = 1_000_000  # counts are whole numbers: of nats, millionths


@dataclass(kw_only=True)
class CausalScoring(ScoringOptions):
    """How a causal model is scored.

    Args:
        length: of a row, in tokens.
    """

    length: int = 256

    def __post_init__(self):
        super().__post_init__()
        self.attention_report = False  # the attention is measured at the end of training


class CausalScorer(Scorer):
    """Reads the test set; see `Scorer`."""

    task = CausalRecipe.task
    options_class = CausalScoring
    options: CausalScoring

    @staticmethod
    def recipe_options(recipe: CausalRecipe) -> dict[str, Any]:
        """The length of rows."""
        return {"length": recipe.data.length}

    def load(self) -> ScoredData:
        """The model, and the rows by the tokenizer beside it."""
        folder = Path(self.options.model)
        self.model = open_model(folder)
        file = self.options.data["test"] if isinstance(self.options.data, dict) else self.options.data
        self.rows = windows(load_stream(file, "test", load_tokenizer(folder)), self.options.length)
        return ScoredData(
            split=self.options.split,
            source=self.options.data,
            rows=len(self.rows),
            unit="rows",
            checksum=checksum((row.numpy().tobytes(),) for row in self.rows),
        )

    def answer(self) -> Tensor:
        """Nats of the tokens of each row."""
        self.model.eval()
        return token_losses(self.model, self.rows.to(self.model.device)).cpu()

    def count(self, answers: Tensor) -> dict[str, Any]:
        """Their mean."""
        return {"scores": {"loss": Score(answers.mean().item())}}

    def row_statistics(self, answers: Tensor) -> dict[str, np.ndarray]:
        """Millionths of nats and tokens."""
        nats = (answers.double().sum(1) * UNITS).round().long()
        return {"loss": torch.stack([nats, torch.full_like(nats, answers.shape[1])], dim=1).numpy()}

    @staticmethod
    def scores_of_sums() -> dict[str, ScoreOfSums]:
        """The loss."""
        return {"loss": mean_nats}


def mean_nats(sums: np.ndarray) -> float:
    """Nats a token of sums of millionths of nats and tokens."""
    return float(sums[0] / sums[1] / UNITS)


def open_model(folder: Path) -> PreTrainedModel:
    """A saved model of `models.build_model`."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    is_gated = config.architectures == [GatedLlamaForCausalLM.__name__]
    owner = GatedLlamaForCausalLM if is_gated else AutoModelForCausalLM
    return owner.from_pretrained(folder, local_files_only=True)
