# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Attention with an elementwise φ in pure PyTorch, block by block: exact, and in memory linear in the length.

    out_i = r_i · Σ_j D_ij·w_ij·v_j,   w_ij = φ(a·q_i·k_j − θ) over the visible keys j

A block of weights is made from some queries and some keys that they may see, used and forgotten; the backward pass
makes it again. There is no softmax, so blocks add up. D is 1, or with dropout 0 or 1/(1 − p), drawn for each block
from a seed that both passes share.
"""

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .activations import GRADIENTS, NUMBER_OF_SUMS, PassOptions, activate, aten
from .dropout import keep_factors
from .tensors import at_least_float32, compute_dtype, wide_dtype

# A block has at most `_ELEMENTS` attention weights for each thread: with its operands it must stay in a core's cache.
_ELEMENTS = 2**19
# A block of attention weights has at most `_ROWS` queries and `_KEYS` keys, because their rows must lie in the cache
# beside it.
_ROWS = 512
_KEYS = 1024
# With causality a block is cut to no fewer than `_CAUSAL_ROWS` queries for each thread, as threads wait for each other
# after each operation.
_CAUSAL_ROWS = 64
# With causality long queries are cut into at least `_CAUSAL_PARTS` blocks, because half of each square on the diagonal
# is wasted.
_CAUSAL_PARTS = 16


@dataclass
class _Block:
    """Weights of some queries of some heads for some keys that these may see."""

    number: int
    index: tuple[int, slice, slice]  # A block's index selects a row of the batch, heads and queries.
    keys: slice
    key: Tensor  # Keys of the block are [heads, keys, head_dim].
    value: Tensor
    mask: Tensor | None  # The mask of a block is bool [1, queries or 1, keys] if its visible keys have holes.
    diagonal: int | None  # Query t sees keys of the block up to diagonal + t, or with None those of the mask, or all.

    def take(self, states: Tensor) -> Tensor:
        """Numbers of these queries, in the dtype of products    [heads, queries, width]."""
        return states[self.index].to(self.key.dtype)

    def weights(self, scores: Tensor, query: Tensor, options: PassOptions) -> tuple[Tensor, Tensor | None]:
        """w of a·q·k, which is used up, and z where φ′ needs it    [heads, queries, keys]."""
        row_thresholds = options.learned_threshold if _has_thresholds_of_rows(options) else options.row_thresholds
        # The threshold θ is subtracted in float32, because weights near 0 are differences of large numbers.
        if row_thresholds is not None:
            row_thresholds = row_thresholds.expand(query.shape[:3])[self.index][..., None]
            scores = (at_least_float32(scores) - row_thresholds).to(scores.dtype)
        elif options.learned_threshold is not None:
            scores -= options.learned_threshold
        elif options.threshold != 0:
            scores -= options.threshold
        if options.activation == "relu":  # ReLU is computed in place, because φ′ follows from w.
            return self.hide(scores.relu_()), None
        return self.hide(activate(options.activation, scores)), scores

    def hide(self, weights: Tensor) -> Tensor:
        """Set the weights of keys that may not be seen to 0, in place where nothing else needs them."""
        if self.mask is not None:
            weights = weights.masked_fill(~self.mask, 0.0)
        if self.diagonal is not None and self.diagonal + 1 < weights.shape[2]:
            first = max(self.diagonal, 0)  # Keys before `first` are seen by every query of the block.
            weights[..., first:].tril_(self.diagonal - first)
        return weights

    def keep(self, weights: Tensor, options: PassOptions) -> Tensor:
        """D of this block, the same whenever it is asked for."""
        generator = torch.Generator(weights.device).manual_seed(int(options.seed) + self.number)
        return keep_factors(weights, options.dropout, generator)


class _Scratch:
    """Memory for one block after the other: fresh megabytes cost more than the sums that are put into them."""

    def __init__(self):
        self.memory: Tensor | None = None

    def bmm(self, left: Tensor, right: Tensor) -> Tensor:
        """left @ right, valid until the next call."""
        shape = (left.shape[0], left.shape[1], right.shape[2])
        elements = shape[0] * shape[1] * shape[2]
        if self.memory is None or self.memory.numel() < elements:
            self.memory = left.new_empty(elements)
        return torch.bmm(left, right, out=self.memory[:elements].view(shape))


def _has_thresholds_of_rows(options: PassOptions) -> bool:
    return options.learned_threshold is not None and options.learned_threshold.dim() == 3


def _for_each_head(query: Tensor, states: Tensor) -> Tensor:
    """Keys or values for every head of the queries, where groups share them."""
    groups = query.shape[1] // max(1, states.shape[1])
    return states if groups <= 1 else states.repeat_interleave(groups, 1)


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions, has_all_keys: bool = False
) -> Iterator[_Block]:
    """Yield the blocks of weights that hold a visible pair, neither too big nor copied to be made."""
    # Dropout is drawn block by block from a seed, so that the forward and the backward pass draw the same.
    threads = torch.get_num_threads() if options.dropout == 0 else 1
    elements = _ELEMENTS * threads
    dtype = compute_dtype(query)
    number = 0
    batch, heads, query_len, _ = query.shape
    offset = options.causal_offset
    rows = min(query_len, _ROWS)
    if offset is not None:
        rows = min(rows, max(_CAUSAL_ROWS * threads, query_len // _CAUSAL_PARTS))
    for row in range(batch):
        seen, padding = _visible_range(options.key_padding_mask, row, key.shape[2])
        bounds = [None if part is None else part[row % len(part)] for part in (options.first_keys, options.last_keys)]
        columns = max(1, seen.stop - seen.start)
        columns = columns if has_all_keys else min(columns, _KEYS)
        # A block has a head for each thread where it can, because several threads share the product of one head badly.
        heads_at_once = max(1, min(heads, max(threads, elements // max(1, rows * columns))))
        height = max(1, min(rows, elements // (heads_at_once * columns)))
        for head in range(0, heads, heads_at_once):
            some = slice(head, head + heads_at_once)
            keys_of_all, values_of_all = (states[row, some].to(dtype) for states in (key, value))
            for first in range(0, query_len, height):
                queries = slice(first, min(first + height, query_len))
                begin, end = _keys_of(queries, seen, offset, *bounds)
                for start in range(begin, end, columns):
                    keys = slice(start, min(start + columns, end))
                    mask = None if padding is None else padding[keys][None, None]
                    diagonal = None if offset is None else first + offset - start
                    if bounds != [None, None]:
                        mask = _band(queries, keys, offset, *bounds, mask)
                        diagonal = None
                    states = keys_of_all[:, keys], values_of_all[:, keys]
                    yield _Block(number, (row, some, queries), keys, *states, mask, diagonal)
                    number += 1


def _visible_range(key_padding_mask: Tensor | None, row: int, key_len: int) -> tuple[slice, Tensor | None]:
    """From the first to the last visible key, and the mask if there are holes in between: padding costs nothing."""
    if key_padding_mask is None:
        return slice(0, key_len), None
    visible = key_padding_mask[row]
    # A padding mask on a GPU is not read, because the host would have to wait for it.
    if visible.device.type != "cpu":
        return slice(0, key_len), visible
    places = visible.nonzero()
    if len(places) == 0:
        return slice(0, 0), None
    keys = slice(int(places[0]), int(places[-1]) + 1)
    return keys, visible if keys.stop - keys.start > len(places) else None


def _keys_of(
    queries: slice, seen: slice, offset: int | None, first_keys: Tensor | None, last_keys: Tensor | None
) -> tuple[int, int]:
    """First key that a query may see, and the one behind the last, as far as the host knows without waiting."""
    begin = seen.start
    end = seen.stop
    if offset is not None:
        end = min(end, queries.stop + offset)
    if first_keys is not None and first_keys.device.type == "cpu":
        begin = max(begin, int(first_keys[queries.start]))
    if last_keys is not None and last_keys.device.type == "cpu":
        end = min(end, int(last_keys[queries.stop - 1]) + 1)
    return begin, end


def _band(
    queries: slice,
    keys: slice,
    offset: int | None,
    first_keys: Tensor | None,
    last_keys: Tensor | None,
    mask: Tensor | None,
) -> Tensor:
    """Mark the keys that each query may see, bool [1, queries, keys]."""
    bound = last_keys if first_keys is None else first_keys
    places = torch.arange(keys.start, keys.stop, device=bound.device)
    parts = [] if mask is None else [mask]
    if offset is not None:
        rows = torch.arange(queries.start, queries.stop, device=bound.device)
        parts.append(places <= (rows + offset)[None, :, None])
    if first_keys is not None:
        parts.append(places >= first_keys[None, queries, None])
    if last_keys is not None:
        parts.append(places <= last_keys[None, queries, None])
    return functools.reduce(operator.and_, parts)


def blockwise_forward(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Attend in blocks: the output, and of each row Σ_j w_ij, Σ_j w_ij·log w_ij and the number of w_ij ≠ 0, or None.

    Args:
        query: [batch, heads, query_len, head_dim], any strides.
        key, value: [batch, heads, key_len, head_dim], or of fewer heads, each for as many of the queries.
        options: what to compute.

    Returns:
        output like `query`, laid out as [batch, query_len, heads, head_dim], and statistics float32 [batch, heads,
        query_len].
    """
    batch, heads, query_len, _ = query.shape
    key = _for_each_head(query, key)
    value = _for_each_head(query, value)
    number = NUMBER_OF_SUMS[options.needed_statistics]
    wide = wide_dtype(query.dtype)
    # Outputs are summed in a wide type, because a long sum in bfloat16 would lose its small terms.
    output = query.new_zeros(batch, query_len, heads, value.shape[-1], dtype=wide).transpose(1, 2)
    sums = [query.new_zeros(query.shape[:3], dtype=wide) for _ in range(number)]
    scratch = _Scratch()
    for block in _blocks(query, key, value, options):
        # The scale multiplies the queries, because there are fewer of them than scores.
        scores = scratch.bmm(block.take(query) * options.scale, block.key.transpose(1, 2))
        weights, _ = block.weights(scores, query, options)
        # Statistics are taken from the weights before dropout, as in the reference.
        if sums:
            for total, numbers in zip(sums, _row_sums(weights, options.needed_statistics), strict=True):
                total[block.index].add_(numbers)
        if options.dropout > 0:
            weights = weights * block.keep(weights, options)
        output[block.index].add_(torch.bmm(weights, block.value))
    if options.row_factors is not None:
        output *= options.row_factors[:, None, :, None]
    output = output.to(query.dtype)
    return output, *sums, *[None] * (3 - number)


