# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Normalisation layers that torch does not have, and the table of those a residual block may use."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from ..configuration.configuration_base import TransformerConfig


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that norms and sums are computed in: fp32 for bf16 and fp16, else the same."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(states: Tensor) -> Tensor:
    """The tensor in its `wide_dtype`."""
    return states.to(wide_dtype(states.dtype))


def unit_length(states: Tensor, eps: float = 1e-12) -> Tensor:
    """x / max(‖x‖₂, ε) over the last dimension, in at least fp32: ε is 0 in fp16; at x = 0 with a gradient of 1."""
    wide = at_least_float32(states)
    length = _UnitLength.apply if _has_written_gradients(wide) else _unit_length
    return length(wide, eps).to(states.dtype)


def _has_written_gradients(states: Tensor) -> bool:
    """Whether the gradient written out below is faster than autograd's: on CPUs, where every pass over memory counts.

    Compiled code puts the passes together by itself.
    """
    return states.device.type == "cpu" and not torch.compiler.is_compiling()


def _length(states: Tensor) -> Tensor:
    """‖x‖₂ over the last dimension, which stays."""
    return torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def _inverse_root_mean_square(states: Tensor, eps: float) -> Tensor:
    """1 / √(mean(x²) + ε) over the last dimension, which stays."""
    return (_length(states) ** 2 / states.shape[-1] + eps).rsqrt()


def _by_autograd(ctx, function: Callable[..., Tensor], grad_output: Tensor) -> tuple[Tensor | None, ...]:
    """What `backward` returns for function(saved tensors, ε), by operations that have gradients themselves."""
    output = function(*ctx.saved_tensors, ctx.eps)
    needed = [x for x, is_needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False) if is_needed]
    gradients = iter(torch.autograd.grad(output, needed, grad_output, create_graph=True))
    return tuple(next(gradients) if is_needed else None for is_needed in ctx.needs_input_grad)


def _unit_length(states: Tensor, eps: float) -> Tensor:
    length = _length(states)
    return states / length.clamp_min(eps).masked_fill(length == 0, 1.0)


class _UnitLength(torch.autograd.Function):
    """`_unit_length`: with y = x/‖x‖ the gradient of x is (dy − y·Σ y·dy) / ‖x‖."""

    generate_vmap_rule = True

    @staticmethod
    def forward(states: Tensor, eps: float) -> Tensor:
        return _unit_length(states, eps)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        states, ctx.eps = inputs
        ctx.save_for_backward(states)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        (states,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # asked for a gradient of the gradient
            return _by_autograd(ctx, _unit_length, grad_output)
        length = _length(states)
        factor = length.clamp_min(ctx.eps).masked_fill_(length == 0, 1.0).reciprocal_()
        unit = states * factor
        along = (unit * grad_output).sum(-1, keepdim=True).mul_(length >= ctx.eps)  # below ε the divisor is constant
        return torch.addcmul(grad_output, unit, along, value=-1).mul_(factor), None


def _gated_rms_norm(states: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    return torch.sigmoid(gate * states) * functional.rms_norm(states, weight.shape, weight, eps)


class _GatedRMSNorm(torch.autograd.Function):
    """`_gated_rms_norm`, σ(w⊙x) ⊙ g ⊙ u with u = x / √(mean(x²) + ε), and its gradients of x, g and w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(states: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
        factor = _inverse_root_mean_square(states, eps)
        return (gate * states).sigmoid_().mul_(states).mul_(factor).mul_(weight)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, weight, gate = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _by_autograd(ctx, _gated_rms_norm, grad_output)
        rows = tuple(range(states.dim() - 1))
        factor = _inverse_root_mean_square(states, ctx.eps)
        unit, opening = states * factor, (gate * states).sigmoid_()
        grad_norm = grad_output * opening
        products = grad_norm * unit
        grad_weight = products.sum(rows)
        products.mul_(weight)
        along = products.mean(-1, keepdim=True)
        grad_states = grad_norm.mul_(weight).addcmul_(unit, along, value=-1).mul_(factor)
        grad_logits = products.mul_(opening.neg_().add_(1))  # of σ
        grad_states.addcmul_(grad_logits, gate)
        return grad_states, grad_weight, grad_logits.mul_(states).sum(rows), None


class RMSNorm(nn.RMSNorm):
    """RMS normalisation y = g ⊙ x / √(mean(x²) + ε), in at least fp32 also under autocast (ReLA, eq. 4)."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., dim]
        states = at_least_float32(hidden_states)
        weight = self.weight.to(states.dtype)
        return functional.rms_norm(states, self.normalized_shape, weight, self.eps).to(hidden_states.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation y = g ⊙ (x − mean(x)) / √(var(x) + ε), without bias, in at least fp32 (Ba et al. 2016)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps=eps, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., dim]
        states = at_least_float32(hidden_states)
        weight = self.weight.to(states.dtype)
        return functional.layer_norm(states, self.normalized_shape, weight, None, self.eps).to(hidden_states.dtype)


class OutputGate:
    """σ(w⊙o) ⊙ Norm(o), in at least fp32: what the gated norms of ReLA add to a norm (ReLA, eq. 5)."""

    gate: nn.Parameter  # w

    def reset_gate(self) -> None:
        """w from U(±√(3/d)), which the released code's initialiser gives to a vector of length d."""
        bound = math.sqrt(3 / self.gate.numel())
        init.uniform_(self.gate, -bound, bound)

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., dim]
        states = at_least_float32(hidden_states)
        gate = torch.sigmoid(self.gate.to(states.dtype) * states)
        return (gate * super().forward(states)).to(hidden_states.dtype)


class GatedRMSNorm(OutputGate, RMSNorm):
    r"""Gated RMS normalisation y = σ(w⊙o) ⊙ g ⊙ o / √(mean(o²) + ε), in at least fp32 (ReLA, eq. 5).

    The gate reads the vector before it is normalised. A zero vector, a null row of the attention, stays zero.

    Args:
        dim: width of the vectors, all heads joined.
        eps: ε, inside the root.
    """

    def __init__(self, dim: int, eps: float = 1e-8):
        super().__init__(dim, eps=eps)
        self.gate = nn.Parameter(torch.empty(dim))
        self.reset_gate()

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., dim]
        states = at_least_float32(hidden_states)
        if not _has_written_gradients(states):
            return super().forward(hidden_states)
        weight, gate = self.weight.to(states.dtype), self.gate.to(states.dtype)
        return _GatedRMSNorm.apply(states, weight, gate, self.eps).to(hidden_states.dtype)


