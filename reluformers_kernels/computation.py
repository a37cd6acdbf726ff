# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: by which computation an attention with an elementwise φ is fastest."""

from os import environ

import torch
from torch import Tensor

from .activations import ACTIVATIONS, RECTIFIED, PassOptions
from .compiled import native
from .tensors import PagedTensor, compute_dtype, is_differentiated

LONG_KEYS = 2048  # With more than `LONG_KEYS` keys, the weights of a single query on a GPU are always written out.
SHORT_KEYS = 128  # With at most `SHORT_KEYS` keys, writing the weights out is faster on a CPU without compiled code.
# With AMX, PyTorch may multiply tiles of bfloat16 where compiled code does not. torch.compile cannot ask the CPU, so
# the answer is read once, at import.
MULTIPLIES_TILES = torch.cpu.get_capabilities().get("amx_bf16", False)
if native is not None and environ.get(native.VARIABLE) == native.BY_NAME:
    MULTIPLIES_TILES = False
# Against AMX tiles of bfloat16, compiled code wins with at most `SHORT_TILES` keys, half of them hidden.
SHORT_TILES = 512


def choose_computation(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions, may_write_out: bool = False
) -> str | None:
    """Choose the fastest exact way to compute an attention; nothing else decides on it.

    Args:
        query, key, value: in one dtype.
        options: of the call, whose activation may be one of `SPARSE_DISTRIBUTIONS`.
        may_write_out: whether the caller can keep every weight instead.

    Returns:
        `"single_query"`, all keys at once, as in decoding with a cache: one row of weights needs little memory.
        `"native"`, compiled code on a processor, where there is any: see `compiled`.
        `"triton"`, kernels on a GPU.
        `"blocks"`, block by block in PyTorch, on any device.
        None: the caller had better write the weights out, or there is no such φ here.
    """
    is_sparse = options.activation in RECTIFIED
    activation = RECTIFIED[options.activation][0] if is_sparse else options.activation
    if activation not in ACTIVATIONS or not fit(query, key, value, options) or is_differentiated():
        return None
    is_plain = options.dropout == 0 and options.needed_statistics == "none"
    if query.shape[2] == 1 and is_plain and not is_sparse and not isinstance(key, PagedTensor):
        # PyTorch starts an operation on the GPU for each mask or bound, and each start costs time. But a Triton kernel
        # takes all keys of a head one tile after another.
        hides_keys = any(
            part is not None for part in (options.key_padding_mask, options.first_keys, options.last_keys)
        )
        is_one_start = hides_keys and query.device.type == "cuda" and value.shape[2] <= LONG_KEYS
        return "triton" if is_one_start and _is_triton(query, value, activation) else "single_query"
    if may_write_out and is_sparse and options.needed_statistics != "none":
        # PyTorch computes statistics of sparsemax and 1.5-entmax, because fused code gives them no gradients.
        return None
    # Compiled code is chosen before plain weights for few keys, because that rule is for CPUs without compiled code.
    if _is_native(query, value, activation, options.causal_offset is not None):
        return "native"
    is_short = query.device.type == "cpu" and value.shape[2] <= SHORT_KEYS and compute_dtype(query) == query.dtype
    if may_write_out and is_short and not is_sparse:
        return None
    return "triton" if _is_triton(query, value, activation) else "blocks"


def fit(query: Tensor, key: Tensor, value: Tensor, options: PassOptions) -> bool:
    """Whether shapes, masks and devices are what compiled code may be given: it reads memory by them."""
    shape = query.shape
    key_shape = key.shape
    value_shape = value.shape
    device = query.device
    if not len(shape) == len(key_shape) == len(value_shape) == 4 or key_shape[:3] != value_shape[:3]:
        return False
    batch, heads, query_len, width = shape
    key_batch, key_heads, key_len, key_width = key_shape
    if batch != key_batch or width != key_width or heads % (key_heads or heads + 1):
        return False
    mask = options.key_padding_mask
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1:] != (key_len,)):
        return False
    bounds = [part for part in (options.first_keys, options.last_keys) if part is not None]
    for part in bounds:
        if part.is_floating_point() or part.dtype == torch.bool or part.shape[1:] != (query_len,):
            return False
    rows = bounds if mask is None else [mask, *bounds]
    if any(part.shape[0] not in (1, batch) for part in rows):
        return False
    return all(part.device == device for part in (key, value, *rows))


def _is_triton(query: Tensor, value: Tensor, activation: str) -> bool:
    """Whether kernels are there for this GPU and these shapes."""
    if query.device.type != "cuda":
        return False
    from .triton_attention import can_take  # Triton is imported only for GPUs, because importing it takes long.

    return can_take(query, value, activation)


def _is_native(query: Tensor, value: Tensor, activation: str, is_causal: bool) -> bool:
    """Whether compiled code is there for this, and faster than PyTorch's tiles of bfloat16 where there are any."""
    if native is None or query.device.type != "cpu":
        return False
    if query.dtype == torch.bfloat16 and MULTIPLIES_TILES and not (is_causal and value.shape[2] <= SHORT_TILES):
        return False
    return native.can_take(query, value, activation)
