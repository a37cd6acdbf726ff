"""Training runs of causal models."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import default_data_collator, set_seed

from reluformers.modeling.regularization import RowStatistics, SiteRows, regularizer_sums
from reluformers.training.callbacks import median_speed
from reluformers.training.run import identify_run, open_run, save_run, train_model
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
    data = recipe.data
    with open_run(recipe, output_dir, resume, report) as run:
        if data.train is None:
            raise ValueError("data.train is not given; add data.train=train.parquet of the text")
        with run.args.main_process_first(local=False):
            tokenizer = load_tokenizer(Path(data.train).parent)
            training = as_dataset(windows(load_stream(data.train, "train", tokenizer, shuffled=True), data.length))
            held_out = load_stream(data.validation, "validation", tokenizer, shuffled=True)
            validation = as_dataset(windows(held_out, data.length))
        run.report(f"rows of {data.length} tokens: train {len(training):,}, validation {len(validation):,}")
        splits = {"train": training, "validation": validation}
        sums = {name: {"rows": len(rows), "sum": int(rows["input_ids"][:].sum())} for name, rows in splits.items()}
        record = identify_run(run, sums)
        set_seed(run.args.seed)
        model = build_model(recipe.model_config(vocab_size=tokenizer.get_vocab_size()), recipe.attention)
        trainer = CausalTrainer(
            model, run.args, train_dataset=training, eval_dataset=validation, loss_weights=recipe.loss_weights
        )
        seconds = train_model(run, trainer, record)
        tokenizer.save(str(run.output_dir / "tokenizer.json"))
        scores: dict[str, Any] = {"validation_loss": trainer.evaluate()["eval_loss"]}
        if speed := median_speed(trainer.state.log_history, ("tokens_per_second",)):
            scores["tokens_per_second"] = speed
        scores |= measure_model(trainer.model, held_out, data.length)
        run.report(f"validation: loss {scores['validation_loss']:.3f}, sinks {scores['sink_rate']:.0%}")
        return save_run(run, trainer, scores, seconds)


class CausalTrainer(TaskTrainer):
    """`Trainer` for rows of tokens, with ReLUFormer's regulariser in the loss where the recipe has one."""

    def __init__(self, *arguments: Any, loss_weights: dict[str, float], **options: Any):
        self.loss_weights = loss_weights
        super().__init__(*arguments, data_collator=default_data_collator, count=_count, **options)

    def measure(self, dataloader: DataLoader) -> tuple[dict[str, float], int]:
        """`loss` in nats a token."""
        rows = dataloader.dataset["input_ids"][:].to(self.args.device)
        return {"loss": token_losses(self.model, rows).mean().item()}, len(rows)

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
    layers = [RowStatistics.of(layer, "all") for layer in attentions]
    normalization, entropy_excess, _, number = regularizer_sums([SiteRows(layers, counts, None)], entropy_bound)
    return (normalization_loss_weight * normalization + entropy_loss_weight * entropy_excess) / number


def _count(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tokens` of a batch."""
    tokens = inputs["input_ids"]
    return {"tokens": tokens.new_full((), tokens.numel(), dtype=torch.float32)}
