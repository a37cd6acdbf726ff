# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of queries, keys and attention outputs, one operation each way: compiled code on CPUs, Triton on GPUs."""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

from .compiled import native
from .tensors import NAMESPACE, is_dispatched, is_traced

_PLAIN = (Tensor, nn.Parameter)
FEWEST_NUMBERS = 2**14  # For fewer than `FEWEST_NUMBERS` numbers, a call of a compiled norm costs more than it saves.


def norm(
    states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool, plain: Callable
) -> Tensor | None:
    """y = σ(w⊙x) ⊙ g ⊙ x / ρ over the last dimension as one operation, else None.

    Args:
        states: x [..., dim].
        gain, gate: g [dim] or [1], and w [dim]; None leaves them out, σ too.
        eps: ε.
        is_mean: whether ρ = √(mean(x²) + ε), and not max(‖x‖₂, ε), or 1 at x = 0.
        plain: the same of all before, in operations of PyTorch: gradients of gradients are by it.
    """
    if not _is_taken(states, gain, gate):
        return None
    return _Norm.apply(states, gain, gate, eps, is_mean, plain)


def _is_taken(states: Tensor, gain: Tensor | None, gate: Tensor | None) -> bool:
    """Whether there is code for these rows, and all lies in the memory of their device."""
    if is_traced():  # torch.compile fuses PyTorch's norms itself.
        return False
    device = states.device
    width = states.shape[-1]
    if device.type == "cpu":
        is_known = native is not None and states.dtype in native.DTYPES and native.is_available()
        is_known = is_known and states.numel() >= FEWEST_NUMBERS
    elif device.type == "cuda":
        # Triton is imported only where there is a GPU, because the import takes long.
        from .triton_norms import can_take

        is_known = can_take(states)
    else:
        return False
    # PyTorch takes or refuses all input that compiled norms do not know.
    is_known = is_known and type(states) in _PLAIN
    if gain is not None:
        is_known = is_known and type(gain) in _PLAIN and gain.device == device and gain.shape in ((width,), (1,))
    if gate is not None:
        is_known = is_known and type(gate) in _PLAIN and gate.device == device and gate.shape == (width,)
    return is_known


def _code_for(states: Tensor) -> ModuleType:
    if states.device.type == "cpu":
        return native
    from . import triton_norms

    return triton_norms


def _wide(gain: Tensor | None, states: Tensor) -> Tensor | None:
    if gain is None or gain.shape == states.shape[-1:]:
        return gain
    return gain.expand(states.shape[-1])


def _run_forward(states, gain, gate, eps, is_mean) -> Tensor:
    return _code_for(states).norm_forward(states, _wide(gain, states), gate, eps, is_mean)


def _run_backward(grad_output, states, gain, gate, eps, is_mean) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, g and w."""
    inputs = (grad_output.to(states.dtype), states, _wide(gain, states), gate)
    grad_states, grad_gain, grad_gate = _code_for(states).norm_backward(*inputs, eps, is_mean)
    if gain is not None and gain.shape != grad_gain.shape:
        grad_gain = grad_gain.sum().view(1)
    return grad_states, grad_gain, grad_gate


_OPTIONS = "Tensor states, Tensor? gain, Tensor? gate, float eps, bool is_mean"
# Dispatch modes need a registered operator. Other calls skip the dispatch, which takes longer than a small norm.
_forward_operator = torch.library.custom_op(
    f"{NAMESPACE}::norm", _run_forward, mutates_args=(), schema=f"({_OPTIONS}) -> Tensor"
)


@torch.library.custom_op(
    f"{NAMESPACE}::norm_backward",
    mutates_args=(),
    schema=f"(Tensor grad_output, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)
def _backward_operator(grad_output, states, *options) -> tuple[Tensor, ...]:
    """As an operator returns tensors, those of vectors that are not there are empty."""
    grads = _run_backward(grad_output, states, *options)
    return tuple(states.new_empty(0) if grad is None else grad for grad in grads)


class _Norm(torch.autograd.Function):
    """`norm` with its gradients."""

    @staticmethod
    def forward(ctx, states, gain, gate, eps, is_mean, plain) -> Tensor:
        ctx.save_for_backward(states, gain, gate)
        ctx.options = (eps, is_mean)
        ctx.plain = plain
        return (_forward_operator if is_dispatched() else _run_forward)(states, gain, gate, eps, is_mean)

    @staticmethod
    def backward(ctx, grad_output) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # If gradients of gradients are wanted, PyTorch computes the norm again.
            trained = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
            output = ctx.plain(*inputs, *ctx.options)
            gradients = iter(torch.autograd.grad(output, trained, grad_output, create_graph=True))
            return *(next(gradients) if is_needed else None for is_needed in needed), None, None, None
        run = _backward_operator if is_dispatched() else _run_backward
        grads = run(grad_output, *inputs, *ctx.options)
        grads = (
            grad.to(given.dtype) if is_needed else None
            for grad, given, is_needed in zip(grads, inputs, needed, strict=True)
        )
        return *grads, None, None, None
