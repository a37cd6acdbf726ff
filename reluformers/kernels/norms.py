# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of queries, keys and attention outputs in compiled code."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .compiled import native
from .tensors import is_watched

FEWEST_NUMBERS = 2**14  # for fewer a call of compiled code costs more than it saves


def norm(
    states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool, plain: Callable
) -> Tensor | None:
    """y = σ(w⊙x) ⊙ g ⊙ x / ρ over the last dimension by compiled code, else None.

    Args:
        states: x [..., dim].
        gain, gate: g and w [dim]; None leaves them out, σ too.
        eps: ε.
        is_mean: whether ρ = √(mean(x²) + ε), and not max(‖x‖₂, ε), or 1 at x = 0.
        plain: the same of all before, in operations of PyTorch: gradients of gradients are by it.
    """
    if not _is_for_compiled_code(states, gain, gate):
        return None
    return _CompiledNorm.apply(states, gain, gate, eps, is_mean, plain)


def _is_for_compiled_code(states: Tensor, *vectors: Tensor | None) -> bool:
    """Whether compiled code takes these rows; these and the vectors have to lie in the memory of a processor."""
    if native is None or is_watched():  # graphs fuse norms by themselves
        return False
    if states.numel() < FEWEST_NUMBERS or states.dtype not in native.DTYPES or not native.is_available():
        return False
    # whatever else there is, PyTorch takes or refuses it
    fitting = (vector is None or vector.shape == states.shape[-1:] for vector in vectors)
    tensors = (tensor for tensor in (states, *vectors) if tensor is not None)
    return all(fitting) and all(type(t) in (Tensor, nn.Parameter) and t.device.type == "cpu" for t in tensors)


class _CompiledNorm(torch.autograd.Function):
    """`norm`, which is no operator of PyTorch as attention is: calls of these take longer than so little work."""

    @staticmethod
    def forward(ctx, states, gain, gate, eps, is_mean, plain) -> Tensor:
        ctx.save_for_backward(states, gain, gate)
        ctx.options, ctx.plain = (eps, is_mean), plain
        return native.norm_forward(states, gain, gate, eps, is_mean)

    @staticmethod
    def backward(ctx, grad_output) -> tuple[Tensor | None, ...]:
        states, *vectors = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            needed = ctx.needs_input_grad[:3]
            inputs = [tensor for tensor, is_needed in zip((states, *vectors), needed, strict=True) if is_needed]
            output = ctx.plain(states, *vectors, *ctx.options)
            found = iter(torch.autograd.grad(output, inputs, grad_output, create_graph=True))
            return *(next(found) if is_needed else None for is_needed in needed), None, None, None
        grad_states, *grads = native.norm_backward(grad_output.to(states.dtype), states, *vectors, *ctx.options)
        grads = [None if grad is None else grad.to(vector.dtype) for grad, vector in zip(grads, vectors, strict=True)]
        return grad_states, *grads, None, None, None
