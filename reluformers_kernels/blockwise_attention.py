# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Attention with an elementwise φ in pure PyTorch, block by block: exact, and in memory linear in the length.

    out_i = r_i · Σ_j D_ij·w_ij·v_j,   w_ij = φ(a·q_i·k_j − θ) over the visible keys j

A block of weights is made from some queries and all keys that they may see, used and forgotten; the backward pass
makes it again. There is no softmax, so a block needs nothing of the others. D is 1, or with dropout 0 or 1/(1 − p),
drawn for each block from a seed that both passes share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .activations import PassOptions, activate, aten, derive
from .dropout import keep_factors
from .tensors import at_least_float32, compute_dtype, wide_dtype

# elements of a block of weights for each thread: with its operands it has to stay in the cache of a core
_ELEMENTS = 2**19
_ROWS = 512  # queries of a block at most
_KEYS = 1024  # keys of a block at most
# the least with causality, for each thread: several wait for each other at the end of each operation
_CAUSAL_ROWS = 64
_CAUSAL_PARTS = 16  # else as many blocks of queries, whose squares on the diagonal are half in vain


@dataclass
class _Block:
    """Weights of some queries for the keys `keys` of a part."""

    number: int
    keys: slice
    mask: Tensor | None  # bool [rows or 1, queries or 1, keys] where they have holes
    diagonal: int | None  # query row t sees the keys up to diagonal + t of the block; None: all, or those of the mask

    def weights(self, scores: Tensor, options: PassOptions, thresholds: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """w of a·q·k, which is used up, and z where φ′ needs it    [rows, queries, keys]."""
        if thresholds is not None:  # weights near 0 are differences of large numbers
            scores = (at_least_float32(scores) - thresholds).to(scores.dtype)
        elif options.learned_threshold is not None:
            scores -= options.learned_threshold
        elif options.threshold != 0:
            scores -= options.threshold
        if options.activation == "relu":  # in place: φ′ can be read off w
            return self.hide(scores.relu_()), None
        return self.hide(activate(options.activation, scores, options.power)), scores

    def hide(self, weights: Tensor) -> Tensor:
        """Set the weights of keys that may not be seen to 0, in place where nothing else needs them."""
        if self.mask is not None:
            weights = weights.masked_fill(~self.mask, 0.0)
        if self.diagonal is not None and self.diagonal + 1 < weights.shape[2]:
            first = max(self.diagonal, 0)  # keys before it are seen by every query of the block
            weights[..., first:].tril_(self.diagonal - first)
        return weights

    def keep(self, weights: Tensor, options: PassOptions) -> Tensor:
        """D of this block, the same whenever it is asked for."""
        generator = torch.Generator(weights.device).manual_seed(int(options.seed) + self.number)
        return keep_factors(weights, options.dropout, generator)


@dataclass
class _Part:
    """Rows of the batch, or heads of one row, that see the same keys: 3-dimensional views [rows, length, head_dim]."""

    batch: slice
    heads: slice
    keys: slice
    key: Tensor
    value: Tensor
    mask: Tensor | None  # bool [rows, 1, key_len] where the range of keys has holes

    def bounds(self, bounds: Tensor) -> Tensor:
        """First or last key of each query."""
        return bounds[self.batch.start if len(bounds) > 1 else 0]

    def take(self, states: Tensor, queries: slice, dtype: torch.dtype) -> Tensor:
        """These queries, or what belongs to them    [rows, queries, width]."""
        return states[self.batch, self.heads, queries].flatten(0, 1).to(dtype)

    def take_thresholds(self, query: Tensor, queries: slice, options: PassOptions) -> Tensor | None:
        """θ of each row    [rows, queries, 1]."""
        thresholds = options.learned_threshold if _has_thresholds_of_rows(options) else options.row_thresholds
        if thresholds is None:
            return None
        return self.take(thresholds.expand(query.shape[:3])[..., None], queries, thresholds.dtype)


def _has_thresholds_of_rows(options: PassOptions) -> bool:
    return options.learned_threshold is not None and options.learned_threshold.dim() == 3


def _for_each_head(query: Tensor, *states: Tensor) -> list[Tensor]:
    """Keys and values for every head of the queries, where groups share them."""
    groups = query.shape[1] // max(1, states[0].shape[1])
    return [part if groups <= 1 else part.repeat_interleave(groups, 1) for part in states]


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


def _parts(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions, rows: int, elements: int, threads: int
) -> Iterator[_Part]:
    """Split batch and heads so that a block of `rows` queries is neither too big nor copied to be made."""
    batch, heads, query_len, _ = query.shape
    dtype, key_padding_mask = compute_dtype(query), options.key_padding_mask
    small = heads * query_len * key.shape[2] * batch <= elements
    flat = all(states.stride(0) == heads * states.stride(1) for states in (query, key, value))
    if (
        small and flat and options.dropout == 0 and options.first_keys is None and options.last_keys is None
    ):  # with dropout, the strides must not decide what a block is
        mask = None if key_padding_mask is None else key_padding_mask.repeat_interleave(heads, 0)[:, None]
        whole = slice(None)
        keys = slice(0, key.shape[2])
        yield _Part(whole, whole, keys, key.flatten(0, 1).to(dtype), value.flatten(0, 1).to(dtype), mask)
        return
    for row in range(batch):
        keys, mask = _visible_range(None if key_padding_mask is None else key_padding_mask[row], key.shape[2])
        columns = max(1, min(_KEYS, keys.stop - keys.start))
        # a product of one head is shared badly by several threads
        heads_at_once = max(threads, elements // max(1, rows * columns))
        for some in _even_slices(0, heads, heads_at_once):
            states = [tensor[row, some, keys].to(dtype) for tensor in (key, value)]
            yield _Part(slice(row, row + 1), some, keys, *states, mask)


def _visible_range(key_padding_mask: Tensor | None, key_len: int) -> tuple[slice, Tensor | None]:
    """From the first to the last visible key, and the mask in between if it has holes: padding costs nothing."""
    if key_padding_mask is None:
        return slice(0, key_len), None
    if key_padding_mask.device.type != "cpu":  # to look would make the host wait
        return slice(0, key_len), key_padding_mask[None, None]
    places = key_padding_mask.nonzero()
    if len(places) == 0:
        return slice(0, 0), None
    keys = slice(int(places[0]), int(places[-1]) + 1)
    has_holes = keys.stop - keys.start > len(places)
    return keys, key_padding_mask[None, None, keys] if has_holes else None


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions
) -> Iterator[tuple[_Part, slice, list[_Block]]]:
    """Everything with a visible pair: a part, some queries and, side by side, the blocks of their weights."""
    # D is drawn block by block: both passes need the same ones, whatever happens to the threads in between
    threads = torch.get_num_threads() if options.dropout == 0 else 1
    elements = _ELEMENTS * threads
    query_len, number, causal_offset = query.shape[2], 0, options.causal_offset
    is_plain = options.first_keys is None and options.last_keys is None
    limit = min(query_len, _ROWS)
    if causal_offset is not None:
        limit = min(limit, max(_CAUSAL_ROWS * threads, query_len // _CAUSAL_PARTS))
    for part in _parts(query, key, value, options, limit, elements, threads):
        rows, key_len, _ = part.key.shape
        height = max(1, min(limit, elements // max(1, rows * min(_KEYS, key_len))))
        for first in range(0, query_len, height):
            queries = slice(first, min(first + height, query_len))
            begin, end, diagonal = _first_key(part, first, options), key_len, None
            if causal_offset is not None:
                past = causal_offset - part.keys.start + 1  # keys before the one of position 0
                end = min(key_len, queries.stop - 1 + past)
                diagonal = first + past - 1 if is_plain else None
            if options.last_keys is not None and options.last_keys.device.type == "cpu":
                end = min(end, int(part.bounds(options.last_keys)[queries.stop - 1]) + 1 - part.keys.start)
            blocks = []
            for keys in _even_slices(begin, end, _KEYS):
                mask = None if part.mask is None else part.mask[..., keys]
                if not is_plain:
                    mask = _both(mask, _band(part, queries, keys, options, query.device))
                blocks.append(_Block(number, keys, mask, None if diagonal is None else diagonal - keys.start))
                number += 1
            if blocks:
                yield part, queries, blocks


def _band(part: _Part, queries: slice, keys: slice, options: PassOptions, device: torch.device) -> Tensor | None:
    """Mark the keys that some queries may see by their places, bool [1, queries, keys]; None if all."""
    places = torch.arange(keys.start, keys.stop, device=device) + part.keys.start
    offset, visible = options.causal_offset, None
    if offset is not None and keys.stop + part.keys.start - 1 > queries.start + offset:
        rows = torch.arange(queries.start, queries.stop, device=device)
        visible = places <= (rows + offset)[None, :, None]
    if options.first_keys is not None and (
        device.type != "cpu" or keys.start < _first_key(part, queries.stop - 1, options)
    ):
        visible = _both(visible, places >= part.bounds(options.first_keys)[None, queries, None])
    if options.last_keys is not None:
        visible = _both(visible, places <= part.bounds(options.last_keys)[None, queries, None])
    return visible


def _first_key(part: _Part, query: int, options: PassOptions) -> int:
    """Place in the part of the first key that a query sees, as far as the host knows it without waiting."""
    if options.first_keys is None or options.first_keys.device.type != "cpu":
        return 0
    return max(0, int(part.bounds(options.first_keys)[query]) - part.keys.start)


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Both masks as one, where None lets everything through."""
    return other if one is None else one if other is None else one & other


def _even_slices(begin: int, end: int, limit: int) -> list[slice]:
    """Slices of nearly the same size, none above the limit, that cover what is between two places."""
    length = end - begin
    count = -(-length // limit)
    bounds = [begin + length * place // count for place in range(count + 1)] if count > 0 else []
    return [slice(*pair) for pair in pairwise(bounds)]


def blockwise_forward(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Output, and for each row Σ_j w_ij, Σ_j w_ij·log w_ij and the number of w_ij that are not 0, or None.

    Args:
        query: [batch, heads, query_len, head_dim], any strides.
        key, value: [batch, heads, key_len, head_dim], or of fewer heads, each for as many of the queries.
        options: what to compute.

    Returns:
        output like `query`, laid out as [batch, query_len, heads, head_dim], and statistics float32 [batch, heads,
        query_len].
    """
    batch, heads, query_len, _ = query.shape
    key, value = _for_each_head(query, key, value)
    output = query.new_zeros(batch, query_len, heads, value.shape[-1]).transpose(1, 2)
    dtype, scratch, sums = compute_dtype(query), _Scratch(), [None] * 3
    if options.needed_statistics != "none":
        wide = wide_dtype(query.dtype)
        number = 3 if options.needed_statistics == "all" else 1
        sums[:number] = [torch.zeros(batch, heads, query_len, dtype=wide, device=query.device) for _ in range(number)]
    for part, queries, blocks in _blocks(query, key, value, options):
        # on the queries, of which there are fewer numbers than scores
        scaled = part.take(query, queries, dtype) * options.scale
        states, thresholds = None, part.take_thresholds(query, queries, options)
        for block in blocks:
            scores = scratch.bmm(scaled, part.key[:, block.keys].transpose(1, 2))
            weights, _ = block.weights(scores, options, thresholds)
            # of weights before dropout, as the reference takes them
            if options.needed_statistics != "none":
                for total, numbers in zip(sums, _row_sums(weights, options.needed_statistics), strict=False):
                    place = total[part.batch, part.heads, queries]
                    place += numbers.view(place.shape)
            if options.dropout > 0:
                weights = weights * block.keep(weights, options)
            states = _plus_product(states, weights, part.value[:, block.keys])
        place = output[part.batch, part.heads, queries]
        if options.row_factors is None:
            place.copy_(states.view(place.shape))
        else:
            row_factors = options.row_factors
            factors = row_factors[part.batch if row_factors.shape[0] > 1 else slice(None), None, queries, None]
            torch.mul(states.view(place.shape), factors, out=place)
    return output, *sums


def blockwise_thresholds(query: Tensor, key: Tensor, options: PassOptions) -> Tensor:
    """θ of each row [batch, heads, query_len], in float32 or more, by which it sums to 1; φ is relu or relu2."""
    dtype, wide, (key,) = compute_dtype(query), wide_dtype(query.dtype), _for_each_head(query, key)
    found = torch.full(query.shape[:3], torch.inf, dtype=wide, device=query.device)
    for part, queries, blocks in _blocks(query, key, key, options):
        scaled, scores = part.take(query, queries, dtype) * options.scale, []
        for block in blocks:
            scores.append(torch.bmm(scaled, part.key[:, block.keys].transpose(1, 2)).to(wide))
            if block.mask is not None or block.diagonal is not None:
                scores[-1].masked_fill_(block.hide(torch.ones_like(scores[-1])) == 0, -torch.inf)
        place = found[part.batch, part.heads, queries]
        place.copy_(_find_thresholds(torch.cat(scores, -1), options.activation).view(place.shape))
    return found


def _find_thresholds(scores: Tensor, activation: str) -> Tensor:
    """θ of rows of scores [..., keys], by Newton's method on Σ relu(z − θ) = 1, or √Σ relu(z − θ)² = 1.

    Both are convex in θ and fall, so that steps from the largest z − 1 on never go too far.
    """
    # θ is not below it: there the largest score alone gives a sum of 1
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
    return (lowest + threshold).masked_fill_(lowest == -torch.inf, torch.inf)  # where nothing is seen


def blockwise_backward(
    grad_output: Tensor,
    grad_row_sums: Tensor | None,
    grad_weighted_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: PassOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and θ (float32 [], or of each row) for those of the output and the statistics."""
    batch, heads, query_len, head_dim = query.shape
    groups = heads // max(1, key.shape[1])
    key, value = _for_each_head(query, key, value)
    dtype, activation = compute_dtype(query), options.activation
    if options.row_factors is not None:
        grad_output = grad_output * options.row_factors[:, None, :, None].to(grad_output.dtype)
    grad_query = query.new_zeros(batch, query_len, heads, head_dim).transpose(1, 2)
    # sums over blocks, in at least float32 whatever the products are made in; lying down, as products are faster so
    wide = wide_dtype(query.dtype)
    grad_key, grad_value = (
        torch.zeros(batch, heads, states.shape[3], states.shape[2], dtype=wide, device=query.device)
        for states in (key, value)
    )
    scratch, second_scratch, small_scratch = _Scratch(), _Scratch(), _Scratch()
    is_of_rows = _has_thresholds_of_rows(options)
    grad_threshold = torch.zeros(query.shape[:3] if is_of_rows else (), dtype=wide, device=query.device)
    for part, queries, blocks in _blocks(query, key, value, options):
        scaled = part.take(query, queries, dtype) * options.scale
        grad_states = part.take(grad_output, queries, dtype)
        products, thresholds = None, part.take_thresholds(query, queries, options)
        for block in blocks:
            scores = scratch.bmm(scaled, part.key[:, block.keys].transpose(1, 2))
            weights, scores = block.weights(scores, options, thresholds)
            keep = block.keep(weights, options) if options.dropout > 0 else None
            dropped = weights if keep is None else weights * keep
            _add_product(grad_value, part, block, grad_states, dropped, small_scratch)
            grad_weights = second_scratch.bmm(grad_states, part.value[:, block.keys].transpose(1, 2))
            if keep is not None:
                grad_weights *= keep
            if grad_row_sums is not None:
                grad_weights += part.take(grad_row_sums[..., None], queries, dtype)
            if grad_weighted_logs is not None:
                grad_weights += part.take(grad_weighted_logs[..., None], queries, dtype) * _log_derivative(weights)
            if activation == "relu":  # in place, and 0 where a weight is masked, as that is 0
                grad_scores = aten.threshold_backward.grad_input(grad_weights, weights, 0, grad_input=grad_weights)
            else:
                grad_scores = derive(activation, block.hide(grad_weights), scores, weights, options.power)
            if is_of_rows:
                place = grad_threshold[part.batch, part.heads, queries]
                place -= grad_scores.sum(-1, dtype=wide).view(place.shape)
            elif options.learned_threshold is not None:
                grad_threshold -= grad_scores.sum(dtype=wide)
            _add_product(grad_key, part, block, scaled, grad_scores, small_scratch)
            products = _plus_product(products, grad_scores, part.key[:, block.keys])
        place = grad_query[part.batch, part.heads, queries]
        torch.mul(products.view(place.shape), options.scale, out=place)
    if groups > 1:
        grad_key, grad_value = (total.unflatten(1, (-1, groups)).sum(2) for total in (grad_key, grad_value))
    grad_key, grad_value = (total.transpose(2, 3).to(query.dtype) for total in (grad_key, grad_value))
    return grad_query, grad_key, grad_value, grad_threshold


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


def _plus_product(total: Tensor | None, weights: Tensor, states: Tensor) -> Tensor:
    """total + weights @ states, in the dtype of the product while there is one alone, else in at least float32."""
    if total is None:
        return torch.bmm(weights, states)
    if total.dtype == weights.dtype == at_least_float32(total).dtype:
        return total.baddbmm_(weights, states)
    # in bfloat16 a long sum would swallow its small terms
    return at_least_float32(total) + torch.bmm(weights, states)


def _add_product(
    total: Tensor, part: _Part, block: _Block, states: Tensor, weights: Tensor, scratch: _Scratch
) -> None:
    """Add statesᵀ @ weights, of the keys of a block, to the sums over all blocks [batch, heads, width, key_len]."""
    start = part.keys.start
    place = total[part.batch, part.heads, :, start + block.keys.start : start + block.keys.stop]
    place += scratch.bmm(states.transpose(1, 2), weights).view(place.shape)
