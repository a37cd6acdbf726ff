# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of elementwise-activation attention; `triton_attention` has the formulas and starts them.

Four kernels: the output and the thresholds by which rows sum to 1 by tiles of queries, gradients of keys and values
by tiles of keys, gradients of queries by tiles of queries. No two programs write to one address, so nothing is
added atomically. Scores never leave the registers.

All take tensors [batch, heads, length, head_dim]; float32 [batch, heads, positions] or None for each row statistic; r
[batch or 1, positions], the key mask [batch, key_len], and first and last keys int32 [bound_batches, positions] as
dense rows, or None; θ of rows. The first three strides of the first tensors follow (their last is 1), and those of θ,
t0 to t2. They come one by one, as triton's launcher walks over each tuple. `heads` are those of keys, and `query_len`
counts the rows of queries of one of these: GROUP heads of queries share it, whose rows stand side by side.
"""

from __future__ import annotations

from .triton_functions import (
    activated,
    activated_and_rounded,
    find_seen_keys,
    find_tile,
    head_of,
    is_kept,
    jit,
    key_range,
    load_row,
    load_statistic,
    load_thresholds,
    load_tile,
    log_of,
    only_visible,
    query_range,
    row_grad_of,
    store_statistic,
    store_tile,
    times_derivative,
    tl,
    visible_scores,
)


@jit
def forward_kernel(
    query, key, value, output,
    row_sums, weighted_logs, nonzeros,
    row_factors, key_padding_mask, seed, learned_threshold, first_keys, last_keys, row_thresholds,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, t0, t1, t2,
    threshold, scale, output_scale,
    heads, query_len, key_len, causal_offset, row_batches, bound_batches, drop_below,
    ACTIVATION: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_AFFINE: tl.constexpr, PRECISION: tl.constexpr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the output and the statistics of one tile of queries."""
    if learned_threshold is not None:
        threshold = tl.load(learned_threshold).to(tl.float32)
    batch_head, batch, head, start = find_tile(query_len, heads, QUERIES, True)
    rows = start + tl.arange(0, QUERIES)
    if seed is not None:
        seed = tl.load(seed)
    key, value = head_of(key, k0, k1, batch, head), head_of(value, v0, v1, batch, head)
    query = head_of(query, q0, q1 * GROUP, batch, head)
    query_tile = load_tile(query, start, q2, q1, rows < query_len, GROUP, HEAD_DIM, PADDED_DIM, QUERIES)
    factors = load_row(row_factors, batch % row_batches, rows // GROUP, query_len // GROUP, 1.0)
    # float16 may overflow if weights are divided after they are rounded, so they are divided before.
    IS_HALF: tl.constexpr = row_factors is not None and value.dtype.element_ty == tl.float16
    # Outputs are summed in float32, whatever the inputs are.
    output_tile = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    row_sum = tl.zeros([QUERIES], tl.float32)
    log_sum = tl.zeros([QUERIES], tl.float32)
    count = tl.zeros([QUERIES], tl.float32)
    lower = load_row(first_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)[:, None]
    upper = load_row(last_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)[:, None]
    if row_thresholds is not None:
        threshold = load_thresholds(row_thresholds, t0, t1, t2, batch, head, rows, query_len, GROUP)[:, None]
    begin, whole, end = key_range(
        key_padding_mask, first_keys, last_keys, bound_batches, query_len, batch, start, key_len, causal_offset,
        IS_CAUSAL, GROUP, QUERIES, KEYS,
    )  # fmt: skip
    # The last tiles of keys go first. If the loop that may do nothing began with sums of 0, the assembler would let
    # every matrix product wait for the one before (its note C7515).
    for phase in tl.static_range(2):
        for first in tl.range(whole if phase == 0 else begin, end if phase == 0 else whole, KEYS):
            keys = first + tl.arange(0, KEYS)
            seen = find_seen_keys(key_padding_mask, batch, keys, key_len, phase == 1)
            key_tile = load_tile(key, first, k2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
            value_tile = load_tile(value, first, v2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
            scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
            if IS_AFFINE:
                scores = scores * scale - threshold
            if row_sums is None and seed is None and not IS_HALF:
                weights = activated_and_rounded(scores, value_tile.dtype, ACTIVATION)
            else:
                weights = activated(scores, ACTIVATION)
            last_seen = rows[:, None] // GROUP + causal_offset
            bounds = (lower, upper, first_keys, last_keys)
            weights = only_visible(weights, keys[None, :], last_seen, *bounds, IS_CAUSAL and phase == 0)
            if row_sums is not None:
                weights = tl.where(seen[None, :], weights, 0.0)
                row_sum += tl.sum(weights, 1)
            if weighted_logs is not None:
                log_sum += tl.sum(weights * log_of(weights), 1)
                count += tl.sum((weights != 0).to(tl.float32), 1)
            if seed is not None:
                kept = is_kept(seed, batch_head, rows, first, drop_below, KEYS)
                weights = tl.where(kept, weights, 0.0)
            if IS_HALF:
                weights *= factors[:, None]
            # Keys that were not loaded have values of 0, so their weights do not matter.
            output_tile = tl.dot(weights.to(value_tile.dtype), value_tile, output_tile, input_precision=PRECISION)
    if not IS_HALF:
        output_tile *= factors[:, None]
    output = head_of(output, o0, o1 * GROUP, batch, head)
    store_tile(output, output_tile * output_scale, start, o2, o1, query_len, GROUP, HEAD_DIM)
    store_statistic(row_sums, row_sum, batch_head, rows, query_len, GROUP)
    store_statistic(weighted_logs, log_sum, batch_head, rows, query_len, GROUP)
    store_statistic(nonzeros, count, batch_head, rows, query_len, GROUP)


@jit
def threshold_kernel(
    query, key,
    thresholds,
    row_factors, key_padding_mask, seed, learned_threshold, first_keys, last_keys, row_thresholds,
    q0, q1, q2, k0, k1, k2, t0, t1, t2,
    threshold, scale,
    heads, query_len, key_len, causal_offset, row_batches, bound_batches, drop_below,
    ACTIVATION: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_AFFINE: tl.constexpr, PRECISION: tl.constexpr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Find the θ of one tile of queries by which their weights sum to 1, by the steps of `blockwise_thresholds`.

    The first walk over the keys finds the largest score of each row; each further one is a step for all rows.
    """
    batch_head, batch, head, start = find_tile(query_len, heads, QUERIES, True)
    rows = start + tl.arange(0, QUERIES)
    query, key = head_of(query, q0, q1 * GROUP, batch, head), head_of(key, k0, k1, batch, head)
    query_tile = load_tile(query, start, q2, q1, rows < query_len, GROUP, HEAD_DIM, PADDED_DIM, QUERIES)
    lower = load_row(first_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)
    begin, _, end = key_range(
        key_padding_mask, first_keys, last_keys, bound_batches, query_len, batch, start, key_len, causal_offset,
        IS_CAUSAL, GROUP, QUERIES, KEYS,
    )  # fmt: skip
    upper = rows // GROUP + causal_offset if IS_CAUSAL else rows * 0 + key_len
    upper = tl.minimum(
        upper, load_row(last_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 2147483647)
    )
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    for first in tl.range(begin, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
        key_tile = load_tile(key, first, k2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
        scores = visible_scores(query_tile, key_tile, scale, keys, seen, lower, upper, PRECISION)
        largest = tl.maximum(largest, tl.max(scores, 1))
    # A row that sees no key has θ = ∞, so all its weights are 0.
    is_null = largest == float("-inf")
    lowest = tl.where(is_null, 0.0, largest - 1.0)
    found_threshold = tl.zeros([QUERIES], tl.float32)
    steps = 0
    while steps < 64:
        slopes = tl.zeros([QUERIES], tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        for first in tl.range(begin, end, KEYS):
            keys = first + tl.arange(0, KEYS)
            seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
            key_tile = load_tile(key, first, k2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
            scores = visible_scores(query_tile, key_tile, scale, keys, seen, lower, upper, PRECISION)
            above = tl.maximum(scores - lowest[:, None] - found_threshold[:, None], 0.0)
            if ACTIVATION == "relu":
                slopes += tl.sum((above > 0).to(tl.float32), 1)
                total += tl.sum(above, 1)
            else:
                slopes += tl.sum(above, 1)
                total += tl.sum(above * above, 1)
        excess = total - (1.0 if ACTIVATION == "relu" else tl.sqrt(total))
        more = tl.maximum(excess / tl.maximum(slopes, 1e-30), 0.0)
        found_threshold += more
        # The search for θ ends when no step is large enough for float32 to add it to 1.
        steps = tl.where(tl.max(more) > 1.1920928955078125e-07, steps + 1, 64)
    found_threshold = tl.where(is_null, float("inf"), lowest + found_threshold)
    store_statistic(thresholds, found_threshold, batch_head, rows, query_len, GROUP)


@jit
def key_kernel(
    query, key, value, grad_output, grad_key, grad_value,
    row_sum_grads, weighted_log_grads,
    row_factors, key_padding_mask, seed, learned_threshold, first_keys, last_keys, row_thresholds,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, x0, x1, x2, y0, y1, y2, t0, t1, t2,
    threshold, scale, kept_share, grad_scale, value_scale,
    heads, query_len, key_len, causal_offset, row_batches, bound_batches, drop_below,
    ACTIVATION: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_AFFINE: tl.constexpr, PRECISION: tl.constexpr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one tile of keys and values. Tiles of weights are transposed here: [KEYS, QUERIES]."""
    if learned_threshold is not None:
        threshold = tl.load(learned_threshold).to(tl.float32)
    batch_head, batch, head, start = find_tile(key_len, heads, KEYS, False)
    keys = start + tl.arange(0, KEYS)
    seen = find_seen_keys(key_padding_mask, batch, keys, key_len, False)
    if seed is not None:
        seed = tl.load(seed)
    query = head_of(query, q0, q1 * GROUP, batch, head)
    grad_output = head_of(grad_output, o0, o1 * GROUP, batch, head)
    key, value = head_of(key, k0, k1, batch, head), head_of(value, v0, v1, batch, head)
    key_tile = load_tile(key, start, k2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
    value_tile = load_tile(value, start, v2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
    grad_key_tile = tl.zeros([KEYS, PADDED_DIM], tl.float32)
    grad_value_tile = tl.zeros([KEYS, PADDED_DIM], tl.float32)
    first, first_whole, stop, last = query_range(
        key_padding_mask, first_keys, last_keys, bound_batches, batch, seen, start, query_len, causal_offset,
        IS_CAUSAL, GROUP, QUERIES, KEYS,
    )  # fmt: skip
    for phase in tl.static_range(2):  # Tiles of queries with an edge go first, as in the forward pass.
        for step in tl.range(first if phase == 0 else first_whole, first_whole + 1 if phase == 0 else stop):
            tile = step
            if phase == 0:
                tile = tl.where(step < first_whole, step, last)
            rows = tile * QUERIES + tl.arange(0, QUERIES)
            is_row = rows < query_len
            if phase == 1:
                is_row = tl.full([QUERIES], 1, tl.int1)
            query_tile = load_tile(query, tile * QUERIES, q2, q1, is_row, GROUP, HEAD_DIM, PADDED_DIM, QUERIES)
            grad_tile = load_tile(grad_output, tile * QUERIES, o2, o1, is_row, GROUP, HEAD_DIM, PADDED_DIM, QUERIES)
            scores = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
            grads = tl.dot(value_tile, tl.trans(grad_tile), input_precision=PRECISION)
            thresholds = threshold
            if row_thresholds is not None:
                thresholds = load_thresholds(row_thresholds, t0, t1, t2, batch, head, rows, query_len, GROUP)[None, :]
            if IS_AFFINE:
                scores = scores * scale - thresholds
            weights = activated(scores, ACTIVATION)
            factors = load_row(row_factors, batch % row_batches, rows // GROUP, query_len // GROUP, 1.0)[None, :]
            passed = weights * factors
            grads *= factors
            lower = load_row(first_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)[None, :]
            upper = load_row(last_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)[None, :]
            last_seen = rows[None, :] // GROUP + causal_offset
            bounds = (lower, upper, first_keys, last_keys)
            passed = only_visible(passed, keys[:, None], last_seen, *bounds, IS_CAUSAL and phase == 0)
            if seed is not None:
                kept = tl.trans(is_kept(seed, batch_head, rows, start, drop_below, KEYS))
                passed, grads = tl.where(kept, passed, 0.0), tl.where(kept, grads, 0.0)
            grad_value_tile = tl.dot(passed.to(grad_tile.dtype), grad_tile, grad_value_tile, input_precision=PRECISION)
            if row_sum_grads is not None:
                row_sum_grad = load_statistic(row_sum_grads, batch_head, rows, query_len, GROUP)[None, :]
                weighted_log_grad = load_statistic(weighted_log_grads, batch_head, rows, query_len, GROUP)[None, :]
                grads += kept_share * row_grad_of(row_sum_grad, weighted_log_grad, weights)
            grads = times_derivative(grads, scores, weights, ACTIVATION)
            grads = only_visible(grads, keys[:, None], last_seen, *bounds, IS_CAUSAL and phase == 0)
            grad_key_tile = tl.dot(grads.to(query_tile.dtype), query_tile, grad_key_tile, input_precision=PRECISION)
    grad_key_tile = tl.where(seen[:, None], grad_key_tile * grad_scale, 0.0)
    grad_value_tile = tl.where(seen[:, None], grad_value_tile * value_scale, 0.0)
    store_tile(head_of(grad_key, x0, x1, batch, head), grad_key_tile, start, x2, 0, key_len, 1, HEAD_DIM)
    store_tile(head_of(grad_value, y0, y1, batch, head), grad_value_tile, start, y2, 0, key_len, 1, HEAD_DIM)


@jit
def query_kernel(
    query, key, value, grad_output, grad_query,
    row_sum_grads, weighted_log_grads, grad_rows,
    row_factors, key_padding_mask, seed, learned_threshold, first_keys, last_keys, row_thresholds,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, x0, x1, x2, t0, t1, t2,
    threshold, scale, kept_share, grad_scale, value_scale,
    heads, query_len, key_len, causal_offset, row_batches, bound_batches, drop_below,
    ACTIVATION: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_AFFINE: tl.constexpr, PRECISION: tl.constexpr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one tile of queries, and those of the threshold by query."""
    if learned_threshold is not None:
        threshold = tl.load(learned_threshold).to(tl.float32)
    batch_head, batch, head, start = find_tile(query_len, heads, QUERIES, True)
    rows = start + tl.arange(0, QUERIES)
    if seed is not None:
        seed = tl.load(seed)
    key, value = head_of(key, k0, k1, batch, head), head_of(value, v0, v1, batch, head)
    query = head_of(query, q0, q1 * GROUP, batch, head)
    grad_output = head_of(grad_output, o0, o1 * GROUP, batch, head)
    query_tile = load_tile(query, start, q2, q1, rows < query_len, GROUP, HEAD_DIM, PADDED_DIM, QUERIES)
    grad_tile = load_tile(grad_output, start, o2, o1, rows < query_len, GROUP, HEAD_DIM, PADDED_DIM, QUERIES)
    factors = load_row(row_factors, batch % row_batches, rows // GROUP, query_len // GROUP, 1.0)
    if row_sum_grads is not None:
        row_sum_grad = load_statistic(row_sum_grads, batch_head, rows, query_len, GROUP)[:, None]
        weighted_log_grad = load_statistic(weighted_log_grads, batch_head, rows, query_len, GROUP)[:, None]
    grad_query_tile = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    grad_sum = tl.zeros([QUERIES], tl.float32)
    IS_HALF: tl.constexpr = row_factors is not None and query.dtype.element_ty == tl.float16
    lower = load_row(first_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)[:, None]
    upper = load_row(last_keys, batch % bound_batches, rows // GROUP, query_len // GROUP, 0)[:, None]
    if row_thresholds is not None:
        threshold = load_thresholds(row_thresholds, t0, t1, t2, batch, head, rows, query_len, GROUP)[:, None]
    begin, whole, end = key_range(
        key_padding_mask, first_keys, last_keys, bound_batches, query_len, batch, start, key_len, causal_offset,
        IS_CAUSAL, GROUP, QUERIES, KEYS,
    )  # fmt: skip
    for phase in tl.static_range(2):  # The last tiles of keys go first, as in the forward pass.
        for first in tl.range(whole if phase == 0 else begin, end if phase == 0 else whole, KEYS):
            keys = first + tl.arange(0, KEYS)
            seen = find_seen_keys(key_padding_mask, batch, keys, key_len, phase == 1)
            key_tile = load_tile(key, first, k2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
            value_tile = load_tile(value, first, v2, 0, seen, 1, HEAD_DIM, PADDED_DIM, KEYS)
            scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
            grads = tl.dot(grad_tile, tl.trans(value_tile), input_precision=PRECISION)
            if IS_AFFINE:
                scores = scores * scale - threshold
            weights = activated(scores, ACTIVATION)
            if seed is not None:
                kept = is_kept(seed, batch_head, rows, first, drop_below, KEYS)
                grads = tl.where(kept, grads, 0.0)
            if row_sum_grads is not None or IS_HALF:
                grads *= factors[:, None]
            if row_sum_grads is not None:
                grads += kept_share * row_grad_of(row_sum_grad, weighted_log_grad, weights)
            grads = times_derivative(grads, scores, weights, ACTIVATION)
            last_seen = rows[:, None] // GROUP + causal_offset
            bounds = (lower, upper, first_keys, last_keys)
            grads = only_visible(grads, keys[None, :], last_seen, *bounds, IS_CAUSAL and phase == 0)
            if grad_rows is not None:
                if row_sum_grads is not None:
                    grads = tl.where(seen[None, :], grads, 0.0)
                grad_sum += tl.sum(grads, 1)
            # Keys that were not loaded are 0, so the gradients of their scores do not matter.
            grad_query_tile = tl.dot(grads.to(key_tile.dtype), key_tile, grad_query_tile, input_precision=PRECISION)
    if row_sum_grads is None and not IS_HALF:
        grad_query_tile *= factors[:, None]
        grad_sum *= factors
    grad_query = head_of(grad_query, x0, x1 * GROUP, batch, head)
    store_tile(grad_query, grad_query_tile * grad_scale, start, x2, x1, query_len, GROUP, HEAD_DIM)
    store_statistic(grad_rows, grad_sum, batch_head, rows, query_len, GROUP)


@jit
def touch_kernel(address):
    """Write one number."""
    tl.store(address, 1.0)
