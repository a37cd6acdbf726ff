# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Dtypes of sums, memory of outputs, and whether somebody follows PyTorch's operations."""

import hashlib
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

# Two copies of this package, as a kernel repository of `scripts/kernel_repository.py` is one, register operators under
# names of their own.
NAMESPACE = f"reluformers_{hashlib.sha256(__name__.encode()).hexdigest()[:16]}"


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that norms and sums are computed in: fp32 for bf16 and fp16, else the same."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def at_least_float32(states: Tensor) -> Tensor:
    """The tensor in its `wide_dtype`."""
    return states.to(wide_dtype(states.dtype))


def compute_dtype(states: Tensor) -> torch.dtype:
    """The dtype of products and weights: bf16 and fp16 as they are only where the processor multiplies them."""
    if states.device.type != "cpu" or states.dtype in (torch.float32, torch.float64):
        return states.dtype
    if states.dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("avx512_bf16", False):
        return states.dtype
    return torch.float32


def empty_heads_inside(states: Tensor) -> Tensor:
    """Memory [batch, length, heads, width], seen as [batch, heads, length, width]."""
    _, heads, length, width = states.shape
    return states.new_empty_strided(states.shape, (length * heads * width, width, heads * width, 1))


def in_one_dtype(*states: Tensor) -> list[Tensor]:
    """Cast to the dtype of autocast, as matrix products do, else to the widest."""
    device_type = states[0].device.type
    dtype = states[0].dtype
    if device_type != "meta" and torch.is_autocast_enabled(device_type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device_type)
    else:
        for other in states[1:]:
            # Dtypes are compared first, because promote_types takes longer than a comparison.
            if other.dtype != dtype:
                dtype = torch.promote_types(dtype, other.dtype)
    return [tensor if tensor.dtype == dtype else tensor.to(dtype) for tensor in states]


def is_traced() -> bool:
    """Whether a compiler, a trace or a transform of `torch.func` follows PyTorch's operations."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    return torch._C._are_functorch_transforms_active()


def is_dispatched() -> bool:
    """Whether a dispatch mode, such as that of fake tensors, follows operators, for which an operator is enough."""
    # torch.compile knows no stack of dispatch modes, so the stack is asked last.
    return not is_traced() and torch._C._len_torch_dispatch_stack() > 0


def is_watched() -> bool:
    """Whether something follows PyTorch's operations, and would miss what is done past them."""
    return is_traced() or torch._C._len_torch_dispatch_stack() > 0


def are_plain(*states: Tensor | None) -> bool:
    """Whether nothing follows operators: tensors of PyTorch's own class with numbers in them, and none who watches."""
    if is_watched() or states[0].device.type == "meta":
        return False
    # torch.autograd.grad makes batched tensors with `is_grads_batched`.
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    return all(part is None or (type(part) in (Tensor, PagedTensor) and not is_batched(part)) for part in states)


class PagedTensor(Tensor):
    """Keys or values [batch, heads, key_len, head_dim] that lie in pages of a cache, which compiled code reads there.

    Any other operation gathers them.

    Args:
        cache: [pages, heads, page_len, head_dim].
        pages: int32 [batch, pages of a sequence], numbers of pages.

    Raises:
        ValueError: a number is that of no page.
    """

    @staticmethod
    def __new__(cls, cache: Tensor, pages: Tensor):
        if pages.dtype != torch.int32 or pages.amin() < 0 or pages.amax() >= len(cache):
            raise ValueError(f"pages are {pages.dtype} {pages.tolist()}, but must be int32 below {len(cache)}")
        shape = (len(pages), cache.shape[1], pages.shape[1] * cache.shape[2], cache.shape[3])
        paged = Tensor._make_wrapper_subclass(cls, shape, dtype=cache.dtype, device=cache.device)
        paged.cache, paged.pages = cache, pages.contiguous()
        return paged

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Call an operation with gathered tensors."""
        args, kwargs = tree_map_only(cls, cls._gather, (args, kwargs or {}))
        return function(*args, **kwargs)

    def _gather(self) -> Tensor:
        return self.cache[self.pages].transpose(1, 2).flatten(2, 3)


def is_differentiated() -> bool:
    """Whether forward-mode derivatives or a transform of `torch.func` are asked for: an operator like ours has none.

    PyTorch would leave the former out without a word.
    """
    if torch.compiler.is_compiling():
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    batched = torch._C._functorch.TransformType.Vmap
    return any(level.key() != batched for level in torch._C._functorch.get_interpreter_stack())


def without_autocast(device_type: str) -> AbstractContextManager:
    """Compute in the types that are given; the meta device knows no autocast."""
    # Autocast is asked for first, because entering its context takes longer.
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
