"""Statistics of the attention in everybody's own training run, beside the loss in the log of `Trainer`."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel, TrainerCallback

from reluformers.data.batching import IGNORED_LABEL
from reluformers.evaluation.attention_report import count_rows, summarize
from reluformers.evaluation.observation import Rows
from reluformers.modeling.attention_interface import InterfaceAttention, read_call
from reluformers.modeling.modeling_exchanged import ExchangeableAttention

if TYPE_CHECKING:
    from transformers import Trainer

_ARGUMENTS = ("module", "query", "key", "value", "attention_mask")


class AttentionStatistics(TrainerCallback):
    """Log how sparse the attention of a model of transformers is, wherever its `Trainer` logs the loss.

    For each entry of the training log, the first rows of the last batch go through the model once more, without
    dropout and gradients. `attention_zeros`, `attention_null_rate` and `attention_row_sum` go to the trainer's own log
    and so to TensorBoard, Trackio or W&B: share of visible weights that are exactly 0, share of queries whose weights
    all are, and mean sum of a query's weights (see `attention_report`). Add it by
    `trainer.add_callback(AttentionStatistics(trainer))`.

    Args:
        trainer: a `Trainer` or a subclass, whose model has an attention of this library by name, or exchanged.
        rows: most rows of a batch that are looked at; all their weights are in memory at once.
        by_layer: whether to log each layer too, as `attention_zeros/0`, in the order in which layers compute.
    """

    def __init__(self, trainer: "Trainer", rows: int = 8, *, by_layer: bool = False):
        self.trainer = trainer
        self.rows = rows
        self.by_layer = by_layer
        self._batch: dict[str, Any] = {}
        self._hook: Any = None

    def on_train_begin(self, args, state, control, model, **kwargs):
        """Begin to keep the last batch; a ValueError says that the model has no attention to look at."""
        if not find_attentions(model):
            raise ValueError(f"{type(model).__name__} has no attention of this library, by name or exchanged")
        self._hook = model.register_forward_pre_hook(self._keep_batch, with_kwargs=True)

    def on_train_end(self, args, state, control, **kwargs):
        """Let the last batch go."""
        self._hook.remove()
        self._batch = {}

    def on_log(self, args, state, control, model, logs, **kwargs):
        """Log the statistics beside the loss."""
        if "loss" in logs and self._batch:
            self.trainer.log(measure_attention(model, self._batch, by_layer=self.by_layer))

    def _keep_batch(self, model: nn.Module, _: Any, inputs: dict[str, Any]) -> None:
        if not model.training:
            return
        sizes = {len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()}
        is_sliced = len(sizes) == 1  # Images of a text, say, may be more than there are rows.
        self._batch = {
            name: value[: self.rows] if is_sliced and isinstance(value, Tensor) and value.dim() else value
            for name, value in inputs.items()
        }


def find_attentions(model: nn.Module) -> list[InterfaceAttention]:
    """Find the attentions of this library that a model of transformers calls, by name or exchanged."""
    attentions: dict[nn.Module, None] = {}
    registered = AttentionInterface()
    for part in model.modules():
        attention = part
        if isinstance(part, PreTrainedModel):
            attention = registered.get(part.config._attn_implementation)
        if isinstance(attention, InterfaceAttention) and not isinstance(attention, ExchangeableAttention):
            attentions[attention] = None
    return list(attentions)


def measure_attention(model: nn.Module, batch: dict[str, Any], *, by_layer: bool = False) -> dict[str, float]:
    """Measure the attention of one forward pass in evaluation mode; see `AttentionStatistics` for what it gives."""
    layers: list[Tensor] = []
    names = {module: name.split(".") for name, module in model.named_modules()}
    is_encoder_decoder = getattr(model.config, "is_encoder_decoder", False)
    labels = batch.get("labels") if is_encoder_decoder else None

    def count(attention: InterfaceAttention, given: tuple, options: dict[str, Any], outputs: tuple) -> None:
        call = {**dict(zip(_ARGUMENTS, given, strict=False)), **options}
        weights = outputs[1]
        mask, _ = read_call(**call)
        visible = torch.ones_like(weights[:, :1], dtype=torch.bool) if mask.dense is None else mask.dense
        real = torch.ones_like(weights[:, 0, :, 0], dtype=torch.bool)
        is_target = "decoder" in names.get(attention, names.get(call["module"], []))
        if is_encoder_decoder and is_target:
            if labels is not None and labels.shape == real.shape:
                real = labels != IGNORED_LABEL
        elif mask.key_padding_mask is not None and mask.query_len == mask.key_len:
            real = mask.key_padding_mask.expand_as(real)
        real = real[:, None]
        visible = (visible & real[..., None]).expand(-1, -1, -1, weights.shape[-1])
        layers.append(count_rows(Rows(weights.float().masked_fill(~visible, 0.0), visible, real)).sum(0))

    was_training = model.training
    hooks = [attention.register_forward_hook(count, with_kwargs=True) for attention in find_attentions(model)]
    model.eval()
    try:
        with torch.no_grad():
            model(**batch, output_attentions=True)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    sums_by_suffix = {"": sum(layers)}
    if by_layer:
        sums_by_suffix |= {f"/{number}": layer for number, layer in enumerate(layers)}
    return {
        f"attention_{name}{suffix}": getattr(summarize(sums), name)
        for suffix, sums in sums_by_suffix.items()
        for name in ("zeros", "null_rate", "row_sum")
    }
