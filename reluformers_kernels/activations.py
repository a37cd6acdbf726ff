# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""φ that take each score by itself, and what the passes of a fused attention are told."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten

# Each activation φ must compute what the models' code does.
_FUNCTIONS = {
    "relu": functional.relu,
    "relu2": lambda z: functional.relu(z).square(),
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "gelu": functional.gelu,
    "softplus": functional.softplus,
    "sigmoid": torch.sigmoid,
    "identity": lambda z: z,
    "step": lambda z: (z > 0).to(z.dtype),
}
# The backward passes need the gradient of the score z from that of the weight w = φ(z).
GRADIENTS = {
    "relu": lambda gradient, z, w: aten.threshold_backward(gradient, w, 0),
    "relu2": lambda gradient, z, w: gradient * functional.relu(z).mul_(2),
    "relu6": lambda gradient, z, w: aten.hardtanh_backward(gradient, z, 0, 6),
    "leaky_relu": lambda gradient, z, w: aten.leaky_relu_backward(gradient, z, 0.01, False),
    "gelu": lambda gradient, z, w: aten.gelu_backward(gradient, z),
    "softplus": lambda gradient, z, w: aten.softplus_backward(gradient, z, 1, 20),
    "sigmoid": lambda gradient, z, w: aten.sigmoid_backward(gradient, w),
    "identity": lambda gradient, z, w: gradient,
}
ACTIVATIONS = tuple(GRADIENTS)
# Sparsemax and 1.5-entmax solve for the θ_i of each row with Σ_j φ(a·z_ij − θ_i) = 1. Listed are φ, a, and φ′ up to a
# factor.
RECTIFIED = {"sparsemax": ("relu", 1.0, "step"), "entmax15": ("relu2", 0.5, "relu")}
SPARSE_DISTRIBUTIONS = tuple(RECTIFIED)
SLOPES = {activation: slope for activation, _, slope in RECTIFIED.values()}
# The weights of five activations are never negative: φ ≥ 0.
NOT_NEGATIVE = ("relu", "relu2", "relu6", "softplus", "sigmoid")
HOMOGENEOUS = ("relu", "leaky_relu", "identity")  # Homogeneous activations have φ(a·x) = a·φ(x) if a > 0.
# Of the sums over a row of weights, Σ w, Σ w·log w and the number of w ≠ 0, a pass returns the first ones.
NUMBER_OF_SUMS = {"none": 0, "sums": 1, "all": 3}


def activate(activation: str, scores: Tensor) -> Tensor:
    """φ of scores: callers ask whether it is their own before they ask for attention with it."""
    return _FUNCTIONS[activation](scores)


class PassOptions(NamedTuple):
    """Options on which both passes of an attention with an elementwise φ must agree.

    In the order in which the operators take it, which know no records.

    Args:
        learned_threshold: θ, where it is a tensor on the same device: of one element, or of each row [batch or 1,
            heads or 1, query_len or 1].
        row_factors: r, at least float32 [batch or 1, query_len]; None = 1.
        key_padding_mask: bool [batch, key_len], True = visible to all queries; None = all are.
        seed: int64 [] on the same device, if p > 0; the same seed drops the same weights.
        first_keys, last_keys: integers [batch or 1, query_len] that never decrease along the queries: query i sees
            the keys first_keys_i ≤ j ≤ last_keys_i; None = no such bound.
        row_thresholds: θ_i for which each row sums to 1, in place of θ, at least float32 [batch, heads, query_len];
            their part in the gradients of queries and keys is counted there, so they have none themselves.
        activation: φ, one of `ACTIVATIONS`.
        scale: a.
        threshold: θ, if it is not learned.
        causal_offset: query i sees the keys j ≤ i + causal_offset; None = all.
        dropout: share p < 1 of the weights that are dropped: D is 0 for those, and 1/(1 − p) for the others.
        needed_statistics: which sums over the rows the forward pass returns: `"none"`, `"sums"` for Σ_j w_ij alone,
            or `"all"`.
    """

    learned_threshold: Tensor | None = None
    row_factors: Tensor | None = None
    key_padding_mask: Tensor | None = None
    seed: Tensor | None = None
    first_keys: Tensor | None = None
    last_keys: Tensor | None = None
    row_thresholds: Tensor | None = None
    activation: str = "relu"
    scale: float = 1.0
    threshold: float = 0.0
    causal_offset: int | None = None
    dropout: float = 0.0
    needed_statistics: str = "none"


# The fields of `PassOptions` before `activation` are tensors or None.
TENSORS = PassOptions._fields.index("activation")


def can_scale_weights(options: PassOptions, dtype: torch.dtype) -> bool:
    """Whether φ(a·x − θ) = a·φ(x) in this dtype, so that a factor of the weights is one of the scores as well.

    Not in float16, which holds neither large nor small weights.
    """
    tensors = (options.learned_threshold, options.row_thresholds)
    has_threshold = options.threshold != 0 or any(part is not None for part in tensors)
    return options.activation in HOMOGENEOUS and options.scale > 0 and not has_threshold and dtype != torch.float16
