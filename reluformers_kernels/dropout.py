# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Dropout with fewer random numbers where these are what takes the time."""

import torch
from torch import Tensor

from .compiled import native
from .tensors import are_plain, is_differentiated, is_watched


def dropout(states: Tensor, probability: float) -> Tensor | None:
    """states · D on a processor, for p in (0, 1), else None: other devices keep no mask, and compilers fuse it."""
    if states.device.type != "cpu" or is_watched():
        return None
    is_native = native is not None and states.dtype in native.DTYPES and native.is_available()
    if is_native and are_plain(states) and not is_differentiated():
        return _Dropout.apply(states, probability, int(torch.randint(2**62, ())))
    return states * keep_factors(states, probability)


class _Dropout(torch.autograd.Function):
    """states · D in compiled code, which draws D anew in the backward pass."""

    @staticmethod
    def forward(ctx, states, probability, seed):
        ctx.shape = states.shape
        ctx.options = (probability, seed)
        return native.dropout(states, probability, seed)

    @staticmethod
    def backward(ctx, grad_output):
        if are_plain(grad_output):
            return _Dropout.apply(grad_output, *ctx.options), None, None
        # torch.vmap asks for many gradients at once, so PyTorch multiplies by the same dropout.
        return grad_output * native.dropout(torch.ones(ctx.shape, dtype=grad_output.dtype), *ctx.options), None, None


def keep_factors(states: Tensor, probability: float, generator: torch.Generator | None = None) -> Tensor:
    """D: 0 with probability p in [0, 1), else 1/(1 − p); of the shape, dtype and device of the states.

    On CPUs the share is p rounded to a multiple of 2⁻¹⁶. Without a generator torch's own draws.
    """
    if states.device.type != "cpu":
        kept = 1 - probability
        return torch.empty_like(states).bernoulli_(kept, generator=generator).div_(kept)
    # Words of 64 bits are drawn and give four elements each: on CPUs other than Intel's, bernoulli_ draws 64 bits for
    # each element.
    words = torch.empty(-(-states.numel() // 4), dtype=torch.int64, device=states.device)
    words.random_(-(2**63), None, generator=generator)
    dropped = min(round(probability * 2**16), 2**16 - 1)
    keeps = words.view(torch.int16)[: states.numel()] >= dropped - 2**15
    return keeps.to(states.dtype).div_(1 - probability).view(states.shape)
