# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of rows in Triton, each one kernel forward and one backward, which are some ten launches in PyTorch.

    y = a ⊙ x / ρ,   a = g ⊙ σ(w⊙x), g or 1,   ρ = √(mean(x²) + ε), or max(‖x‖, ε) and 1 at x = 0

All is computed in float32. The rows are dealt to a fixed number of programs, each with sums of its own for the
gradients of g and w, so that a repeated step gives the same bits.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .triton_functions import jit, tl, triton
from .triton_start import start

WIDEST = 8192  # One program of a norm's kernel holds rows of at most 8,192 numbers in registers.
# A norm's backward pass has at most 512 programs, some four for each multiprocessor of a large GPU.
PROGRAMS = 512
NUMBERS = 4096  # One program of a norm's kernel holds 4,096 numbers at a time, or one longer row.


@jit
def _loaded(states, rows, columns, is_inside, WIDTH: tl.constexpr):
    return tl.load(states + rows[:, None].to(tl.int64) * WIDTH + columns[None], mask=is_inside, other=0.0).to(
        tl.float32
    )


@jit
def _scaled(x, eps, IS_MEAN: tl.constexpr, WIDTH: tl.constexpr):
    """1/ρ of each row, and by what a sum over the row is multiplied in the derivative of 1/ρ."""
    total = tl.sum(x * x, axis=1)
    if IS_MEAN:
        factor = 1.0 / tl.sqrt(total / WIDTH + eps)
        slope = factor / WIDTH
    else:
        length = tl.sqrt(total)
        factor = tl.where(length == 0, 1.0, 1.0 / tl.maximum(length, eps))
        slope = tl.where(length < eps, 0.0, factor)
    return factor[:, None], slope[:, None]


@jit
def norm_forward_kernel(
    states, gain, gate, output, row_number, eps,
    WIDTH: tl.constexpr, IS_MEAN: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_inside = (rows < row_number)[:, None] & (columns < WIDTH)[None]
    x = _loaded(states, rows, columns, is_inside, WIDTH)
    factor, _ = _scaled(x, eps, IS_MEAN, WIDTH)
    y = x * factor
    if gain is not None:
        y *= tl.load(gain + columns * STEP, mask=columns < WIDTH, other=0.0).to(tl.float32)[None]
    if gate is not None:
        y *= tl.sigmoid(tl.load(gate + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None] * x)
    places = rows[:, None].to(tl.int64) * WIDTH + columns[None]
    tl.store(output + places, y.to(output.dtype.element_ty), mask=is_inside)


@jit
def norm_backward_kernel(
    grad_output, states, gain, gate, grad_states, sums, row_number, eps,
    WIDTH: tl.constexpr, IS_MEAN: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a norm's rows, and this program's sums for gain and gate."""
    program, programs, columns = tl.program_id(0), tl.num_programs(0), tl.arange(0, COLUMNS)
    is_column = columns < WIDTH
    g, w = tl.full([COLUMNS], 1.0, tl.float32), tl.full([COLUMNS], 1.0, tl.float32)
    if gain is not None:
        g = tl.load(gain + columns * STEP, mask=is_column, other=0.0).to(tl.float32)
    if gate is not None:
        w = tl.load(gate + columns, mask=is_column, other=0.0).to(tl.float32)
    sum_gain, sum_gate = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for block in range(program, tl.cdiv(row_number, ROWS), programs):
        rows = block * ROWS + tl.arange(0, ROWS)
        is_inside = (rows < row_number)[:, None] & is_column[None]
        x = _loaded(states, rows, columns, is_inside, WIDTH)
        grad = _loaded(grad_output, rows, columns, is_inside, WIDTH)
        factor, slope = _scaled(x, eps, IS_MEAN, WIDTH)
        direct = tl.zeros([ROWS, COLUMNS], tl.float32)
        if gain is not None:
            of_gain = grad * x * factor
            grad *= g[None]
            if gate is not None:
                is_open = tl.sigmoid(w[None] * x)
                of_gate = of_gain * g[None] * is_open * (1.0 - is_open)
                sum_gate += tl.sum(of_gate * x, axis=0)
                of_gain *= is_open
                grad *= is_open
                direct = of_gate * w[None]
            sum_gain += tl.sum(of_gain, axis=0)
        share = tl.sum(grad * x, axis=1)[:, None] * factor * slope * factor
        result = grad * factor + direct - x * share
        places = rows[:, None].to(tl.int64) * WIDTH + columns[None]
        tl.store(grad_states + places, result.to(grad_states.dtype.element_ty), mask=is_inside)
    if gain is not None:
        tl.store(sums + program * WIDTH + columns, sum_gain, mask=is_column)
        sums += programs * WIDTH
    if gate is not None:
        tl.store(sums + program * WIDTH + columns, sum_gate, mask=is_column)


def can_take(states: Tensor) -> bool:
    """Whether the kernels compute norms of these rows: on a GPU, in 16 or 32 bits, narrow enough for one program."""
    is_taken = states.dtype in (torch.float32, torch.bfloat16, torch.float16) and 0 < states.shape[-1] <= WIDEST
    return is_taken and states.numel() > 0 and triton is not None


@functools.lru_cache
def _constants(width: int, numbers: int, is_mean: bool, step: int) -> tuple[int, ...]:
    columns = triton.next_power_of_2(width)
    return width, is_mean, step, max(1, numbers // columns), columns


def _prepared(states: Tensor, gain: Tensor | None, is_mean: bool) -> tuple[Tensor, int, tuple[int, ...]]:
    """Rows side by side, their number, and the constants of the kernels."""
    width = states.shape[-1]
    step = 1 if gain is None else gain.stride(0)  # The stride of a gain is 0 if all columns share it.
    return states.contiguous(), states.numel() // width, _constants(width, NUMBERS, is_mean, step)


def norm_forward(states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool) -> Tensor:
    """y [..., width] of x [..., width], in x's dtype, with gain g and gate w [width] or None."""
    states, rows, constants = _prepared(states, gain, is_mean)
    output = torch.empty_like(states)
    gate = None if gate is None else gate.contiguous()
    start(norm_forward_kernel, -(-rows // constants[-2]), (states, gain, gate, output), (), (rows, eps), constants)
    return output


def norm_backward(
    grad_output: Tensor, states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, g and w, or None where there is none; float32 [1] of a gain that all columns share."""
    states, rows, constants = _prepared(states, gain, is_mean)
    width, _, step, rows_at_once, _ = constants
    programs = min(PROGRAMS, -(-rows // rows_at_once))
    grad_states, number = torch.empty_like(states), (gain is not None) + (gate is not None)
    # Each program of a norm's backward pass has sums for the gain, then for the gate.
    sums = states.new_empty((number, programs, width), dtype=torch.float32) if number else None
    gate = None if gate is None else gate.contiguous()
    tensors = (grad_output.contiguous(), states, gain, gate, grad_states, sums)
    start(norm_backward_kernel, programs, tensors, (), (rows, eps), constants)
    if sums is None:
        return grad_states, None, None
    if number == 1 and step == 0:
        return grad_states, sums.sum().view(1), None
    totals = sums.sum(1)
    if step and (gain is None or gate is None or gain.dtype == gate.dtype):
        # Gain and gate have one dtype, so one operation converts both gradients.
        totals = totals.to((gate if gain is None else gain).dtype)
    return grad_states, None if gain is None else totals[0], None if gate is None else totals[-1]
