# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Start of Triton's kernels past its own look-up, which takes longer than a short kernel runs."""

import torch
from torch import Tensor

from .triton_functions import IS_INTERPRETED, triton

MOST_KEPT = 256
_kept: dict[tuple, object] = {}  # The key of a kept kernel holds all that the kernel was compiled for.


def start(
    kernel,
    programs: int,
    tensors: tuple[Tensor | None, ...],
    strides: tuple[int, ...],
    numbers: tuple[float, ...],
    constants: tuple,
    warps: int = 4,
    stages: int = 3,
) -> None:
    """Run `kernel[(programs,)](*tensors, *strides, *numbers, *constants)` on the device of the first tensor.

    Args:
        kernel: what `triton.jit` returned, which is kept by its identity.
        programs: how many of them run.
        tensors: arguments that are tensors or None; bool ones are read as bytes.
        strides: integers for which the kernel is compiled anew if they are no multiples of 16, or need 64 bits.
        numbers: those for which it is not: numbers with a point, and integers below 2³¹ that its `jit` names.
        constants: arguments that are `tl.constexpr`.
        warps, stages: of the compiled kernel.
    """
    if IS_INTERPRETED:
        kernel[(programs,)](*_as_bytes(tensors), *strides, *numbers, *constants)
        return
    device = tensors[0].device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            start(kernel, programs, tensors, strides, numbers, constants, warps, stages)
        return
    pointers = [None if part is None else part.data_ptr() for part in tensors]
    bits = 0
    for number in (*strides, *pointers):
        bits |= number or 0
    key = None
    compiled = None
    if bits & 15 == 0 and max(strides, default=0) < 2**31:
        dtypes = [None if part is None else part.dtype for part in tensors]
        key = (id(kernel), device, warps, stages, *constants, *dtypes)
        compiled = _kept.get(key)
    if compiled is None:
        arguments = (*_as_bytes(tensors), *strides, *numbers, *constants)
        compiled = kernel[(programs,)](*arguments, num_warps=warps, num_stages=stages)
        if key is not None:
            if len(_kept) >= MOST_KEPT:
                _kept.clear()
            _kept[key] = compiled
        return
    stream = triton.runtime.driver.active.get_current_stream(device)
    # Triton's launcher takes hooks of a profiler, which are None here.
    handles = (compiled.function, compiled.packed_metadata, None, None, None)
    compiled.run(programs, 1, 1, stream, *handles, *pointers, *strides, *numbers, *constants)


def _as_bytes(tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [part if part is None or part.dtype != torch.bool else part.view(torch.uint8) for part in tensors]
