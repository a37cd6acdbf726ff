# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The one door to code that is faster than plain PyTorch and gives the same: that of the installed library."""

from types import ModuleType

from torch import Tensor
from torch.nn import functional

INTERFACE = 4  # The models' code was written for this version of the interface of `reluformers_kernels`.


def _find_kernels() -> ModuleType | None:
    """Find `reluformers_kernels`; None where it is not installed, of another interface, or does not load here."""
    try:
        import reluformers_kernels
    except ImportError:
        return None
    # Kernels of another interface are not used: the code of an old folder must not call functions that have changed
    # since.
    return reluformers_kernels if getattr(reluformers_kernels, "INTERFACE", None) == INTERFACE else None


kernels = _find_kernels()


def apply_dropout(states: Tensor, probability: float, training: bool = True) -> Tensor:
    """Set a share of the states to 0 in training and scale up the others (Srivastava et al. 2014)."""
    if not training or probability == 0:
        return states
    # On CPUs PyTorch's dropout draws more random bits than it needs, which takes longer than the product.
    dropped = None if kernels is None else kernels.dropout(states, probability)
    return functional.dropout(states, probability) if dropped is None else dropped
