"""From a model's softmax attention to another: distillation from the original."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, TrainerCallback

from reluformers.conversion.calibration import RecordedCall, exchanged_modules, recording
from reluformers.conversion.convert import build_model, open_source

from .recipe import Recipe, TransferOptions

if TYPE_CHECKING:
    from .trainer import TaskTrainer


def divergences(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(p ‖ q) in nats, p that of the reference: logits [..., classes] → float32 [...]."""
    ours = logits.float().log_softmax(-1)
    theirs = reference.float().log_softmax(-1)
    return functional.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)


def relative_difference(call: RecordedCall, reference: RecordedCall) -> Tensor:
    """Mean of (o − o')² over the variance of o', both over real queries and all channels; a scalar in float32."""
    real = reference.real.unsqueeze(-1)
    ours = call.joined.float()
    theirs = reference.joined.float()
    count = (real.sum() * theirs.shape[-1]).clamp_min(1)
    mean = torch.where(real, theirs, 0.0).sum() / count
    variance = torch.where(real, theirs - mean, 0.0).square().sum() / count
    difference = torch.where(real, ours - theirs, 0.0).square().sum() / count
    return difference / variance.clamp_min(torch.finfo(torch.float32).eps)


class Transfer(TrainerCallback):
    r"""Draws a model in training to the one that it started from.

    The loss of a batch with T of the N tokens that the update's loss is divided by (of images, T = N) becomes

        (1 − w)·L + w·Σ_t KL(p_t ‖ q_t)/N + a·A·T/N + R·T/N

    with L the model's cross-entropy, R its regulariser, p_t and q_t the distributions of the original and the model,
    and A the mean over the exchanged modules of `relative_difference`, of what their heads give before the output
    projection: there `calibrate` fits, and the run prints its errors (attention transfer: Zhang et al. 2024, LoLCATs,
    arXiv 2410.10254; there the modules get the original's inputs, here the model's). The training log has KL per token
    as `distillation_loss` and A as `attention_loss`.

    The original is asked by hooks on the model, from the first update to the last and in training mode alone.

    Args:
        options: what to do.
        model: that is trained.
        original: it before the exchange; becomes frozen, float32, on the device of the accelerator, and no part of the
            model.
        accelerator: whose mixed precision the original is run in.
    """

    def __init__(
        self, options: TransferOptions, model: PreTrainedModel, original: PreTrainedModel, accelerator: Accelerator
    ):
        self.options = options
        self.model = model
        self.accelerator = accelerator
        original = original.float().to(accelerator.device).eval().requires_grad_(False)
        self.pairs = exchanged_modules(model, original)
        if not self.pairs and options.attention_distillation > 0:
            raise ValueError("model.preset is the attention of model.start: nothing is exchanged")
        self.original = original
        self.recorded = self.pairs if options.attention_distillation > 0 else {}
        # The log takes them from here: DDP rebuilds outputs from their fields, so they get no new ones.
        self.statistics: dict[str, Tensor] = {}
        self._attached = ExitStack()
        self._recording = ExitStack()
        self._calls: Mapping[str, list[RecordedCall]] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.on_train_end(args, state, control)  # `auto_find_batch_size` may have given up an earlier start.
        self._attached.callback(self.model.register_forward_pre_hook(self._before).remove)
        self._attached.callback(self.model.register_forward_hook(self._after, with_kwargs=True).remove)

    def on_train_end(self, args, state, control, **kwargs):
        self._attached.close()

    def _before(self, model: nn.Module, given: tuple) -> None:
        self._recording.close()  # The call before may have failed.
        if model.training:
            ours = {name: pair[0] for name, pair in self.recorded.items()}
            self._calls = self._recording.enter_context(recording(ours))

    def _after(self, model: nn.Module, given: tuple, inputs: dict[str, Any], outputs: Any) -> Any:
        """Replace the loss of a model in training by the one with distillation and the other terms of the transfer."""
        if not model.training:
            return outputs
        self._recording.close()
        theirs = {name: pair[1] for name, pair in self.recorded.items()}
        asked = {name: inputs[name] for name in inputs.keys() - {"num_items_in_batch", "output_null_rate"}}
        with torch.no_grad(), self.accelerator.autocast(), recording(theirs) as references:
            reference = self.original(*given, **asked)
        labels = inputs["labels"]
        logits = outputs.logits
        is_counted = torch.ones_like(logits[..., 0], dtype=torch.bool)
        if labels.shape == is_counted.shape:
            is_counted = labels.ne(-100)
        count = is_counted.sum()
        items = count if inputs.get("num_items_in_batch") is None else inputs["num_items_in_batch"]
        items = torch.as_tensor(items, device=logits.device).clamp_min(1)
        loss = outputs.loss
        if self.options.distillation > 0:
            divergence = torch.where(is_counted, divergences(logits, reference.logits), 0.0).sum()
            regulariser = 0.0 if outputs.regularization_loss is None else outputs.regularization_loss * (count / items)
            loss = loss + self.options.distillation * (divergence / items - (loss - regulariser))
            self.statistics["distillation_loss"] = divergence.detach() / count.clamp_min(1)
        if self.recorded:
            parts = [relative_difference(calls[0], references[name][0]) for name, calls in self._calls.items()]
            difference = torch.stack(parts).mean()
            loss = loss + self.options.attention_distillation * difference * (count / items)
            self.statistics["attention_loss"] = difference.detach()
        self._calls = {}
        outputs["loss"] = loss
        return outputs


def add_transfer(trainer: "TaskTrainer", recipe: Recipe, new_labels: dict[str, Any] | None = None) -> None:
    """Let the model that a run starts from take part in training as its recipe says.

    A compiled or sharded model has no modules whose inputs could be recorded, and only distributions over the same
    classes can be compared. `new_labels` are those of the data, if the model has got a fresh head for them.
    """
    options = recipe.transfer
    args = trainer.args
    if options.distillation == options.attention_distillation == 0:
        return
    reentrant = (args.gradient_checkpointing_kwargs or {}).get("use_reentrant")  # Its first pass has no gradient.
    in_pieces = trainer.accelerator.is_fsdp2 or args.deepspeed or args.n_gpu > 1
    if args.torch_compile or reentrant or in_pieces:
        raise ValueError(
            "torch_compile, FSDP, deepspeed, reentrant checkpoints and several GPUs in one process do not go with "
            "model.distillation and model.attention_distillation"
        )
    problem = getattr(trainer.model.config, "problem_type", None)
    if options.distillation > 0 and (new_labels or problem not in (None, "single_label_classification")):
        raise ValueError("model.distillation compares distributions over the classes of model.start: they are others")
    # A head that is not compared must know the labels too, as the forward pass gets them.
    original = build_model(open_source(recipe.start), new_head=bool(new_labels), config_fields=new_labels)
    transfer = Transfer(options, trainer.model, original, trainer.accelerator)
    trainer.add_callback(transfer)
    trainer.statistics = transfer.statistics
