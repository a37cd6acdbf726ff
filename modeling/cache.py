# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The cache of keys and values that `generate` keeps of the source."""

from torch import Tensor
from transformers import DynamicCache


class SourceCache(DynamicCache):
    """Keys and values of the source: all beams of a sentence hold the same, so that a change of beams moves nothing.

    Beam search only ever exchanges beams of one sentence, so the source need not be copied at every step.
    """

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Leave all as it is."""