def blockwise_thresholds(query: Tensor, key: Tensor, options: PassOptions) -> Tensor:
    """θ of each row [batch, heads, query_len], in float32 or more, by which it sums to 1; φ is relu or relu2."""
    wide = wide_dtype(query.dtype)
    key = _for_each_head(query, key)
    thresholds = torch.full(query.shape[:3], torch.inf, dtype=wide, device=query.device)
    for block in _blocks(query, key, key, options, has_all_keys=True):
        scores = torch.bmm(block.take(query) * options.scale, block.key.transpose(1, 2)).to(wide)
        if block.mask is not None or block.diagonal is not None:
            scores.masked_fill_(block.hide(torch.ones_like(scores)) == 0, -torch.inf)
        thresholds[block.index] = _find_thresholds(scores, options.activation).squeeze(-1)
    return thresholds


def _find_thresholds(scores: Tensor, activation: str) -> Tensor:
    """θ of rows of scores [..., keys], by Newton's method on Σ relu(z − θ) = 1, or √Σ relu(z − θ)² = 1.

    Both are convex in θ and fall, so that steps from the largest z − 1 on never go too far.
    """
    # The threshold θ is at least the largest score − 1, where this score alone gives a sum of 1.
    lowest = scores.amax(-1, keepdim=True) - 1
    scores = scores - lowest
    threshold = torch.zeros_like(lowest)
    for _ in range(64):
        above = (scores - threshold).relu_()
        sums = above.sum(-1, keepdim=True)
        if activation == "relu":
            more = (sums - 1) / (above > 0).sum(-1, keepdim=True)
        else:
            squares = above.square_().sum(-1, keepdim=True)
            more = (squares - squares.sqrt()) / sums
        if not (more > torch.finfo(more.dtype).eps).any():
            break
        threshold += more.clamp_min_(0)
    return (lowest + threshold).masked_fill_(lowest == -torch.inf, torch.inf)  # A query that sees no key has θ = ∞.


