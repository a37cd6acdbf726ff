# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Everything faster than plain PyTorch: attention, norms, dropout and the search of `generate`.

Models find this package by `modeling/kernels.py`, those of saved folders too, whichever version of the library wrote
them. So it is a package of its own, imported as `reluformers_kernels`: it knows tensors, numbers and names alone,
and opening a folder registers none of the library's classes. Each function here gives None where plain PyTorch is as
good: the caller then computes what it asked for.
"""

from .activations import ACTIVATIONS, SPARSE_DISTRIBUTIONS, PassOptions
from .dropout import dropout
from .fused_attention import factors_of_rows, fastest_attention, rectified_attention
from .linear import is_quantized, quantize_int8
from .norms import norm
from .search import SearchMixin, explain_search
from .softmax1 import softmax1

# Callers ask for the interface number, which counts up when an exported name changes its arguments or meaning.
INTERFACE = 4

__all__ = [
    "ACTIVATIONS",
    "INTERFACE",
    "SPARSE_DISTRIBUTIONS",
    "PassOptions",
    "SearchMixin",
    "dropout",
    "explain_search",
    "factors_of_rows",
    "fastest_attention",
    "is_quantized",
    "norm",
    "quantize_int8",
    "rectified_attention",
    "softmax1",
]
