# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: each process has some rows of a sequence, and attends to the keys of all processes.

Of 2n pieces of a sequence, process r of n has piece r and piece 2n − 1 − r: with causality all have equal work.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .masks import AttentionMask

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The innermost mesh of processes is the last. Threads share the list, as the backward pass may run in one of its own.
_MESHES: "list[DeviceMesh]" = []


@contextmanager
def sequence_on(mesh: "DeviceMesh") -> Iterator[None]:
    """Let the processes of a mesh of one dimension share every sequence."""
    _MESHES.append(mesh)
    try:
        yield
    finally:
        _MESHES.pop()


def number_of_processes() -> int:
    """How many processes share a sequence; 1 outside of `sequence_on`."""
    return _MESHES[-1].size() if _MESHES else 1


def own_rows(states: Tensor, dim: int = 1, mesh: "DeviceMesh | None" = None) -> Tensor:
    """The rows of this process.

    Raises:
        ValueError: twice the number of processes does not divide the length.
    """
    if mesh is None and not _MESHES:
        return states
    mesh = _MESHES[-1] if mesh is None else mesh
    number, length = 2 * mesh.size(), states.shape[dim]
    if length % number:
        raise ValueError(f"a sequence has {length} tokens, but must have a multiple of {number} to be shared")
    pieces = states.chunk(number, dim)
    rank = mesh.get_local_rank()
    return torch.cat([pieces[rank], pieces[number - 1 - rank]], dim)


def all_rows(states: Tensor, dim: int = 1) -> Tensor:
    """The rows of all processes in their order; the backward pass adds up what all processes have of a gradient."""
    if not _MESHES:
        return states
    pieces = [piece for part in _gather(states).chunk(number_of_processes()) for piece in part.chunk(2, dim)]
    return torch.cat([*pieces[::2], *pieces[::-2]], dim)


def _gather(states: Tensor) -> Tensor:
    # Not every build of torch has collective operations.
    from torch.distributed import _functional_collectives as collectives

    # torch calls the differentiable gather `all_gather_tensor_autograd` until 2.12.
    gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
    return gather(states.contiguous(), 0, _MESHES[-1])


def sum_of_processes(states: Tensor) -> Tensor:
    """Sum over all processes; so is its gradient."""
    return _gather(states[None]).sum(0) if _MESHES else states


def own_mask(mask: AttentionMask) -> AttentionMask:
    """The mask of the rows of this process."""
    if not _MESHES:
        return mask
    return mask.of_rows(own_rows(torch.arange(mask.query_len, device=mask.device), 0))
