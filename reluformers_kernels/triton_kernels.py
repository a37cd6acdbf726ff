# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of elementwise-activation attention; `triton_attention` has the formulas and starts them.

Four kernels: the output and the thresholds by which rows sum to 1 by tiles of queries, gradients of keys and values
by tiles of keys, gradients of queries by tiles of queries. No two programs write to one place, so nothing is added
atomically. Scores never leave the registers.

All take the tensors [batch, heads, length, head_dim] as `states`, their first three strides in one row as `strides`
(the last is 1), float32 [batch · heads, query_len] or None for each row statistic, r [batch or 1, query_len] and the
key mask [batch, key_len] as dense rows, or None; likewise, as
`bounds`, first and last keys int32 [bound_batches, query_len], and θ of each row.
"""

from __future__ import annotations

from .triton_functions import (
    activated,
    activated_and_rounded,
    find_place,
    find_seen_keys,
    head_of,
    is_kept,
    jit,
    key_range,
    load_bound,
    load_row,
    load_tile,
    log_of,
    query_range,
    row_grad_of,
    store_row,
    store_tile,
    times_derivative,
    tl,
    visible_scores,
)


@jit
def forward_kernel(
    states,
    strides,
    sums,
    row_factors,
    key_padding_mask,
    seed,
    learned_threshold,
    bounds,
    row_thresholds,
    numbers,
    heads,
    query_len,
    key_len,
    causal_offset,
    rows_per_position,
    row_batches,
    bound_batches,
    drop_below,
    ACTIVATION: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    IS_AFFINE: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Output and statistics of one tile of queries."""
    query, key, value, output = states
    row_sums, weighted_logs, nonzeros = sums
    threshold, scale, output_scale = numbers
    if learned_threshold is not None:
        threshold = tl.load(learned_threshold).to(tl.float32)
    place, batch, head, start = find_place(query_len, heads, QUERIES, True)
    rows = start + tl.arange(0, QUERIES)
    if seed is not None:
        seed = tl.load(seed)
    key, value = head_of(key, strides, 1, batch, head), head_of(value, strides, 2, batch, head)
    query = head_of(query, strides, 0, batch, head)
    query_tile = load_tile(query, start, strides[2], rows < query_len, HEAD_DIM, PADDED_DIM, QUERIES)
    factors = load_row(row_factors, batch % row_batches, rows, query_len)
    # float16 may overflow if weights are divided after they are rounded
    IS_HALF: tl.constexpr = row_factors is not None and value.dtype.element_ty == tl.float16
    output_tile = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    row_sum = tl.zeros([QUERIES], tl.float32)
    log_sum = tl.zeros([QUERIES], tl.float32)
    count = tl.zeros([QUERIES], tl.float32)
    lower = load_bound(bounds[0], batch % bound_batches, rows, query_len, 0)[:, None]
    upper = load_bound(bounds[1], batch % bound_batches, rows, query_len, 0)[:, None]
    if row_thresholds is not None:
        threshold = load_row(row_thresholds, place, rows, query_len)[:, None]
    begin, whole, end = key_range(
        key_padding_mask,
        bounds,
        bound_batches,
        query_len,
        batch,
        start,
        key_len,
        causal_offset,
        rows_per_position,
        IS_CAUSAL,
        QUERIES,
        KEYS,
    )
    # the last tiles go first: a loop that may do nothing must not be the one that begins with sums of 0, or the
    # assembler lets every matrix product wait for the one before (its note C7515)
    for phase in tl.static_range(2):
        for first in tl.range(whole if phase == 0 else begin, end if phase == 0 else whole, KEYS):
            keys = first + tl.arange(0, KEYS)
            seen = find_seen_keys(key_padding_mask, batch, keys, key_len, phase == 1)
            key_tile = load_tile(key, first, strides[5], seen, HEAD_DIM, PADDED_DIM, KEYS)
            value_tile = load_tile(value, first, strides[8], seen, HEAD_DIM, PADDED_DIM, KEYS)
            scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
            if IS_AFFINE:
                scores = scores * scale - threshold
            if row_sums is None and seed is None and not IS_HALF:
                weights = activated_and_rounded(scores, value_tile.dtype, ACTIVATION)
            else:
                weights = activated(scores, ACTIVATION)
            if IS_CAUSAL and phase == 0:
                weights = tl.where(keys[None, :] <= rows[:, None] // rows_per_position + causal_offset, weights, 0.0)
            if bounds[0] is not None:
                weights = tl.where(keys[None, :] >= lower, weights, 0.0)
            if bounds[1] is not None:
                weights = tl.where(keys[None, :] <= upper, weights, 0.0)
            if row_sums is not None:
                weights = tl.where(seen[None, :], weights, 0.0)
                row_sum += tl.sum(weights, 1)
            if weighted_logs is not None:
                log_sum += tl.sum(weights * log_of(weights), 1)
                count += tl.sum((weights != 0).to(tl.float32), 1)
            if seed is not None:
                kept = is_kept(seed, place, rows, first, drop_below, KEYS)
                weights = tl.where(kept, weights, 0.0)
            if IS_HALF:
                weights *= factors[:, None]
            # keys that were not loaded have values of 0, so their weights do not matter
            output_tile = tl.dot(weights.to(value_tile.dtype), value_tile, output_tile, input_precision=PRECISION)
    if not IS_HALF:
        output_tile *= factors[:, None]
    output = head_of(output, strides, 3, batch, head)
    store_tile(output, output_tile * output_scale, start, strides[11], query_len, HEAD_DIM)
    store_row(row_sums, row_sum, place, rows, query_len)
    store_row(weighted_logs, log_sum, place, rows, query_len)
    store_row(nonzeros, count, place, rows, query_len)


@jit
def threshold_kernel(
    states,
    strides,
    found,
    key_padding_mask,
    bounds,
    scale,
    heads,
    query_len,
    key_len,
    causal_offset,
    rows_per_position,
    bound_batches,
    ACTIVATION: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """θ of one tile of queries by which their weights sum to 1, by the steps of `blockwise_thresholds`.

    The first walk over the keys finds the largest score of each row; each further one is a step for all rows.
    """
    query, key = states
    place, batch, head, start = find_place(query_len, heads, QUERIES, True)
    rows = start + tl.arange(0, QUERIES)
    query, key = head_of(query, strides, 0, batch, head), head_of(key, strides, 1, batch, head)
    query_tile = load_tile(query, start, strides[2], rows < query_len, HEAD_DIM, PADDED_DIM, QUERIES)
    lower = load_bound(bounds[0], batch % bound_batches, rows, query_len, 0)
    begin, _, end = key_range(
        key_padding_mask,
        bounds,
        bound_batches,
        query_len,
        batch,
        start,
        key_len,
        causal_offset,
        rows_per_position,
        IS_CAUSAL,
        QUERIES,
        KEYS,
    )
    upper = rows // rows_per_position + causal_offset if IS_CAUSAL else rows * 0 + key_len
    upper = tl.minimum(upper, load_bound(bounds[1], batch % bound_batches, rows, query_len, 2147483647))
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    for first in tl.range(begin, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
        key_tile = load_tile(key, first, strides[5], seen, HEAD_DIM, PADDED_DIM, KEYS)
        scores = visible_scores(query_tile, key_tile, scale, keys, seen, lower, upper, PRECISION)
        largest = tl.maximum(largest, tl.max(scores, 1))
    is_null = largest == float("-inf")
    lowest = tl.where(is_null, 0.0, largest - 1.0)
    threshold = tl.zeros([QUERIES], tl.float32)
    steps = 0
    while steps < 64:
        slopes = tl.zeros([QUERIES], tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        for first in tl.range(begin, end, KEYS):
            keys = first + tl.arange(0, KEYS)
            seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
            key_tile = load_tile(key, first, strides[5], seen, HEAD_DIM, PADDED_DIM, KEYS)
            scores = visible_scores(query_tile, key_tile, scale, keys, seen, lower, upper, PRECISION)
            above = tl.maximum(scores - lowest[:, None] - threshold[:, None], 0.0)
            if ACTIVATION == "relu":
                slopes += tl.sum((above > 0).to(tl.float32), 1)
                total += tl.sum(above, 1)
            else:
                slopes += tl.sum(above, 1)
                total += tl.sum(above * above, 1)
        excess = total - (1.0 if ACTIVATION == "relu" else tl.sqrt(total))
        more = tl.maximum(excess / tl.maximum(slopes, 1e-30), 0.0)
        threshold += more
        steps = tl.where(tl.max(more) > 1.1920928955078125e-07, steps + 1, 64)  # what float32 can add to 1
    store_row(found, tl.where(is_null, float("inf"), lowest + threshold), place, rows, query_len)


@jit
def key_kernel(
    states,
    strides,
    row_grads,
    row_factors,
    key_padding_mask,
    seed,
    learned_threshold,
    bounds,
    row_thresholds,
    numbers,
    heads,
    query_len,
    key_len,
    causal_offset,
    rows_per_position,
    row_batches,
    bound_batches,
    drop_below,
    ACTIVATION: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    IS_AFFINE: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Gradients of one tile of keys and values. Tiles of weights are transposed here: [KEYS, QUERIES]."""
    query, key, value, grad_output, grad_key, grad_value = states
    threshold, scale, kept_share, grad_scale, value_scale = numbers
    if learned_threshold is not None:
        threshold = tl.load(learned_threshold).to(tl.float32)
    place, batch, head, start = find_place(key_len, heads, KEYS, False)
    keys = start + tl.arange(0, KEYS)
    seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
    if seed is not None:
        seed = tl.load(seed)
    row_sum_grads, weighted_log_grads = row_grads
    query, grad_output = head_of(query, strides, 0, batch, head), head_of(grad_output, strides, 3, batch, head)
    key, value = head_of(key, strides, 1, batch, head), head_of(value, strides, 2, batch, head)
    key_tile = load_tile(key, start, strides[5], seen, HEAD_DIM, PADDED_DIM, KEYS)
    value_tile = load_tile(value, start, strides[8], seen, HEAD_DIM, PADDED_DIM, KEYS)
    grad_key_tile = tl.zeros([KEYS, PADDED_DIM], tl.float32)
    grad_value_tile = tl.zeros([KEYS, PADDED_DIM], tl.float32)
    first, first_whole, stop, last = query_range(
        key_padding_mask,
        bounds,
        bound_batches,
        batch,
        seen,
        start,
        query_len,
        causal_offset,
        rows_per_position,
        IS_CAUSAL,
        QUERIES,
        KEYS,
    )
    for phase in tl.static_range(2):  # tiles with an edge, then whole ones, as in the forward pass
        for step in tl.range(first if phase == 0 else first_whole, first_whole + 1 if phase == 0 else stop):
            tile = step
            if phase == 0:
                tile = tl.where(step < first_whole, step, last)
            rows = tile * QUERIES + tl.arange(0, QUERIES)
            is_row = rows < query_len
            if phase == 1:
                is_row = tl.full([QUERIES], 1, tl.int1)
            query_tile = load_tile(query, tile * QUERIES, strides[2], is_row, HEAD_DIM, PADDED_DIM, QUERIES)
            grad_tile = load_tile(grad_output, tile * QUERIES, strides[11], is_row, HEAD_DIM, PADDED_DIM, QUERIES)
            scores = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
            grads = tl.dot(value_tile, tl.trans(grad_tile), input_precision=PRECISION)
            if row_thresholds is not None:
                scores = scores * scale - load_row(row_thresholds, place, rows, query_len)[None, :]
            elif IS_AFFINE:
                scores = scores * scale - threshold
            weights = activated(scores, ACTIVATION)
            factors = load_row(row_factors, batch % row_batches, rows, query_len)[None, :]
            passed = weights * factors
            grads *= factors
            if IS_CAUSAL and phase == 0:
                is_visible = keys[:, None] <= rows[None, :] // rows_per_position + causal_offset
                passed = tl.where(is_visible, passed, 0.0)
            if bounds[0] is not None:
                lower = load_bound(bounds[0], batch % bound_batches, rows, query_len, 0)[None, :]
                passed = tl.where(keys[:, None] >= lower, passed, 0.0)
            if bounds[1] is not None:
                upper = load_bound(bounds[1], batch % bound_batches, rows, query_len, 0)[None, :]
                passed = tl.where(keys[:, None] <= upper, passed, 0.0)
            if seed is not None:
                kept = tl.trans(is_kept(seed, place, rows, start, drop_below, KEYS))
                passed, grads = tl.where(kept, passed, 0.0), tl.where(kept, grads, 0.0)
            grad_value_tile = tl.dot(passed.to(grad_tile.dtype), grad_tile, grad_value_tile, input_precision=PRECISION)
            if row_sum_grads is not None:
                row_sum_grad = load_row(row_sum_grads, place, rows, query_len)[None, :]
                weighted_log_grad = load_row(weighted_log_grads, place, rows, query_len)[None, :]
                grads += kept_share * row_grad_of(row_sum_grad, weighted_log_grad, weights)
            grads = times_derivative(grads, scores, weights, ACTIVATION)
            if IS_CAUSAL and phase == 0:
                grads = tl.where(is_visible, grads, 0.0)
            if bounds[0] is not None:
                grads = tl.where(keys[:, None] >= lower, grads, 0.0)
            if bounds[1] is not None:
                grads = tl.where(keys[:, None] <= upper, grads, 0.0)
            grad_key_tile = tl.dot(grads.to(query_tile.dtype), query_tile, grad_key_tile, input_precision=PRECISION)
    grad_key_tile = tl.where(seen[:, None], grad_key_tile * grad_scale, 0.0)
    grad_value_tile = tl.where(seen[:, None], grad_value_tile * value_scale, 0.0)
    store_tile(head_of(grad_key, strides, 4, batch, head), grad_key_tile, start, strides[14], key_len, HEAD_DIM)
    store_tile(head_of(grad_value, strides, 5, batch, head), grad_value_tile, start, strides[17], key_len, HEAD_DIM)


@jit
def query_kernel(
    states,
    strides,
    row_grads,
    row_factors,
    key_padding_mask,
    seed,
    learned_threshold,
    bounds,
    row_thresholds,
    numbers,
    heads,
    query_len,
    key_len,
    causal_offset,
    rows_per_position,
    row_batches,
    bound_batches,
    drop_below,
    ACTIVATION: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    IS_AFFINE: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Gradients of one tile of queries, and those of the threshold by query."""
    query, key, value, grad_output, grad_query = states
    row_sum_grads, weighted_log_grads, grad_rows = row_grads
    threshold, scale, kept_share, grad_scale, _ = numbers
    if learned_threshold is not None:
        threshold = tl.load(learned_threshold).to(tl.float32)
    place, batch, head, start = find_place(query_len, heads, QUERIES, True)
    rows = start + tl.arange(0, QUERIES)
    if seed is not None:
        seed = tl.load(seed)
    key, value = head_of(key, strides, 1, batch, head), head_of(value, strides, 2, batch, head)
    query, grad_output = head_of(query, strides, 0, batch, head), head_of(grad_output, strides, 3, batch, head)
    query_tile = load_tile(query, start, strides[2], rows < query_len, HEAD_DIM, PADDED_DIM, QUERIES)
    grad_tile = load_tile(grad_output, start, strides[11], rows < query_len, HEAD_DIM, PADDED_DIM, QUERIES)
    factors = load_row(row_factors, batch % row_batches, rows, query_len)
    row_sum_grad = load_row(row_sum_grads, place, rows, query_len)[:, None]
    weighted_log_grad = load_row(weighted_log_grads, place, rows, query_len)[:, None]
    grad_query_tile = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    grad_sum = tl.zeros([QUERIES], tl.float32)
    IS_HALF: tl.constexpr = row_factors is not None and query.dtype.element_ty == tl.float16
    lower = load_bound(bounds[0], batch % bound_batches, rows, query_len, 0)[:, None]
    upper = load_bound(bounds[1], batch % bound_batches, rows, query_len, 0)[:, None]
    if row_thresholds is not None:
        threshold = load_row(row_thresholds, place, rows, query_len)[:, None]
    begin, whole, end = key_range(
        key_padding_mask,
        bounds,
        bound_batches,
        query_len,
        batch,
        start,
        key_len,
        causal_offset,
        rows_per_position,
        IS_CAUSAL,
        QUERIES,
        KEYS,
    )
    for phase in tl.static_range(2):  # the last tiles, then whole ones, as in the forward pass
        for first in tl.range(whole if phase == 0 else begin, end if phase == 0 else whole, KEYS):
            keys = first + tl.arange(0, KEYS)
            seen = find_seen_keys(key_padding_mask, batch, keys, key_len, phase == 1)
            key_tile = load_tile(key, first, strides[5], seen, HEAD_DIM, PADDED_DIM, KEYS)
            value_tile = load_tile(value, first, strides[8], seen, HEAD_DIM, PADDED_DIM, KEYS)
            scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
            grads = tl.dot(grad_tile, tl.trans(value_tile), input_precision=PRECISION)
            if IS_AFFINE:
                scores = scores * scale - threshold
            weights = activated(scores, ACTIVATION)
            if seed is not None:
                kept = is_kept(seed, place, rows, first, drop_below, KEYS)
                grads = tl.where(kept, grads, 0.0)
            if row_sum_grads is not None or IS_HALF:
                grads *= factors[:, None]
            if row_sum_grads is not None:
                grads += kept_share * row_grad_of(row_sum_grad, weighted_log_grad, weights)
            grads = times_derivative(grads, scores, weights, ACTIVATION)
            if IS_CAUSAL and phase == 0:
                grads = tl.where(keys[None, :] <= rows[:, None] // rows_per_position + causal_offset, grads, 0.0)
            if bounds[0] is not None:
                grads = tl.where(keys[None, :] >= lower, grads, 0.0)
            if bounds[1] is not None:
                grads = tl.where(keys[None, :] <= upper, grads, 0.0)
            if grad_rows is not None:
                if row_sum_grads is not None:
                    grads = tl.where(seen[None, :], grads, 0.0)
                grad_sum += tl.sum(grads, 1)
            # keys that were not loaded are 0, so the gradients of their scores do not matter
            grad_query_tile = tl.dot(grads.to(key_tile.dtype), key_tile, grad_query_tile, input_precision=PRECISION)
    if row_sum_grads is None and not IS_HALF:
        grad_query_tile *= factors[:, None]
        grad_sum *= factors
    grad_query = head_of(grad_query, strides, 4, batch, head)
    store_tile(grad_query, grad_query_tile * grad_scale, start, strides[14], query_len, HEAD_DIM)
    store_row(grad_rows, grad_sum, place, rows, query_len)


@jit
def touch_kernel(place):
    """Write one number."""
    tl.store(place, 1.0)