def blockwise_backward(
    grad_output: Tensor,
    grad_row_sums: Tensor | None,
    grad_weighted_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: PassOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of query, key, value and θ (float32 [], or by row) from those of output and statistics."""
    batch, heads, query_len, head_dim = query.shape
    groups = heads // max(1, key.shape[1])
    activation = options.activation
    wide = wide_dtype(query.dtype)
    key = _for_each_head(query, key)
    value = _for_each_head(query, value)
    if options.row_factors is not None:
        grad_output = grad_output * options.row_factors[:, None, :, None].to(grad_output.dtype)
    grad_query = query.new_zeros(batch, query_len, heads, head_dim, dtype=wide).transpose(1, 2)
    # Gradients of keys and values are stored transposed, because products are faster so.
    grad_key, grad_value = (states.new_zeros(states.mT.shape, dtype=wide) for states in (key, value))
    scratch = _Scratch()
    second_scratch = _Scratch()
    small_scratch = _Scratch()
    is_of_rows = _has_thresholds_of_rows(options)
    grad_threshold = query.new_zeros(query.shape[:3] if is_of_rows else (), dtype=wide)
    for block in _blocks(query, key, value, options):
        row, some, _ = block.index
        scaled = block.take(query) * options.scale
        grad_states = block.take(grad_output)
        weights, scores = block.weights(scratch.bmm(scaled, block.key.transpose(1, 2)), query, options)
        keep = block.keep(weights, options) if options.dropout > 0 else None
        dropped = weights if keep is None else weights * keep
        grad_value[row, some, :, block.keys].add_(small_scratch.bmm(grad_states.transpose(1, 2), dropped))
        grad_weights = second_scratch.bmm(grad_states, block.value.transpose(1, 2))
        if keep is not None:
            grad_weights *= keep
        if grad_row_sums is not None:
            grad_weights += block.take(grad_row_sums)[..., None]
        if grad_weighted_logs is not None:
            grad_weights += block.take(grad_weighted_logs)[..., None] * _log_derivative(weights)
        # The gradient of ReLU is computed in place. A masked weight is 0, and so is its gradient.
        if activation == "relu":
            grad_scores = aten.threshold_backward.grad_input(grad_weights, weights, 0, grad_input=grad_weights)
        else:
            grad_scores = GRADIENTS[activation](block.hide(grad_weights), scores, weights)
        if is_of_rows:
            grad_threshold[block.index].sub_(grad_scores.sum(-1, dtype=wide))
        elif options.learned_threshold is not None:
            grad_threshold -= grad_scores.sum(dtype=wide)
        grad_key[row, some, :, block.keys].add_(small_scratch.bmm(scaled.transpose(1, 2), grad_scores))
        grad_query[block.index].add_(torch.bmm(grad_scores, block.key))
    if groups > 1:
        grad_key, grad_value = (total.unflatten(1, (-1, groups)).sum(2) for total in (grad_key, grad_value))
    grads = [total.to(query.dtype) for total in (grad_query.mul_(options.scale), grad_key.mT, grad_value.mT)]
    return *grads, grad_threshold


def _row_sums(weights: Tensor, needed_statistics: str) -> list[Tensor]:
    """Σ_j w, and of all of them also Σ_j w·log w and the number of w ≠ 0    [rows, block]."""
    if needed_statistics == "sums":
        return [weights.sum(-1, dtype=wide_dtype(weights.dtype))]
    wide = at_least_float32(weights)
    return [wide.sum(-1), _log(wide).mul_(wide).sum(-1), (weights != 0).sum(-1)]


def _log_derivative(weights: Tensor) -> Tensor:
    """d/dw of w·log max(w, tiny): log w + 1, and log tiny where w is not above it."""
    wide = at_least_float32(weights)
    return _log(wide).add_(wide > torch.finfo(wide.dtype).tiny).to(weights.dtype)


def _log(weights: Tensor) -> Tensor:
    """log max(w, tiny), finite where w is 0."""
    return weights.clamp_min(torch.finfo(weights.dtype).tiny).log_()
