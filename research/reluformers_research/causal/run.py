"""Training runs of causal models."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from reluformers.modeling.regularization import ENTROPY, NORMALIZATION, ROWS, RowStatistics, regularizer_sums
from reluformers.training.meter import median_speed
from reluformers.training.run import TaskRun
from reluformers.training.trainer import TaskTrainer

from .measures import measure_model, token_losses
from .models import build_model
from .recipe import CausalRecipe
from .rows import as_dataset, load_stream, load_tokenizer, windows

logger = logging.getLogger(__name__)


def train_causal(
    recipe: CausalRecipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
    report: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Train a causal model, measure it on the validation set and save it.

    Args:
        recipe, output_dir, resume, report: as of `train_translation`.

    Returns:
        The content of `results.json`: `validation_loss`, the table of `measures`, speed, parameters, steps.

    Raises:
        ValueError: the recipe, the data, the folder or the checkpoint is not usable.
    """
    return _CausalRun(recipe, output_dir, report).run(resume)


class CausalTrainer(TaskTrainer):
    """`Trainer` for rows of tokens, with ReLUFormer's regulariser in the loss where the recipe has one."""

    def __init__(self, *arguments: Any, loss_weights: dict[str, float], **options: Any):
        self.loss_weights = loss_weights
        super().__init__(*arguments, data_collator=_collate, **options)

    @staticmethod
    def count(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`tokens`."""
        tokens = inputs["input_ids"]
        return {"tokens": tokens.new_full((), tokens.numel(), dtype=torch.float32)}

    def measure(self, dataset: Dataset, **options: Any) -> dict[str, float]:
        """`loss` in nats a token."""
        rows = dataset["input_ids"][:].to(self.args.device)
        return {"loss": token_losses(self.model, rows).mean().item()}

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The model's loss, and the regulariser (ReLUFormer, eq. 7) of its weights."""
        weights = self.loss_weights
        if not (model.training and (weights["normalization_loss_weight"] or weights["entropy_loss_weight"])):
            return super().compute_loss(model, inputs, return_outputs, **options)
        loss, outputs = super().compute_loss(model, {**inputs, "output_attentions": True}, True, **options)
        regularization = regularization_loss(outputs.attentions, **weights)
        self.statistics = {"regularization_loss": regularization.detach()}
        return (loss + regularization, outputs) if return_outputs else loss + regularization


def regularization_loss(
    attentions: tuple[Tensor, ...], normalization_loss_weight: float, entropy_loss_weight: float, entropy_bound: float
) -> Tensor:
    """ReLUFormer's regulariser of causal weights [batch, heads, length, length] of all layers, a mean over rows."""
    length = attentions[0].shape[-1]
    counts = torch.arange(1, length + 1, device=attentions[0].device)[:, None]
    sums = sum(regularizer_sums(RowStatistics.of(layer, "all"), counts, None, entropy_bound) for layer in attentions)
    means = sums / sums[ROWS]
    return normalization_loss_weight * means[NORMALIZATION] + entropy_loss_weight * means[ENTROPY]


def _collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    tokens = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": tokens, "labels": tokens}


class _CausalRun(TaskRun):
    """What is peculiar to causal models: rows of text, an exchanged attention, measures at several lengths."""

    recipe: CausalRecipe

    def prepare(self, checkpoint: Path | None) -> None:
        """Rows of both splits."""
        data = self.recipe.data
        if data.train is None:
            raise ValueError("data.train is not given; add data.train=train.parquet of the text")
        self.tokenizer = load_tokenizer(Path(data.train).parent)
        self.train = as_dataset(windows(load_stream(data.train, "train", self.tokenizer, shuffled=True), data.length))
        self.held_out = load_stream(data.validation, "validation", self.tokenizer, shuffled=True)
        self.validation = as_dataset(windows(self.held_out, data.length))
        self.report(f"rows of {data.length} tokens: train {len(self.train):,}, validation {len(self.validation):,}")

    def build_model(self, checkpoint: Path | None) -> PreTrainedModel:
        """A fresh Llama with the recipe's attention."""
        return build_model(self.recipe.model_config(vocab_size=self.tokenizer.get_vocab_size()), self.recipe.attention)

    def build_trainer(self, model: PreTrainedModel) -> CausalTrainer:
        """The trainer of rows."""
        return CausalTrainer(
            model,
            self.args,
            train_dataset=self.train,
            eval_dataset=self.validation,
            loss_weights=self.recipe.loss_weights,
        )

    def describe_data(self) -> dict[str, dict[str, Any]]:
        """How many rows there are, and their fingerprints."""
        splits = {"train": self.train, "validation": self.validation}
        return {name: {"rows": len(rows), "sum": int(rows["input_ids"][:].sum())} for name, rows in splits.items()}

    def evaluate(self, trainer: CausalTrainer) -> dict[str, Any]:
        """The measures of the table."""
        self.tokenizer.save(str(self.output_dir / "tokenizer.json"))
        results: dict[str, Any] = {"validation_loss": trainer.evaluate()["eval_loss"]}
        if speed := median_speed(trainer.state.log_history, ("tokens_per_second",)):
            results["tokens_per_second"] = speed
        results |= measure_model(trainer.model, self.held_out, self.recipe.data.length)
        self.report(f"validation: loss {results['validation_loss']:.3f}, sinks {results['sink_rate']:.0%}")
        return results
