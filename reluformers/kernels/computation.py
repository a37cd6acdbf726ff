# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: by which computation an attention with an elementwise φ is fastest."""

import functools

import torch
from torch import Tensor

from .activations import ACTIVATIONS, POWER, PassOptions, activate
from .compiled import native
from .tensors import compute_dtype

SHORT_KEYS = 128  # up to so many, weights that are written out are faster on a processor without compiled code


def choose_computation(
    query: Tensor,
    value: Tensor,
    activation: str,
    *,
    dropout: float = 0.0,
    needed_statistics: str = "none",
    may_write_out: bool = False,
) -> str | None:
    """The fastest exact way to compute this attention; nothing else decides on it.

    Args:
        query, value, activation, dropout, needed_statistics: of the call, in one dtype.
        may_write_out: whether the caller can keep every weight instead.

    Returns:
        `"single_query"`, the one row of weights written out, as in decoding with a cache: it is nothing to save on.
        `"native"`, compiled code on a processor, where there is any: see `compiled`.
        `"triton"`, kernels on a GPU.
        `"blocks"`, block by block in PyTorch, on any device.
        None: the caller had better write the weights out, or there is no such φ here.
    """
    if activation not in (*ACTIVATIONS, POWER):
        return None
    if query.shape[2] == 1 and dropout == 0 and needed_statistics == "none":
        return "single_query"
    if _is_native(query, value, activation):
        return "native"
    is_short = query.device.type == "cpu" and value.shape[2] <= SHORT_KEYS and compute_dtype(query) == query.dtype
    if may_write_out and is_short:
        return None
    if query.device.type == "cuda":
        from .triton_attention import can_take  # only where there is a GPU: triton takes long to import

        if can_take(query, value, activation):
            return "triton"
    return "blocks"


def _is_native(query: Tensor, value: Tensor, activation: str) -> bool:
    """Whether compiled code is there for this; bf16 stays in PyTorch where the processor multiplies tiles of it."""
    if native is None or query.device.type != "cpu":
        return False
    if query.dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("amx_bf16", False):
        return False
    return native.can_take(query, value, activation) and _is_same_function(activation)


@torch.compiler.assume_constant_result
def _is_same_function(activation: str) -> bool:
    """Whether the compiled φ is the one here, as compiled code may be of another version."""
    return activation in _compiled_functions()


@functools.cache
def _compiled_functions() -> frozenset[str]:
    """φ of which the compiled code gives the weights that this code gives."""
    scores = torch.tensor([-4.0, -1.0, -0.25, 0.0, 0.5, 3.0, 8.0], dtype=torch.float32, device="cpu").view(1, 1, -1, 1)
    query, value = torch.ones_like(scores[:, :, :1]), torch.eye(scores.shape[2]).to(scores).expand(1, 1, -1, -1)

    def is_same(activation: str) -> bool:
        weights, *_ = native.forward(query, scores, value, PassOptions(activation=activation))
        return torch.allclose(weights, activate(activation, scores.mT))

    return frozenset(filter(is_same, native.ACTIVATIONS))
