# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Elementwise-activation attention in Triton, forward and backward: exact, and linear in memory.

    o_i = r_i · Σ_j D_ij · w_ij · v_j    with    w_ij = φ(a·q_i·k_j − θ)

over the keys j that query i may see. As φ takes every score by itself, there is no row maximum, no normaliser and
nothing to keep for the backward pass, which makes the weights again, tile by tile.

Matrix products take the dtype of the inputs and add up in float32, all else is float32: weights are rounded to the
dtype of the inputs before they meet the values, and so are the gradients of the scores before they meet queries and
keys. Dropout knows shares of whole 256ths: p = 0.1 drops 26/256 of the weights and divides the others by 1 − 26/256.
Needs the package triton and a GPU of NVIDIA's Ampere or later, or triton's interpreter, on any device
(TRITON_INTERPRET=1 before the first import).
"""

import functools
import logging

import torch
from torch import Tensor

from .activations import NUMBER_OF_SUMS, PassOptions, can_scale_weights
from .tensors import empty_heads_inside
from .triton_functions import IS_INTERPRETED, triton
from .triton_kernels import forward_kernel, key_kernel, query_kernel, threshold_kernel, touch_kernel
from .triton_start import start

logger = logging.getLogger(__name__)

# Triton multiplies float32 in one of three ways: "ieee" is exact and leaves the tensor cores idle, "tf32x3" is nearly
# exact and uses them three times, "tf32" keeps 10 bits of each factor.
FLOAT32_PRECISION = "ieee"
# Each padded head size has two tiles (queries, keys, warps, stages). The first is for Hopper and other GPUs with as
# much shared memory. The second is for 99 KiB of it, and for up to `SHORT` queries and keys of 16 bits, where a kernel
# starts longer than it runs. On Hopper no tile makes matrix products wait for each other for want of registers.
TILES = {
    "forward": {
        64: ((128, 128, 8, 2), (64, 64, 4, 3)),
        128: ((128, 128, 8, 2), (64, 64, 4, 2)),
        256: ((128, 64, 8, 2), (64, 32, 4, 2)),
        "float32": ((64, 32, 4, 2), (16, 32, 4, 1)),
    },
    "keys": {  # For gradients of keys and values, a program owns keys and walks over the queries.
        64: ((64, 128, 8, 3), (64, 64, 4, 2)),
        128: ((64, 128, 8, 3), (32, 64, 4, 2)),
        256: ((32, 64, 8, 2), (16, 64, 8, 2)),
        "float32": ((32, 32, 8, 2), (16, 16, 8, 1)),
    },
    "queries": {  # For gradients of queries, a program owns queries and walks over the keys.
        64: ((128, 128, 8, 2), (64, 64, 4, 2)),
        128: ((128, 64, 8, 3), (64, 32, 4, 3)),
        256: ((128, 32, 8, 2), (64, 16, 8, 2)),
        "float32": ((64, 32, 8, 2), (32, 16, 4, 1)),
    },
}
TILES["thresholds"] = TILES["forward"] | {128: TILES["forward"][64]}
LARGE_MEMORY = 200 * 2**10  # The first, larger tiles of each kernel need 200 KiB of shared memory.
KERNELS = {"forward": forward_kernel, "keys": key_kernel, "queries": query_kernel, "thresholds": threshold_kernel}
INTERPRETER_TILE = (16, 16, 4, 1)
SHORT = 256

ACTIVATIONS = ("relu", "relu2", "relu6", "leaky_relu", "gelu", "softplus", "sigmoid", "identity")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
OLDEST_CAPABILITY = (8, 0)  # Ampere is the oldest GPU with bfloat16 and enough shared memory for the smallest tiles.


def _dropped_bytes(options: PassOptions) -> int:
    """Count the values of a byte, of 256, that drop a weight."""
    return min(round(options.dropout * 256), 255)


def _kept_share(options: PassOptions) -> float:
    return 1.0 - _dropped_bytes(options) / 256


def can_take(query: Tensor, value: Tensor, activation: str) -> bool:
    """Whether the kernels can do this, with keys as wide as queries."""
    head_dim = query.shape[-1]
    knows = activation in ACTIVATIONS and query.dtype in DTYPES and value.shape[-1] == head_dim <= MAX_HEAD_DIM
    return knows and head_dim > 0 and _runs_kernels(query.device)


@torch.compiler.assume_constant_result
def _runs_kernels(device: torch.device) -> bool:
    # torch.compile takes the answer for a constant, because it would trace past the cache of `_is_usable`.
    return _is_usable(device)


@functools.cache
def _is_usable(device: torch.device) -> bool:
    """Whether there is triton, and a GPU that its kernels are for."""
    if triton is None or device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY and _compiles(device)


def _compiles(device: torch.device) -> bool:
    """Whether triton, which calls a C compiler for every kernel, gets one to run there."""
    try:
        with torch.cuda.device(device):
            touch_kernel[(1,)](torch.empty(1, device=device))
    except Exception as error:  # Triton's compiler and the GPU's driver raise errors of any kind.
        reason = str(error).strip().partition("\n")[0]
        logger.warning(f"triton compiles nothing here, so attention is computed in PyTorch, slower: {reason}")
        return False
    return True


def triton_forward(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """What `blockwise_forward` gives; states are copied if their last stride is not 1."""
    query, key, value = (_with_dense_rows(states) for states in (query, key, value))
    output = empty_heads_inside(query)
    number = NUMBER_OF_SUMS[options.needed_statistics]
    sums = [_empty_rows(query) if index < number else None for index in range(3)]
    # For some φ, a scale above 0 leaves φ and multiplies the output once instead of every score.
    waits = can_scale_weights(options, query.dtype) and not number
    output_scale = (options.scale if waits else 1.0) / _kept_share(options)
    numbers = options.scale, output_scale
    _launch("forward", options, (query, key, value, output), sums, numbers, is_affine=not waits)
    return output, *sums


def triton_backward(
    grad_output: Tensor,
    grad_row_sums: Tensor | None,
    grad_weighted_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: PassOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    r"""Compute the gradients of `triton_forward`, which is attention on a GPU.

        dV_j = Σ_i r_i D_ij w_ij dO_i,  dW_ij = r_i D_ij dO_i·v_j + dt_i + du_i (1 + log w_ij),  dS = dW ⊙ φ'(S),
        dQ = a dS K,  dK = a dSᵀ Q,  dθ = −Σ_ij dS_ij

    They are laid out in memory like the output; dθ is None where θ is a number.
    """
    grad_output, query, key, value = (_with_dense_rows(states) for states in (grad_output, query, key, value))
    grad_query, grad_key, grad_value = (empty_heads_inside(states) for states in (query, key, value))
    row_grads = [None, None]
    if grad_row_sums is not None or grad_weighted_logs is not None:
        row_grads = [_dense_grad(grad, query) for grad in (grad_row_sums, grad_weighted_logs)]
    waits = can_scale_weights(options, query.dtype) and row_grads[0] is None
    kept_share = _kept_share(options)
    grad_scale = options.scale / kept_share
    value_scale = (options.scale if waits else 1.0) / kept_share
    numbers = (options.scale, kept_share, grad_scale, value_scale)
    states = (query, key, value, grad_output)
    _launch("keys", options, (*states, grad_key, grad_value), row_grads, numbers, not waits)
    threshold = options.learned_threshold
    grad_rows = None if threshold is None else _empty_rows(query)
    _launch("queries", options, (*states, grad_query), [*row_grads, grad_rows], numbers, not waits)
    if threshold is None:
        return grad_query, grad_key, grad_value, None
    if threshold.dim() < 3:
        grad_rows = grad_rows.sum()
    return grad_query, grad_key, grad_value, grad_rows / -kept_share


def triton_thresholds(query: Tensor, key: Tensor, options: PassOptions) -> Tensor:
    """θ of each row, float32 [batch, heads, query_len], by which its weights sum to 1; φ is relu or relu2.

    Scores are products in float32, as those of `triton_forward`, so that there is no other θ for its sums.
    """
    query, key = (_with_dense_rows(states) for states in (query, key))
    thresholds = _empty_rows(query)
    _launch("thresholds", options, (query, key), [thresholds], (options.scale,), is_affine=True)
    return thresholds


def _with_dense_rows(states: Tensor) -> Tensor:
    # Kernels read whole rows, so the numbers of a row must lie side by side.
    if states.stride(-1) == 1:
        return states
    return states.contiguous()


def _empty_rows(query: Tensor) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.float32)


def _dense_grad(grad: Tensor | None, query: Tensor) -> Tensor:
    if grad is None:
        return query.new_zeros(query.shape[:3], dtype=torch.float32)
    return grad.to(torch.float32).contiguous()


def _launch(
    name: str,
    options: PassOptions,
    states: tuple[Tensor, ...],
    rows: list[Tensor | None],
    numbers: tuple[float, ...],
    is_affine: bool,
) -> None:
    """Run a kernel over the tiles of queries, or of keys, of every head; `states` begin with query and key."""
    query, key = states[:2]
    batch, heads, query_len, head_dim = query.shape
    key_heads, key_len = key.shape[1:3]
    group = heads // max(1, key_heads)
    if batch * key_heads * (key_len if name == "keys" else query_len) == 0:
        return
    key_padding_mask = options.key_padding_mask
    first_keys = options.first_keys
    last_keys = options.last_keys
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask.expand(batch, key_len).contiguous()
    bound_batches = max([1 if part is None else len(part) for part in (first_keys, last_keys)])
    if first_keys is not None:
        first_keys = first_keys.clamp(-1, key_len).to(torch.int32).expand(bound_batches, -1).contiguous()
    if last_keys is not None:
        last_keys = last_keys.clamp(-1, key_len).to(torch.int32).expand(bound_batches, -1).contiguous()
    threshold = options.learned_threshold
    row_thresholds = options.row_thresholds
    row_factors = options.row_factors
    if threshold is not None and threshold.dim() == 3:
        threshold, row_thresholds = None, threshold
    of_thresholds = (0, 0, 0) if row_thresholds is None else row_thresholds.expand(query.shape[:3]).stride()
    row_batches = 1
    if row_factors is not None:
        row_batches = len(row_factors)
        row_factors = row_factors.contiguous()
    dropped = _dropped_bytes(options)
    seed = options.seed if dropped > 0 else None
    strides = [stride for part in states for stride in part.stride()[:3]]
    tensors = (*states, *rows, row_factors, key_padding_mask, seed, threshold, first_keys, last_keys, row_thresholds)
    # An offset of causality is clamped, because beyond −query_len and key_len a query sees no key or all.
    offset = min(max(options.causal_offset or 0, -query_len), key_len)
    # Numbers are passed as floats, because Triton would compile an integer 1 into the kernel, but not 1.0.
    others = (*of_thresholds, float(options.threshold), *map(float, numbers))
    others += (key_heads, query_len * group, key_len, offset, row_batches, bound_batches, dropped)
    queries, keys, warps, stages = tile_of(name, query.dtype, head_dim, max(query_len, key_len), query.device)
    constants = (options.activation, options.causal_offset is not None, is_affine, FLOAT32_PRECISION)
    constants += (group, head_dim, _padded(head_dim), queries, keys)
    tiles = -(-key_len // keys) if name == "keys" else -(-query_len * group // queries)
    start(KERNELS[name], tiles * batch * key_heads, tensors, strides, others, constants, warps, stages)


def _padded(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())  # Triton's own next_power_of_2 takes longer than a launch.


def tile_of(
    name: str, dtype: torch.dtype, head_dim: int, length: int, device: torch.device
) -> tuple[int, int, int, int]:
    """Queries, keys, warps and stages of a kernel."""
    if IS_INTERPRETED:
        return INTERPRETER_TILE
    large, small = TILES[name]["float32" if dtype == torch.float32 else max(64, _padded(head_dim))]
    is_short = dtype != torch.float32 and length <= SHORT
    return small if is_short or _shared_memory(device) < LARGE_MEMORY else large


@functools.cache
def _shared_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
