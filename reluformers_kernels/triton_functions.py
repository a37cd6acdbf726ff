# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of the Triton kernels of elementwise-activation attention: φ and φ′, loads and stores, ranges of tiles."""

from __future__ import annotations

from collections.abc import Callable

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None
    IS_INTERPRETED = False
else:
    IS_INTERPRETED = triton.knobs.runtime.interpret
    # PTX, the assembly of NVIDIA's GPUs, is used unless Triton's interpreter runs the kernels.
    HAS_PTX = tl.constexpr(not IS_INTERPRETED)


def jit(function: Callable) -> Callable:
    """`triton.jit`, compiled once for all lengths; without triton the bare function, so that this file loads."""
    varying = ["heads", "query_len", "key_len", "causal_offset", "row_batches", "bound_batches", "drop_below"]
    varying += ["t0", "t1", "t2", "row_number"]
    return function if triton is None else triton.jit(function, do_not_specialize=varying)


@jit
def activated(scores, ACTIVATION: tl.constexpr):
    """φ(s)."""
    if ACTIVATION == "relu":
        weights = tl.maximum(scores, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "step":
        weights = tl.where(scores > 0, 1.0, 0.0)
    elif ACTIVATION == "relu2":
        weights = tl.maximum(scores, 0.0, propagate_nan=tl.PropagateNan.ALL)
        weights = weights * weights
    elif ACTIVATION == "relu6":
        weights = tl.clamp(scores, 0.0, 6.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "leaky_relu":
        weights = tl.where(scores > 0, scores, 0.01 * scores)
    elif ACTIVATION == "gelu":
        weights = 0.5 * scores * (1.0 + tl.erf(0.7071067811865476 * scores))
    elif ACTIVATION == "softplus":
        weights = tl.maximum(scores, 0.0, propagate_nan=tl.PropagateNan.ALL) + _log1p(tl.exp(-tl.abs(scores)))
    elif ACTIVATION == "sigmoid":
        weights = tl.sigmoid(scores)
    else:
        weights = scores
    return weights


@jit
def _log1p(x):
    """log(1 + x) for 0 ≤ x ≤ 1, with the correction for what 1 + x has rounded away (Goldberg 1991, theorem 4)."""
    rounded = 1.0 + x
    return tl.where(rounded == 1.0, x, tl.log(rounded) * x / tl.maximum(rounded - 1.0, 1e-30))


@jit
def times_derivative(grad, scores, weights, ACTIVATION: tl.constexpr):
    """dW · φ'(s); 0 where φ has a corner, like torch."""
    if ACTIVATION == "relu":
        grad = tl.where(scores > 0, grad, 0.0)
    elif ACTIVATION == "relu2":
        grad = grad * (2.0 * tl.maximum(scores, 0.0))
    elif ACTIVATION == "relu6":
        grad = tl.where((scores > 0) & (scores < 6), grad, 0.0)
    elif ACTIVATION == "leaky_relu":
        grad = tl.where(scores > 0, grad, 0.01 * grad)
    elif ACTIVATION == "gelu":
        distribution = 0.5 + 0.5 * tl.erf(0.7071067811865476 * scores)
        grad = grad * (distribution + 0.3989422804014327 * scores * tl.exp(-0.5 * scores * scores))
    elif ACTIVATION == "softplus":
        grad = grad * tl.sigmoid(scores)
    elif ACTIVATION == "sigmoid":
        grad = grad * weights * (1.0 - weights)
    return grad


@jit
def log_of(weights):
    """log w, finite at w ≤ 0. The hardware's takes one instruction for some thirty, with an error of 2⁻²² at most."""
    positive = tl.maximum(weights, 1.1754943508222875e-38)
    if HAS_PTX:
        logs = 0.6931471805599453 * tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=r,r", [positive], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        logs = tl.log(positive)
    return logs


@jit
def activated_and_rounded(scores, dtype: tl.constexpr, ACTIVATION: tl.constexpr):
    """φ(s) in the dtype of the values. ReLU and rounding are one instruction for two bfloat16."""
    if HAS_PTX and ACTIVATION == "relu" and dtype == tl.bfloat16:
        weights = tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [scores], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        weights = activated(scores, ACTIVATION).to(dtype)
    return weights


@jit
def is_kept(seed, head, rows, first, drop_below, KEYS: tl.constexpr):
    """Which weights of some rows and KEYS keys from `first` on, a multiple of KEYS, dropout leaves    [rows, KEYS].

    A byte decides: Philox gives 16 to each row and quarter of 64 keys, so that every tile draws the same. Seven of its
    ten rounds are enough to pass all tests of randomness (Salmon et al. 2011). The keys of a quarter are those that
    one thread has of a matrix product, two of every eight, so that no number has to change its thread.
    """
    BLOCKS: tl.constexpr = (KEYS + 63) // 64
    quarters = first // 64 * 4 + tl.arange(0, 4 * BLOCKS)
    one, two, three, four = tl.philox(seed, quarters[None, :], rows[:, None], head, 0, 7)
    kept = tl.join(
        tl.join(_are_kept(one, drop_below), _are_kept(two, drop_below)),
        tl.join(_are_kept(three, drop_below), _are_kept(four, drop_below)),
    )
    kept = tl.permute(tl.reshape(kept, [rows.shape[0], BLOCKS, 4, 8, 2]), [0, 1, 3, 2, 4])
    if KEYS < 64:  # A tile of fewer than 64 keys is a part of a block of 64, for which dropout is drawn.
        part = tl.arange(0, 64 // KEYS)[None, :, None] == first % 64 // KEYS
        kept = tl.sum(tl.where(part, tl.reshape(kept, [rows.shape[0], 64 // KEYS, KEYS]), 0), 1)
    return tl.reshape(kept, [rows.shape[0], KEYS]) != 0


@jit
def _are_kept(words, drop_below):
    """int8, 1 where a byte of a word is not below the bound    [..., 2, 2]."""
    lower = tl.join(_is_large(words, drop_below), _is_large(words >> 8, drop_below))
    return tl.join(lower, tl.join(_is_large(words >> 16, drop_below), _is_large(words >> 24, drop_below)))


@jit
def _is_large(words, drop_below):
    return ((words & 255).to(tl.int32) >= drop_below).to(tl.int8)


@jit
def load_tile(
    states, start, stride, head_stride, seen,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """LENGTH rows of [length, head_dim] from `start` on; 0 in the padding and where `seen` [LENGTH] is False.

    Of the queries each position has the rows of GROUP heads, side by side.
    """
    rows = (start + tl.arange(0, LENGTH))[:, None]
    columns = tl.arange(0, PADDED_DIM)[None, :]
    mask = seen[:, None]
    if HEAD_DIM < PADDED_DIM:
        mask = mask & (columns < HEAD_DIM)
    return tl.load(states + _row_places(rows, stride, head_stride, GROUP) + columns, mask=mask, other=0.0)


@jit
def store_tile(states, tile, start, stride, head_stride, length, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Rows of [length, head_dim] from `start` on."""
    rows = (start + tl.arange(0, tile.shape[0]))[:, None]
    columns = tl.arange(0, tile.shape[1])[None, :]
    mask = (rows < length) & (columns < HEAD_DIM)
    places = states + _row_places(rows, stride, head_stride, GROUP) + columns
    tl.store(places, tile.to(states.dtype.element_ty), mask=mask)


@jit
def _row_places(rows, stride, head_stride, GROUP: tl.constexpr):
    if GROUP == 1:
        places = rows.to(tl.int64) * stride
    else:
        places = (rows // GROUP).to(tl.int64) * stride + (rows % GROUP).to(tl.int64) * head_stride
    return places


@jit
def load_row(rows, count, places, length, OTHERWISE: tl.constexpr):
    """Load places of row number `count` of [count, length]; another number where there are no rows."""
    numbers = places * 0 + OTHERWISE
    if rows is not None:
        numbers = tl.load(rows + count.to(tl.int64) * length + places, mask=places < length, other=0)
    return numbers


@jit
def _statistic_places(count, places, length, GROUP: tl.constexpr):
    """Where statistics [batch, heads of queries, positions] of some rows of one head of keys stand."""
    if GROUP > 1:
        places = places % GROUP * (length // GROUP) + places // GROUP
    return count.to(tl.int64) * length + places


@jit
def load_statistic(numbers, count, places, length, GROUP: tl.constexpr):
    """Load statistics of some rows of head number `count`."""
    return tl.load(numbers + _statistic_places(count, places, length, GROUP), mask=places < length, other=0.0)


@jit
def store_statistic(statistics, numbers, count, places, length, GROUP: tl.constexpr):
    """The reverse of `load_statistic`; nothing if there are none."""
    if statistics is not None:
        tl.store(statistics + _statistic_places(count, places, length, GROUP), numbers, mask=places < length)


@jit
def load_thresholds(thresholds, t0, t1, t2, batch, head, rows, length, GROUP: tl.constexpr):
    """θ of some rows, by the strides of batch, heads of queries and positions."""
    places = batch.to(tl.int64) * t0 + (head * GROUP + rows % GROUP).to(tl.int64) * t1 + rows // GROUP * t2
    return tl.load(thresholds + places, mask=rows < length, other=0.0)


@jit
def head_of(states, batch_stride, head_stride, batch, head):
    """One head [length, head_dim]."""
    return states + batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride


@jit
def find_tile(length, heads, LENGTH: tl.constexpr, IS_LAST_FIRST: tl.constexpr):
    """This program's head among all, batch row, head and first row. The longest if causal should go first."""
    tiles = tl.cdiv(length, LENGTH)
    program = tl.program_id(0)
    batch_head = program // tiles
    tile = program % tiles
    # With causality the last queries see most keys. Their tiles begin first, so that nobody waits for one of them at
    # the end.
    if IS_LAST_FIRST:
        tile = tiles - 1 - tile
    return batch_head, batch_head // heads, batch_head % heads, tile * LENGTH


@jit
def row_grad_of(row_sum_grad, weighted_log_grad, weights):
    """What the sums over a row add to dW: dt + du (log w + 1), without the 1 where w was raised to a normal number."""
    is_positive = (weights >= 1.1754943508222875e-38).to(tl.float32)
    return row_sum_grad + weighted_log_grad * (log_of(weights) + is_positive)


@jit
def find_seen_keys(key_padding_mask, batch, keys, key_len, IS_WHOLE: tl.constexpr):
    """Which keys of a tile may be loaded."""
    if key_padding_mask is not None:
        key_padding_mask += batch.to(tl.int64) * key_len
        seen = tl.load(key_padding_mask + keys, mask=keys < key_len, other=0) != 0
    elif IS_WHOLE:
        seen = tl.full(keys.shape, 1, tl.int1)
    else:
        seen = keys < key_len
    return seen


@jit
def _last_seen(key_padding_mask, batch, key_len):
    """1 + the last key that may be seen, 0 without any."""
    end = 0
    for start in tl.range(0, key_len, 1024):
        keys = start + tl.arange(0, 1024)
        seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
        end = tl.maximum(end, tl.max(tl.where(seen, keys + 1, 0)))
    return end


@jit
def _rows_up_to(bound, count, key, length):
    """How many rows of number `count` have their first or last key, which never decreases, at a key or before it."""
    number = 0
    for start in tl.range(0, length, 1024):
        rows = start + tl.arange(0, 1024)
        is_before = (load_row(bound, count, rows, length, 0) <= key) & (rows < length)
        number += tl.sum(is_before.to(tl.int32))
    return number


@jit
def key_range(
    key_padding_mask, first_keys, last_keys, bound_batches, query_len, batch, start, key_len, causal_offset,
    IS_CAUSAL: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Find the keys of a tile of queries: from the first number to the second in whole tiles, then to the third.

    Whole tiles need neither the lengths nor a causal mask. There is always a last one, even where nothing may be seen.
    """
    end = key_len
    if key_padding_mask is not None:
        end = _last_seen(key_padding_mask, batch, key_len)
    common = end - 1
    if IS_CAUSAL:
        common = tl.minimum(common, start // GROUP + causal_offset + 1)
        end = tl.minimum(end, (start + QUERIES - 1) // GROUP + causal_offset + 1)
    row = (batch % bound_batches).to(tl.int64) * (query_len // GROUP)
    if last_keys is not None:
        end = tl.minimum(end, tl.load(last_keys + row + (tl.minimum(start + QUERIES, query_len) - 1) // GROUP) + 1)
        common = tl.minimum(common, end - 1)
    whole = tl.maximum(common, 0) // KEYS * KEYS
    end = tl.maximum(end, 1)
    tl.assume(whole < end)
    begin = 0
    if first_keys is not None:
        begin = tl.minimum(tl.maximum(tl.load(first_keys + row + start // GROUP), 0) // KEYS * KEYS, whole)
    return begin, whole, end


@jit
def only_visible(tile, keys, last, lower, upper, first_keys, last_keys, IS_CAUSAL: tl.constexpr):
    """A tile with 0 for keys behind the last one of causality, or outside of a bound that there is."""
    if IS_CAUSAL:
        tile = tl.where(keys <= last, tile, 0.0)
    if first_keys is not None:
        tile = tl.where(keys >= lower, tile, 0.0)
    if last_keys is not None:
        tile = tl.where(keys <= upper, tile, 0.0)
    return tile


@jit
def visible_scores(query_tile, key_tile, scale, keys, seen, lower, upper, PRECISION: tl.constexpr):
    """a·q·k of the keys from `lower` to `upper` of each row that are seen, else −∞    [rows, keys]."""
    scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION) * scale
    is_visible = seen[None, :] & (keys[None, :] >= lower[:, None]) & (keys[None, :] <= upper[:, None])
    return tl.where(is_visible, scores, float("-inf"))


@jit
def query_range(
    key_padding_mask, first_keys, last_keys, bound_batches, batch, seen, start, query_len, causal_offset,
    IS_CAUSAL: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Find the tiles of queries that see a tile of keys: the first, the first whole one, where these end, the last.

    Whole tiles need neither the lengths nor a causal mask. The last is none of them, and always there.
    """
    last = tl.maximum(query_len - 1, 0) // QUERIES
    first, first_whole = 0, 0
    if IS_CAUSAL:
        first = tl.minimum(tl.maximum(start - causal_offset, 0) * GROUP // QUERIES, last)
        common = tl.maximum(start + KEYS - 1 - causal_offset, 0) * GROUP
        first_whole = tl.minimum(tl.cdiv(common, QUERIES), last)
    if last_keys is not None:
        number = GROUP * _rows_up_to(last_keys, batch % bound_batches, start - 1, query_len // GROUP)
        first = tl.minimum(tl.maximum(first, number // QUERIES), last)
        first_whole = tl.maximum(first, first_whole)
    if key_padding_mask is not None:
        is_hidden = tl.max(seen.to(tl.int32)) == 0
        first = tl.where(is_hidden, last, first)
        first_whole = tl.where(is_hidden, last, first_whole)
    tl.assume(first <= first_whole)
    stop = last
    if first_keys is not None:
        number = GROUP * _rows_up_to(first_keys, batch % bound_batches, start + KEYS - 1, query_len // GROUP)
        stop = tl.minimum(tl.cdiv(number, QUERIES), last)
    return first, first_whole, stop, last
