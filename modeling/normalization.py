# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Normalisation layers that torch does not have, and the table of those a residual block may use."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from ..configuration.configuration_base import TransformerConfig
from .kernels import kernels


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that norms and sums are computed in: fp32 for bf16 and fp16, else the same."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def at_least_float32(states: Tensor) -> Tensor:
    """The tensor in its `wide_dtype`."""
    return states.to(wide_dtype(states.dtype))


def _norm(states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool) -> Tensor:
    """y = σ(w⊙x) ⊙ g ⊙ x / ρ over the last dimension, in at least fp32, with gain g and gate w if they are given.

    ρ = √(mean(x²) + ε) if `is_mean`, else max(‖x‖₂, ε), or 1 at x = 0.
    """
    # A compiled norm is one pass over memory. If it returns None, plain PyTorch computes the norm.
    arguments = (states, gain, gate, eps, is_mean)
    output = None if kernels is None else kernels.norm(*arguments, _plain_norm)
    return _plain_norm(*arguments) if output is None else output


def _plain_norm(states, gain, gate, eps, is_mean) -> Tensor:
    wide = at_least_float32(states)
    gain, gate = (None if vector is None else vector.to(wide.dtype) for vector in (gain, gate))
    if is_mean:
        output = functional.rms_norm(wide, wide.shape[-1:], gain, eps)
    else:
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        # At x = 0 the norm divides by 1, because a division by ε would make the gradient 1/ε, which is huge.
        output = wide / norm.clamp_min(eps).masked_fill(norm == 0, 1.0)
        output = output if gain is None else gain * output
    return (output if gate is None else torch.sigmoid(gate * wide) * output).to(states.dtype)


def unit_length(states: Tensor, eps: float = 1e-12, gain: Tensor | None = None) -> Tensor:
    """g ⊙ x / max(‖x‖₂, ε) over the last dimension, in at least fp32, as ε would be 0 in fp16; x = 0 stays 0."""
    return _norm(states, gain, None, eps, is_mean=False)


class RMSNorm(nn.RMSNorm):
    """RMS normalisation y = g ⊙ x / √(mean(x²) + ε), in at least fp32 also under autocast (ReLA, eq. 4)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps=eps)

    def forward(self, hidden_states: Tensor) -> Tensor:  # RMSNorm takes and returns states [..., dim].
        return _norm(hidden_states, self.weight, None, self.eps, is_mean=True)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation y = g ⊙ (x − mean(x)) / √(var(x) + ε), without bias, in at least fp32 (Ba et al. 2016)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps=eps, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:  # LayerNorm takes and returns states [..., dim].
        states = at_least_float32(hidden_states)
        weight = self.weight.to(states.dtype)
        return functional.layer_norm(states, self.normalized_shape, weight, None, self.eps).to(hidden_states.dtype)


class NormGate:
    """w of σ(w⊙o) ⊙ Norm(o): what the gated norms of ReLA add to a norm; the zeros of a null row stay (eq. 5)."""

    def __init__(self, dim: int, eps: float = 1e-8):
        super().__init__(dim, eps=eps)
        self.gate = nn.Parameter(torch.empty(dim))  # The gate's vector is w in σ(w⊙o).
        self.reset_gate()

    def reset_gate(self) -> None:
        """Draw w from U(±√(3/d)), as the released code does."""
        bound = math.sqrt(3 / self.gate.numel())
        init.uniform_(self.gate, -bound, bound)


class GatedRMSNorm(NormGate, RMSNorm):
    """Gated RMS normalisation y = σ(w⊙o) ⊙ g ⊙ o / √(mean(o²) + ε), in at least fp32 (ReLA, eq. 5)."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # GatedRMSNorm takes and returns states [..., dim].
        return _norm(hidden_states, self.weight, self.gate, self.eps, is_mean=True)


class GatedLayerNorm(NormGate, LayerNorm):
    """Gated layer normalisation y = σ(w⊙o) ⊙ LayerNorm(o), the same with another norm (ReLA, table 1, row 8)."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # GatedLayerNorm takes and returns states [..., dim].
        states = at_least_float32(hidden_states)
        gate = torch.sigmoid(self.gate.to(states.dtype) * states)
        return (gate * super().forward(states)).to(hidden_states.dtype)


class ScaleNorm(nn.Module):
    r"""Length normalisation y = g·x / max(‖x‖₂, ε), one g from √dim or 1/√dim (Nguyen and Salazar 2019, eq. 5)."""

    def __init__(self, dim: int, eps: float = 1e-5, initial: str = "sqrt_dim"):
        super().__init__()
        self.dim, self.eps, self.initial = dim, eps, initial
        self.weight = nn.Parameter(torch.empty(1))  # The weight of ScaleNorm is its gain g.
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set g to its `initial`: `"sqrt_dim"` or `"inverse_sqrt_dim"`."""
        init.constant_(self.weight, self.dim ** (0.5 if self.initial == "sqrt_dim" else -0.5))

    def forward(self, hidden_states: Tensor) -> Tensor:  # ScaleNorm takes and returns states [..., dim].
        return self.weight * unit_length(hidden_states, self.eps)


class UnitLinear(nn.Linear):
    """Linear map whose rows have unit length, y = x·ŵᵀ + b: the output layer of FixNorm (Nguyen and Chiang 2018)."""

    def unit_weight(self) -> Tensor:
        """ŵ; a search makes it once for all its steps."""
        return unit_length(self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:  # States [..., in_features] become [..., out_features].
        return functional.linear(hidden_states, self.unit_weight(), self.bias)


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
