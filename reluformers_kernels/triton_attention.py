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
from typing import NamedTuple

import torch
from torch import Tensor

from .activations import TENSORS, PassOptions, can_scale_weights
from .tensors import empty_heads_inside
from .triton_functions import IS_INTERPRETED, triton
from .triton_kernels import forward_kernel, key_kernel, query_kernel, threshold_kernel, touch_kernel

logger = logging.getLogger(__name__)

# How float32 is multiplied: "ieee" is exact and leaves the tensor cores idle, "tf32x3" is nearly exact and uses them
# three times, "tf32" keeps 10 bits of each factor.
FLOAT32_PRECISION = "ieee"
# Tiles to choose from by padded head size: (queries, keys, warps, stages). They are timed against each other once for
# each `TuningCase`, those that do not fit the GPU left out. The last of each row fits into 99 KiB of shared memory and
# is taken untimed where torch must be deterministic, as tiles decide in which order sums are taken, and for up to
# `SHORT` queries and keys of 16 bits, where a kernel starts longer than it runs and all tiles compile for a minute. On
# Hopper none makes matrix products wait for each other for want of registers. After a change call
# `tuned_kernel.cache_clear()`.
TILES = {
    "forward": {
        64: ((128, 128, 8, 2), (128, 64, 4, 3), (256, 64, 8, 3), (64, 128, 4, 3), (64, 64, 4, 3)),
        128: ((128, 128, 8, 2), (128, 64, 8, 3), (64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2)),
        256: ((128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 8, 2), (64, 32, 4, 2)),
        "float32": ((64, 32, 4, 2), (32, 32, 4, 2), (16, 32, 4, 1)),
    },
    "keys": {  # gradients of keys and values: a program owns keys and walks over the queries
        64: ((64, 128, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (32, 64, 4, 3), (64, 64, 4, 2)),
        128: ((64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3), (64, 64, 8, 2), (32, 64, 4, 2)),
        256: ((32, 64, 8, 2), (16, 64, 8, 2)),
        "float32": ((32, 32, 8, 2), (16, 32, 8, 2), (16, 16, 8, 1)),
    },
    "queries": {  # gradients of queries: a program owns queries and walks over the keys
        64: ((128, 128, 8, 2), (128, 64, 8, 3), (64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2)),
        128: ((128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 3), (64, 32, 4, 3)),
        256: ((128, 32, 8, 2), (64, 32, 8, 2), (64, 16, 8, 2)),
        "float32": ((64, 32, 8, 2), (32, 32, 4, 2), (32, 16, 4, 1)),
    },
    "thresholds": {
        64: ((128, 128, 8, 2), (128, 64, 4, 3), (64, 128, 4, 3), (64, 64, 4, 3)),
        128: ((128, 128, 8, 2), (128, 64, 8, 3), (64, 128, 4, 2), (64, 64, 4, 3)),
        256: ((128, 64, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2)),
        "float32": ((64, 32, 4, 2), (32, 32, 4, 2), (16, 32, 4, 1)),
    },
}
KERNELS = {"forward": forward_kernel, "keys": key_kernel, "queries": query_kernel, "thresholds": threshold_kernel}
INTERPRETER_TILE = {"QUERIES": 16, "KEYS": 16}
SHORT, LONG = 256, 2048  # tiles are timed anew for lengths up to each of these, and above

ACTIVATIONS = ("relu", "relu2", "relu6", "leaky_relu", "gelu", "softplus", "sigmoid", "identity")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
OLDEST_CAPABILITY = (8, 0)  # Ampere: bfloat16, and shared memory for the smallest tiles


def _scale_can_wait(options: PassOptions, dtype: torch.dtype) -> bool:
    """Whether sums of unscaled weights can be scaled."""
    if options.row_thresholds is not None:
        return False
    threshold = options.threshold if options.learned_threshold is None else options.learned_threshold
    return can_scale_weights(options.activation, options.scale, threshold, dtype)


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
    """Whether there is triton, and a GPU that its kernels are for."""
    if triton is None or device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY and _compiles(device)


@functools.cache
def _compiles(device: torch.device) -> bool:
    """Whether triton, which calls a C compiler for every kernel, gets one to run there."""
    try:
        with torch.cuda.device(device):
            touch_kernel[(1,)](torch.empty(1, device=device))
    except Exception as error:  # whatever compiler and driver raise
        reason = str(error).strip().partition("\n")[0]
        logger.warning(f"triton compiles nothing here, so attention is computed in PyTorch, slower: {reason}")
        return False
    return True


def triton_forward(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    r"""Output o_i = r_i Σ_j D_ij w_ij v_j, and statistics of the rows.

    Args:
        query: [batch, heads, query_len, head_dim], of any strides, but copied if the last one is not 1.
        key, value: [batch, heads, key_len, head_dim], likewise.
        options: what to compute.

    Returns:
        Output like `query`, in memory [batch, query_len, heads, head_dim]; then Σ_j w_ij, Σ_j w_ij log w_ij and the
        number of w_ij ≠ 0, float32 [batch, heads, query_len] without r and dropout, or None.
    """
    options = _with_thresholds_of_rows(options)
    query, key, value = (_with_dense_rows(states) for states in (query, key, value))
    output = empty_heads_inside(query)
    number = {"none": 0, "sums": 1, "all": 3}[options.needed_statistics]
    sums = [_empty_rows(query) if place < number else None for place in range(3)]
    waits = _scale_can_wait(options, query.dtype) and not number
    output_scale = (options.scale if waits else 1.0) / _kept_share(options)
    _launch(
        "forward",
        options,
        (query, key, value, output),
        tuple(sums),
        (options.scale, output_scale),
        is_affine=not waits,
    )
    return output, *sums


def triton_backward(
    grad_output: Tensor,
    grad_row_sums: Tensor | None,
    grad_weighted_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: PassOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients of `triton_forward`.

        dV_j = Σ_i r_i D_ij w_ij dO_i,  dW_ij = r_i D_ij dO_i·v_j + dt_i + du_i (1 + log w_ij),  dS = dW ⊙ φ'(S),
        dQ = a dS K,  dK = a dSᵀ Q,  dθ = −Σ_ij dS_ij

    Args:
        grad_output: dO, like the output.
        grad_row_sums: dt, gradient of Σ_j w_ij [batch, heads, query_len], or None.
        grad_weighted_logs: du, gradient of Σ_j w_ij log w_ij [batch, heads, query_len], or None.
        query, key, value: those of the forward pass.
        options: those of the forward pass.

    Returns:
        Gradients like `query`, `key` and `value`, in memory [batch, length, heads, head_dim], and dθ, float32 [], 0
        where θ is a number; for θ of rows [batch, heads, query_len].
    """
    is_learned, options = options.learned_threshold is not None, _with_thresholds_of_rows(options)
    grad_output, query, key, value = (_with_dense_rows(states) for states in (grad_output, query, key, value))
    grad_query, grad_key, grad_value = (empty_heads_inside(states) for states in (query, key, value))
    row_grads = (None, None)
    if grad_row_sums is not None or grad_weighted_logs is not None:
        row_grads = tuple(_dense_grad(grad, query) for grad in (grad_row_sums, grad_weighted_logs))
    waits = _scale_can_wait(options, query.dtype) and row_grads[0] is None
    kept_share = _kept_share(options)
    grad_scale = options.scale / kept_share
    value_scale = (options.scale if waits else 1.0) / kept_share
    numbers = (options.scale, kept_share, grad_scale, value_scale)
    states = (query, key, value, grad_output)
    _launch("keys", options, (*states, grad_key, grad_value), row_grads, numbers, not waits)
    grad_rows = _empty_rows(query) if is_learned else None
    _launch("queries", options, (*states, grad_query), (*row_grads, grad_rows), numbers, not waits)
    if grad_rows is None:
        return grad_query, grad_key, grad_value, query.new_zeros((), dtype=torch.float32)
    if options.learned_threshold is not None:
        grad_rows = grad_rows.sum()
    return grad_query, grad_key, grad_value, grad_rows / -kept_share


def triton_thresholds(query: Tensor, key: Tensor, options: PassOptions) -> Tensor:
    """θ of each row, float32 [batch, heads, query_len], by which its weights sum to 1; φ is relu or relu2.

    Scores are products in float32, as those of `triton_forward`, so that there is no other θ for its sums.
    """
    states = tuple(map(_with_dense_rows, (query, key)))
    batch, heads, query_len, head_dim = query.shape
    key_len = key.shape[2]
    found = _empty_rows(query)
    if found.numel() == 0:
        return found
    key_padding_mask, bounds, bound_batches = _dense_masks(options, batch, key_len)
    kernel, tile = _tuned(TuningCase.of("thresholds", options, *states, (), True))
    with torch.cuda.device_of(query):
        kernel[lambda constants: (-(-query_len // constants["QUERIES"]) * batch * heads,)](
            states,
            _strides(states),
            found,
            key_padding_mask,
            bounds,
            options.scale,
            heads,
            query_len,
            key_len,
            _bounded_offset(options, query_len, key_len),
            options.rows_per_position,
            bound_batches,
            ACTIVATION=options.activation,
            IS_CAUSAL=options.causal_offset is not None,
            PRECISION=FLOAT32_PRECISION,
            HEAD_DIM=head_dim,
            PADDED_DIM=_padded(head_dim),
            **tile,
        )
    return found


def _with_thresholds_of_rows(options: PassOptions) -> PassOptions:
    """The options with a learned θ of each row where the kernels take θ of rows."""
    threshold = options.learned_threshold
    if threshold is None or threshold.dim() < 3:
        return options
    return options._replace(learned_threshold=None, row_thresholds=threshold.float())


def _with_dense_rows(states: Tensor) -> Tensor:
    return states if states.stride(-1) == 1 else states.contiguous()


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
    rows: tuple[Tensor | None, ...],
    numbers: tuple[float, ...],
    is_affine: bool,
) -> None:
    """Run a kernel over the tiles of queries, or of keys, of every head; `states` begin with query and key."""
    batch, heads, query_len, head_dim = states[0].shape
    key_len = states[1].shape[2]
    side, length = ("KEYS", key_len) if name == "keys" else ("QUERIES", query_len)
    if batch * heads * length == 0:
        return
    row_factors = options.row_factors
    key_padding_mask, bounds, bound_batches = _dense_masks(options, batch, key_len)
    row_batches = 1 if row_factors is None else len(row_factors)
    dropped = _dropped_bytes(options)
    kernel, tile = _tuned(TuningCase.of(name, options, *states[:2], rows, is_affine))
    with torch.cuda.device_of(states[0]):
        kernel[lambda constants: (-(-length // constants[side]) * batch * heads,)](
            states,
            _strides(states),
            rows,
            None if row_factors is None else row_factors.contiguous(),
            key_padding_mask,
            options.seed if dropped > 0 else None,
            options.learned_threshold,
            bounds,
            None if options.row_thresholds is None else options.row_thresholds.contiguous(),
            (options.threshold, *numbers),
            heads,
            query_len,
            key_len,
            _bounded_offset(options, query_len, key_len),
            options.rows_per_position,
            row_batches,
            bound_batches,
            dropped,
            ACTIVATION=options.activation,
            IS_CAUSAL=options.causal_offset is not None,
            IS_AFFINE=is_affine,
            PRECISION=FLOAT32_PRECISION,
            HEAD_DIM=head_dim,
            PADDED_DIM=_padded(head_dim),
            **tile,
        )


def _strides(states: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple([stride for part in states for stride in part.stride()[:3]])


def _dense_masks(
    options: PassOptions, batch: int, key_len: int
) -> tuple[Tensor | None, tuple[Tensor | None, Tensor | None], int]:
    """Key mask, first and last keys, and the rows of a batch that these are of, as the kernels read them."""
    key_padding_mask, bounds = options.key_padding_mask, [options.first_keys, options.last_keys]
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask.expand(batch, key_len).contiguous().view(torch.uint8)
    rows = max([1 if part is None else len(part) for part in bounds])
    for place, part in enumerate(bounds):
        if part is not None:
            part = part.clamp(-1, key_len).to(torch.int32)
            bounds[place] = part.expand(rows, -1).contiguous()
    return key_padding_mask, tuple(bounds), rows


def _bounded_offset(options: PassOptions, query_len: int, key_len: int) -> int:
    """The causal offset: beyond these bounds all or nothing is seen."""
    return min(max(options.causal_offset or 0, -query_len), key_len)


def _padded(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())  # triton's own next_power_of_2 takes longer than its launch


class TuningCase(NamedTuple):
    """Key under which the best tile is kept: what it may depend on."""

    name: str
    activation: str
    is_causal: bool
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    buckets: tuple[int, int]
    has_rows: tuple[bool, ...]
    has_options: tuple[bool, ...]
    is_affine: bool
    is_timed: bool

    @classmethod
    def of(
        cls,
        name: str,
        options: PassOptions,
        query: Tensor,
        key: Tensor,
        rows: tuple[Tensor | None, ...],
        is_affine: bool,
    ) -> "TuningCase":
        """Build the tuning key of one kernel call."""
        lengths = query.shape[2], key.shape[2]
        is_short = query.dtype != torch.float32 and max(lengths) <= SHORT
        return cls(  # lists, not generators, as this is asked for before each launch
            name,
            options.activation,
            is_causal=options.causal_offset is not None,
            head_dim=query.shape[-1],
            dtype=query.dtype,
            device=query.device,
            buckets=tuple([(length > SHORT) + (length > LONG) for length in lengths]),
            has_rows=tuple([row is not None for row in rows]),
            has_options=tuple([part is not None for part in options[:TENSORS]]),
            is_affine=is_affine,
            is_timed=not is_short and not torch.are_deterministic_algorithms_enabled(),
        )


def _tuned(case: TuningCase):
    """The kernel of a case, and its tile where that has been found, at the first call of the case."""
    tuner = tuned_kernel(case)
    if IS_INTERPRETED:
        return tuner, INTERPRETER_TILE
    best = getattr(tuner, "best_config", None)
    return (tuner, {}) if best is None else (KERNELS[case.name], best.all_kwargs())


@functools.cache
def tuned_kernel(case: TuningCase):
    """The kernel of that name, which at its first call chooses its tile for that case: then its `best_config`."""
    kernel = KERNELS[case.name]
    if IS_INTERPRETED:
        return kernel
    tiles = TILES[case.name]["float32" if case.dtype == torch.float32 else max(64, _padded(case.head_dim))]
    configs = [
        triton.Config({"QUERIES": queries, "KEYS": keys}, num_warps=warps, num_stages=stages)
        for queries, keys, warps, stages in (tiles if case.is_timed else tiles[-1:])
    ]
    return triton.autotune(configs, key=["HEAD_DIM", "IS_CAUSAL", "ACTIVATION"])(kernel)
