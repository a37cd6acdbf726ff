# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Caches of keys and values that `generate` keeps of the source and of the tokens written so far."""

import torch
from torch import Tensor
from transformers import DynamicCache


class SourceCache(DynamicCache):
    """Keys and values of the source: all beams of a sentence hold the same, so that a change of beams moves nothing.

    Beam search only ever exchanges beams of one sentence, so the source need not be copied at every step.
    """

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Leave all as it is."""


class TargetCache(DynamicCache):
    """Keys and values of the tokens so far, in memory that stays: a step adds a row, a change of beams fills a spare.

    Each layer holds [capacity, 2, rows, heads, width]: with time first, what is there is one piece of memory.

    Args:
        max_length: most tokens that are ever held.
    """

    FIRST_CAPACITY = 64

    def __init__(self, max_length: int):
        super().__init__()
        self.max_length = max_length
        self._states: list[Tensor] = []
        self._spare: list[Tensor] = []
        self._lengths: list[int] = []

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_, **__) -> tuple[Tensor, Tensor]:
        """Add keys and values [rows, heads, length, width]; all that there are, as views of the same shape."""
        if layer_idx == len(self._states):
            rows, heads, length, width = key.shape
            # with room to grow: most translations are longer than their first token
            capacity = min(self.max_length, max(self.FIRST_CAPACITY, 2 * length))
            self._states.append(key.new_empty(capacity, 2, rows, heads, width))
            self._spare.append(self._states[-1].new_empty(0))
            self._lengths.append(0)
        start, end = self._lengths[layer_idx], self._lengths[layer_idx] + key.shape[2]
        states = self._states[layer_idx]
        if end > len(states):
            # twice as much each time, so that all copies together cost no more than the last one
            grown = states.new_empty(min(self.max_length, max(end, 2 * len(states))), *states.shape[1:])
            grown[:start] = states[:start]
            self._states[layer_idx] = states = grown
        states[start:end, 0], states[start:end, 1] = key.permute(2, 0, 1, 3), value.permute(2, 0, 1, 3)
        self._lengths[layer_idx] = end
        keys, values = states[:end].unbind(1)
        return keys.permute(1, 2, 0, 3), values.permute(1, 2, 0, 3)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with the rows `beam_idx`, which may be fewer."""
        for layer, (states, spare, length) in enumerate(zip(self._states, self._spare, self._lengths, strict=True)):
            shape = (len(states), 2, len(beam_idx), *states.shape[3:])
            if spare.shape != shape:
                spare = states.new_empty(shape)
            # rows may go to several places, so they cannot be moved inside of one memory
            torch.index_select(states[:length], 2, beam_idx, out=spare[:length])
            self._states[layer], self._spare[layer] = spare, states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens that are held."""
        return self._lengths[layer_idx] if layer_idx < len(self._lengths) else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Number of keys that so many new queries see, and the first one's place."""
        return self.get_seq_length(layer_idx) + query_length, 0
