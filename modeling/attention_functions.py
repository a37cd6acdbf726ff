# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""How attention weights are made from scores: one pure function per φ, the only place where a variant's maths lives.

Every function maps scores z [batch, heads, query_len, key_len] and a boolean mask that broadcasts to them (True = may
attend; None = all may) to weights of the same shape and dtype, before they are divided by c·n^α. A masked weight is
exactly 0 and gets no gradient; a row without a visible key is all 0.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from .normalization import at_least_float32, wide_dtype

SOFTPICK_EPS = 1e-6


def apply_masked(function: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    """φ on each score by itself; masked weights are set to 0 afterwards, so that no −∞ meets φ."""
    weights = function(scores)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _normalize(function: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    """φ that makes a row a distribution over its visible keys."""
    logits = at_least_float32(scores)
    if mask is None:
        return function(logits).to(scores.dtype)
    # Hidden scores get the lowest finite number: −∞ would make a row without a visible key NaN before it is set to 0.
    weights = function(logits.masked_fill(~mask, torch.finfo(logits.dtype).min))
    return weights.masked_fill(~mask, 0.0).to(scores.dtype)


def _sparse_distribution(logits: Tensor, power: int) -> Tensor:
    """max(z_j/p − τ, 0)^p, whose sum is 1 for p 1 or 2, exactly: of the k largest z, τ is a function of their sums."""
    scores = logits / power
    # Scores are clamped, because the threshold τ is never below −1.
    scores = (scores - scores.amax(-1, keepdim=True).detach()).clamp_min(-2)

    def threshold(sums: Tensor, squares: Tensor, counts: Tensor) -> Tensor:
        means = sums / counts
        return means - (1 / counts if power == 1 else ((1 - squares + sums * means) / counts).clamp_min(0).sqrt())

    # The choice of keys with a weight above 0 has no gradient. Given these keys, the threshold τ is a smooth function
    # of their scores.
    with torch.no_grad():
        ordered = scores.sort(-1, descending=True).values
        counts = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        is_kept = ordered > threshold(ordered.cumsum(-1), ordered.square().cumsum(-1), counts)
        smallest = ordered.gather(-1, is_kept.sum(-1, keepdim=True).clamp_min(1) - 1)
        # Keys whose score equals the smallest one kept stay too, because rounding decided about them before.
        kept = (scores >= smallest).to(scores.dtype)
    sums = ((scores**exponent * kept).sum(-1, keepdim=True) for exponent in (1, 2, 0))
    return functional.relu(scores - threshold(*sums)) ** power


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = exp(z_ij) / Σ_k exp(z_ik), summed in fp32 (Vaswani et al. 2017, eq. 1)."""
    return _normalize(lambda logits: functional.softmax(logits, dim=-1), scores, mask)


def softmax1(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = exp(z_ij) / (1 + Σ_k exp(z_ik)): softmax off by one, whose rows may be near 0 (Miller 2023)."""

    def normalize(logits: Tensor) -> Tensor:
        # The 1 in the denominator of softmax1 is a key of score 0, whose weight is left out again.
        return functional.softmax(functional.pad(logits, (0, 1)), dim=-1)[..., :-1]

    return _normalize(normalize, scores, mask)


def softpick(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(exp(z_ij) − 1, 0) / (Σ_k |exp(z_ik) − 1| + 10⁻⁶) over the visible keys (Zuhri et al. 2025)."""
    logits = at_least_float32(scores)
    # A hidden key adds nothing, because exp(0) − 1 = 0.
    shown = logits if mask is None else logits.masked_fill(~mask, 0.0)
    largest = shown.amax(-1, keepdim=True).clamp_min(0).detach()
    # With m = max z, (exp z − 1)·exp(−m) is finite for every z.
    powers = torch.exp(shown - largest) - torch.exp(-largest)
    weights = functional.relu(powers) / (powers.abs().sum(-1, keepdim=True) + SOFTPICK_EPS * torch.exp(-largest))
    return weights.to(scores.dtype)


def sparsemax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_i = argmin over distributions p of ‖p − z_i‖² (Martins and Astudillo 2016, eq. 1)."""
    return _normalize(partial(_sparse_distribution, power=1), scores, mask)


def entmax15(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(z_ij/2 − τ_i, 0)², τ_i so that the row sums to 1 (Peters et al. 2019, α = 1.5)."""
    return _normalize(partial(_sparse_distribution, power=2), scores, mask)


# Elementwise activations φ take each score z by itself.
_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,  # ReLU is max(z, 0) (ReLUFormer, eq. 5; ReLA, eq. 3).
    "relu2": lambda z: functional.relu(z).square(),  # Squared ReLU is max(z, 0)² (ReLU in ViT, figure 2).
    "relu6": functional.relu6,  # ReLU6 is min(max(z, 0), 6) (ReLU in ViT, figure 2).
    "leaky_relu": functional.leaky_relu,  # Leaky ReLU is max(z, 0) + 0.01·min(z, 0).
    "gelu": functional.gelu,  # GELU is z·Φ(z), Φ the normal distribution (ReLA, table 1; ReLU in ViT, figure 2).
    "softplus": functional.softplus,  # Softplus is log(1 + exp(z)) (ReLU in ViT, figure 2).
    "sigmoid": torch.sigmoid,  # The sigmoid is 1 / (1 + exp(−z)) (ReLU in ViT, figure 2).
    "identity": lambda z: z,  # The identity is z (ReLU in ViT, figure 2).
}

ATTENTION_ACTIVATIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "softmax": softmax,
    "softmax1": softmax1,
    "softpick": softpick,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    **{name: partial(apply_masked, function) for name, function in _ELEMENTWISE.items()},
}


def sum_to_one(weights: Tensor) -> Tensor:
    """s_ij = w_ij / Σ_k w_ik in at least fp32; a row whose sum is 0 stays 0, with no gradient."""
    wide = at_least_float32(weights)
    sums = wide.sum(-1, keepdim=True)
    # A sum of 0 is replaced before the division: 0/0 would have a NaN as gradient, even where the second fill hides
    # the value.
    return (wide / sums.masked_fill(sums == 0, 1.0)).masked_fill(sums == 0, 0.0).to(weights.dtype)


def length_divisor(
    key_counts: Tensor | int, coefficient: float, exponent: float | Tensor, dtype: torch.dtype
) -> Tensor | float | None:
    """c·n_i^α in at least fp32 for weights of this dtype, or None where it is 1; a row without keys counts as one."""
    if not isinstance(exponent, Tensor) and exponent == 0:
        # A divisor of None saves a division in every layer.
        return None if coefficient == 1 else coefficient
    if isinstance(exponent, Tensor):
        exponent = at_least_float32(exponent)
    if isinstance(key_counts, Tensor):
        key_counts = key_counts.clamp_min(1).to(wide_dtype(dtype))
    else:
        key_counts = max(key_counts, 1)
    return coefficient * key_counts**exponent


def length_factor(key_counts: Tensor | int, form: str, head_dim: int, dtype: torch.dtype) -> Tensor | float:
    """Factor of a scale or a threshold for each query; as for one key where there is none.

    `form`: `"constant"` 1, `"log_length"` log n_i, `"sqrt_log_length"` √(2 · log n_i / d_h).
    """
    if form == "constant":
        return 1.0
    if isinstance(key_counts, Tensor):
        logs = key_counts.clamp_min(1).to(wide_dtype(dtype)).log()
    else:
        logs = math.log(max(key_counts, 1))
    return logs if form == "log_length" else (2 * logs / head_dim) ** 0.5