class GatedLayerNorm(OutputGate, LayerNorm):
    """Gated layer normalisation y = σ(w⊙o) ⊙ LayerNorm(o), the same with another norm (ReLA, table 1, row 8)."""

    def __init__(self, dim: int, eps: float = 1e-8):
        super().__init__(dim, eps=eps)
        self.gate = nn.Parameter(torch.empty(dim))
        self.reset_gate()


class ScaleNorm(nn.Module):
    r"""Length normalisation y = g·x / max(‖x‖₂, ε) with one learned g (Nguyen and Salazar 2019, eq. 5).

    Args:
        dim: width of the vectors.
        eps: smallest length that is divided by.
        initial: what g starts from: `"sqrt_dim"` or `"inverse_sqrt_dim"`.
    """

    def __init__(self, dim: int, eps: float = 1e-5, initial: str = "sqrt_dim"):
        super().__init__()
        self.dim, self.eps, self.initial = dim, eps, initial
        self.weight = nn.Parameter(torch.empty(1))  # g
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """g = √dim or 1/√dim."""
        init.constant_(self.weight, self.dim ** (0.5 if self.initial == "sqrt_dim" else -0.5))

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., dim]
        return self.weight * unit_length(hidden_states, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


class UnitLinear(nn.Linear):
    """Linear map whose rows have unit length, y = x·ŵᵀ + b: the output layer of FixNorm (Nguyen and Chiang 2018)."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., in_features] → [..., out_features]
        return functional.linear(hidden_states, unit_length(self.weight), self.bias)


NORMS: dict[str, type[nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": RMSNorm, "scale_norm": ScaleNorm}
OUTPUT_NORMS: dict[str, type[nn.Module]] = {
    "rms_norm": RMSNorm,
    "gated_rms_norm": GatedRMSNorm,
    "layer_norm": LayerNorm,
    "gated_layer_norm": GatedLayerNorm,
}


def build_norm(config: TransformerConfig) -> nn.Module:
    """The normalisation of a model's residual blocks, over the last dimension."""
    if config.norm_type == "none":
        return nn.Identity()
    options = {"initial": config.scale_norm_init} if config.norm_type == "scale_norm" else {}
    return NORMS[config.norm_type](config.hidden_size, eps=config.norm_eps, **options)
