# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: by which computation an attention with an elementwise φ is fastest."""

import torch
from torch import Tensor

from .activations import ACTIVATIONS, POWER
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
    # asked first: the rule for few keys below is of processors without compiled code
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
    return native.can_take(query, value, activation)
