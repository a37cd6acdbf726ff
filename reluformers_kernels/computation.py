# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: by which computation an attention with an elementwise φ is fastest."""

from os import environ

import torch
from torch import Tensor

from .activations import ACTIVATIONS, POWER
from .compiled import native
from .tensors import compute_dtype

LONG_KEYS = 2048  # beyond so many, a single query on a GPU is written out whatever it hides
SHORT_KEYS = 128  # up to so many, weights that are written out are faster on a processor without compiled code
# whether PyTorch multiplies tiles of bfloat16, and compiled code does not; read once, as a compiler cannot look at it
MULTIPLIES_TILES = torch.cpu.get_capabilities().get("amx_bf16", False) and environ.get("RELUFORMERS_NATIVE") != "amx"
SHORT_TILES = 512  # with tiles of bfloat16, compiled code is faster up to so many keys if half of them are never read


def choose_computation(
    query: Tensor,
    value: Tensor,
    activation: str,
    *,
    dropout: float = 0.0,
    needed_statistics: str = "none",
    may_write_out: bool = False,
    hides_keys: bool = False,
    is_causal: bool = False,
) -> str | None:
    """The fastest exact way to compute this attention; nothing else decides on it.

    Args:
        query, value, activation, dropout, needed_statistics: of the call, in one dtype.
        may_write_out: whether the caller can keep every weight instead.
        hides_keys: whether there is a padding mask or a bound, which are operations of their own where the one row of
            weights is written out.
        is_causal: whether a query sees no later keys.

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
        # a GPU waits for the start of each operation; but a kernel takes all keys of a head one tile after another
        is_one_start = hides_keys and query.device.type == "cuda" and value.shape[2] <= LONG_KEYS
        return "triton" if is_one_start and _is_triton(query, value, activation) else "single_query"
    # asked first: the rule for few keys below is of processors without compiled code
    if _is_native(query, value, activation, is_causal):
        return "native"
    is_short = query.device.type == "cpu" and value.shape[2] <= SHORT_KEYS and compute_dtype(query) == query.dtype
    if may_write_out and is_short:
        return None
    return "triton" if _is_triton(query, value, activation) else "blocks"


def _is_triton(query: Tensor, value: Tensor, activation: str) -> bool:
    """Whether kernels are there for this GPU and these shapes."""
    if query.device.type != "cuda":
        return False
    from .triton_attention import can_take  # only where there is a GPU: triton takes long to import

    return can_take(query, value, activation)


def _is_native(query: Tensor, value: Tensor, activation: str, is_causal: bool) -> bool:
    """Whether compiled code is there for this, and faster than PyTorch's tiles of bfloat16 where there are any."""
    if native is None or query.device.type != "cpu":
        return False
    if query.dtype == torch.bfloat16 and MULTIPLIES_TILES and not (is_causal and value.shape[2] <= SHORT_TILES):
        return False
    return native.can_take(query, value, activation)
