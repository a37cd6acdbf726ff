# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Dropout (Srivastava et al. 2014)."""

from torch import Tensor
from torch.nn import functional

from .kernels import kernels


def apply_dropout(states: Tensor, probability: float, training: bool = True) -> Tensor:
    """Set a share of the states to 0 in training and divide the others by what is left of 1.

    Args:
        states: any shape, floating point.
        probability: that share, in [0, 1).
        training: whether to drop anything.
    """
    if not training or probability == 0:
        return states
    dropped = None if kernels is None else kernels.dropout(states, probability)
    return functional.dropout(states, probability) if dropped is None else dropped
