# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""How attention is computed: which way suits the tensors, and what the two passes of the fused ways are told."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from .attention_functions import ATTENTION_ACTIVATIONS, ELEMENTWISE_GRADIENTS
from .compiled import native
from .masks import AttentionMask

# φ that take each score by itself; the others normalise a row and need it whole
ELEMENTWISE_ACTIVATIONS = tuple(ELEMENTWISE_GRADIENTS)
HOMOGENEOUS = ("relu", "leaky_relu", "identity")  # φ(a·x) = a·φ(x) for a > 0


def choose_computation(
    query: Tensor,
    value: Tensor,
    mask: AttentionMask,
    activation: str,
    *,
    dropout: float,
    needed_statistics: str,
    short_keys: int | None,
) -> str:
    """The fastest exact way to compute this attention; nothing else decides on it.

    Args:
        query, value, mask, activation, dropout, needed_statistics: of the call, in one dtype.
        short_keys: up to so many keys weights are written out on a processor without compiled code; None if they must
            never be.

    Returns:
        `"eager"`, every weight kept: what needs whole rows (sparsemax and entmax, the entropy of softmax), masks that
            are no padding or causality, few keys and softmax of a single query or with dropout on a processor, and
            exported programs, which are to hold PyTorch's plain operators alone. Not returned for an elementwise φ,
            padding and causality with `short_keys` None.
        `"sdpa"`, PyTorch's own softmax attention.
        `"single_query"`, the one row of weights written out, as in decoding with a cache: it is nothing to save on.
        `"native"`, compiled code on a processor, where there is any: see `compiled`.
        `"triton"`, kernels on a GPU.
        `"blocks"`, block by block in PyTorch, on any device.
    """
    if short_keys is not None and torch.compiler.is_exporting():
        return "eager"
    is_single = mask.query_len == 1 and dropout == 0 and needed_statistics == "none"
    if not is_single and _is_native(query, value, mask, activation):
        return "native"
    if short_keys is not None and _is_short(query, mask, activation, short_keys):
        return "eager"
    if activation == "softmax":
        # on processors PyTorch writes the weights out for dropout as well, and draws it slower
        is_written_out = needed_statistics == "all" or (query.device.type == "cpu" and (is_single or dropout > 0))
        return "eager" if is_written_out else "sdpa"
    if activation not in ELEMENTWISE_ACTIVATIONS or not mask.is_structured:
        return "eager"
    if is_single:
        return "single_query"
    if query.device.type == "cuda":
        from .triton_attention import can_take  # only where there is a GPU: triton takes long to import

        if can_take(query, value, activation):
            return "triton"
    return "blocks"


def _is_native(query: Tensor, value: Tensor, mask: AttentionMask, activation: str) -> bool:
    """Whether compiled code is there for this; bf16 stays in PyTorch where the processor multiplies tiles of it."""
    if native is None or query.device.type != "cpu" or not mask.is_structured:
        return False
    if query.dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("amx_bf16", False):
        return False
    return native.can_take(query, value, activation) and _is_same_function(activation)


@torch.compiler.assume_constant_result
def _is_same_function(activation: str) -> bool:
    """Whether the compiled φ is that of this copy of the code, whose own may have been changed."""
    return activation in _compiled_functions()


@functools.cache
def _compiled_functions() -> frozenset[str]:
    """φ of which the compiled code gives the weights that this code gives."""
    scores = torch.tensor([-4.0, -1.0, -0.25, 0.0, 0.5, 3.0, 8.0], dtype=torch.float32, device="cpu").view(1, 1, -1, 1)
    query, value = torch.ones_like(scores[:, :, :1]), torch.eye(scores.shape[2]).to(scores).expand(1, 1, -1, -1)

    def is_same(activation: str) -> bool:
        weights, *_ = native.forward(query, scores, value, PassOptions(activation=activation))
        return torch.allclose(weights, ATTENTION_ACTIVATIONS[activation](scores.mT, None))

    return frozenset(filter(is_same, native.ACTIVATIONS))


def _is_short(query: Tensor, mask: AttentionMask, activation: str, short_keys: int) -> bool:
    """Whether weights that are written out are few, and faster on a processor than any fused computation of them."""
    if query.device.type != "cpu" or mask.key_len > short_keys or compute_dtype(query) != query.dtype:
        return False
    return activation != "softmax" or query.dtype == torch.bfloat16  # in float32 PyTorch's own is faster


def compute_dtype(states: Tensor) -> torch.dtype:
    """The dtype of products and weights: bf16 and fp16 as they are only where the processor multiplies them."""
    if states.device.type != "cpu" or states.dtype in (torch.float32, torch.float64):
        return states.dtype
    if states.dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("avx512_bf16", False):
        return states.dtype
    return torch.float32


def empty_heads_inside(states: Tensor) -> Tensor:
    """Memory [batch, length, heads, width], seen as [batch, heads, length, width]."""
    return torch.empty_like(states.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def can_scale_weights(activation: str, scale: float, threshold: float | Tensor, dtype: torch.dtype) -> bool:
    """Whether φ(a·x − θ) = a·φ(x) in this dtype, so that a factor of the weights is one of the scores as well.

    Not in float16, which holds neither large nor small weights.
    """
    is_homogeneous = activation in HOMOGENEOUS and scale > 0
    return is_homogeneous and not isinstance(threshold, Tensor) and threshold == 0 and dtype != torch.float16


class PassOptions(NamedTuple):
    """What the forward and the backward pass of an attention with an elementwise φ must agree on.

    In the order in which the operators take it, which know no records.

    Args:
        learned_threshold: θ, where it is a tensor: of one element, on the same device.
        row_factors: r, at least float32 [batch or 1, query_len]; None = 1.
        key_padding_mask: bool [batch, key_len], True = visible to all queries; None = all are.
        seed: int64 [] on the same device, if p > 0; the same seed drops the same weights.
        activation: φ, one of `ELEMENTWISE_ACTIVATIONS`.
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
    activation: str = "relu"
    scale: float = 1.0
    threshold: float = 0.0
    causal_offset: int | None = None
    dropout: float = 0.0
    needed_statistics: str = "none"
