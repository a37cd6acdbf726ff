# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Which keys a query may see, and how many they are.

Masks are boolean, True = may attend. They are described by padding, causality and windows, and only made dense, query
by key, for a computation that needs them so.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def differ(length: Any, other: Any) -> bool:
    """Whether two lengths differ; those of an exporter are no int, and it may not know."""
    return isinstance(length, int) and isinstance(other, int) and length != other


@dataclass(frozen=True)
class AttentionMask:
    """Query i sees key j if the key is real, j ≤ i + causal_offset, and first_keys_i ≤ j ≤ last_keys_i.

    All layers of a site share one mask: what they need of it is computed for the first one.

    Args:
        query_len, key_len: number of queries and of keys, cached ones included.
        device: where the queries are.
        key_padding_mask: bool [batch, key_len]; None if all are real.
        causal_offset: number of keys before the first query; a tensor where a static cache counts on the device; None
            if the future is visible.
        first_keys, last_keys: int [batch or 1, query_len], not decreasing along the queries: the first and the last
            key of a window, or of the text in a packed row; None for no such bound.
        given: bool, broadcasting to [batch, heads, query_len, key_len]: a ready mask; all others are then None.
        query_mask: bool, True = real query [batch, query_len], for the statistics of rows; None if all are real.
    """

    query_len: int
    key_len: int
    device: torch.device
    key_padding_mask: Tensor | None = None
    causal_offset: int | Tensor | None = None
    first_keys: Tensor | None = None
    last_keys: Tensor | None = None
    given: Tensor | None = None
    query_mask: Tensor | None = None

    def __post_init__(self):
        # Lengths of masks are checked, because a fused computation reads as many entries of a row as there are keys,
        # whatever the row's length.
        for mask, lengths in ((self.key_padding_mask, [self.key_len]), (self.given, [self.key_len, 1])):
            if mask is not None and (mask.shape[-1] not in lengths or mask.dtype != torch.bool):
                raise ValueError(
                    f"the mask is {mask.dtype} {list(mask.shape)}, but must be bool, of {self.key_len} keys"
                )

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "AttentionMask":
        """The mask on another device, where accelerate's hooks carry the inputs of a layer."""
        if torch.device(device) == self.device:
            return self
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()}
        return replace(self, device=torch.device(device), **moved)

    @classmethod
    def of(cls, mask: "Tensor | AttentionMask | None", query_len: int, key_len: int, device: torch.device):
        """A mask as it is, or that of a bool tensor that broadcasts to [batch, heads, query_len, key_len]."""
        # The mask's class may come from another copy of this code.
        if mask is not None and not isinstance(mask, Tensor):
            if differ(mask.query_len, query_len) or differ(mask.key_len, key_len):
                raise ValueError(
                    f"the mask is of {mask.query_len} queries and {mask.key_len} keys, but there are {query_len} and "
                    f"{key_len}"
                )
            return mask
        if mask is not None:
            # A mask with fewer than four dimensions lacks the first ones, as PyTorch broadcasts.
            mask = mask[(None,) * (4 - mask.dim())]
        # A mask of keys alone is padding in another form, and kernels take padding but no dense masks.
        if mask is not None and mask.shape[1:] == (1, 1, key_len):
            return cls(query_len, key_len, device, key_padding_mask=mask[:, 0, 0])
        return cls(query_len, key_len, device, given=mask)

    def of_rows(self, rows: Tensor | slice) -> "AttentionMask":
        """The mask of queries at these indices, which rise."""

        def of(part: Tensor | None, dim: int = 1) -> Tensor | None:
            return part if part is None or part.shape[dim] == 1 else part[(slice(None),) * dim + (rows,)]

        places = torch.arange(self.query_len, device=self.device)[rows]
        last = of(self.last_keys)
        if self.causal_offset is not None:
            causal = places[None] + self.causal_offset
            last = causal if last is None else last.minimum(causal)
        return replace(
            self,
            query_len=len(places),
            causal_offset=None,
            first_keys=of(self.first_keys),
            last_keys=last,
            given=of(self.given, 2),
            query_mask=of(self.query_mask),
        )

    @property
    def is_structured(self) -> bool:
        """Whether there is no ready mask, and causality is known on the host."""
        return self.given is None and not isinstance(self.causal_offset, Tensor)

    @property
    def is_causal(self) -> bool:
        """Whether some key is in the future of some query, as far as the host knows."""
        if isinstance(self.causal_offset, Tensor):
            return True
        return self.causal_offset is not None and self.causal_offset < self.key_len - 1

    @property
    def is_triangle(self) -> bool:
        """Whether the mask is plain causal self-attention: no padding, no window, no cache."""
        bounds = (self.key_padding_mask, self.first_keys, self.last_keys)
        is_plain = self.is_structured and all(bound is None for bound in bounds)
        return is_plain and self.is_causal and self.causal_offset == 0 and self.query_len == self.key_len

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Make a value once for all layers; `torch.compile`, which cannot trace it, merges equal values by itself."""
        if torch.compiler.is_compiling():
            return make()
        kept = self.__dict__.setdefault("_kept", {})
        if name not in kept:
            kept[name] = make()
        return kept[name]

    @property
    def dense(self) -> Tensor | None:
        """Bool [batch or 1, heads or 1, query_len or 1, key_len], or None if every query sees every key."""
        return self.once("dense", self._make_dense)

    def _make_dense(self) -> Tensor | None:
        if self.given is not None:
            return self.given
        mask = None if self.key_padding_mask is None else self.key_padding_mask[:, None, None, :]
        keys = torch.arange(self.key_len, device=self.device)
        if self.is_causal:
            last = torch.arange(self.query_len, device=self.device)[:, None] + self.causal_offset
            causal = (keys <= last)[None, None]
            mask = causal if mask is None else causal & mask
        if self.first_keys is not None:
            window = keys >= self.first_keys[:, None, :, None]
            mask = window if mask is None else window & mask
        if self.last_keys is not None:
            window = keys <= self.last_keys[:, None, :, None]
            mask = window if mask is None else window & mask
        return mask

    @property
    def key_counts(self) -> Tensor | int:
        """n_i: one number if all queries see every key, else [batch or 1, heads or 1, query_len or 1, 1]."""
        return self.once("key_counts", self._count_keys)

    def _count_keys(self) -> Tensor | int:
        # A dense mask may be anything, so its visible keys are counted.
        if not self.is_structured:
            return self.dense.expand(*self.dense.shape[:-1], self.key_len).sum(-1, keepdim=True)
        padding, first, last = self.key_padding_mask, self.first_keys, self.last_keys
        if not self.is_causal and first is None and last is None:
            return self.key_len if padding is None else padding.sum(-1)[:, None, None, None]
        seen = torch.full((1, self.query_len), self.key_len, device=self.device)
        if self.is_causal:
            places = torch.arange(self.query_len, device=self.device)[None]
            seen = (places + (self.causal_offset + 1)).clamp(0, self.key_len)
        if last is not None:
            seen = seen.minimum(last + 1).clamp_min(0)
        # `real` counts the keys before each position that are no padding; n_i is the difference of two counts, without
        # a matrix.
        real = None if padding is None else functional.pad(padding.cumsum(-1), (1, 0))
        counts = seen if real is None else real.gather(1, seen.expand(len(real), -1))
        if first is not None:
            first = first.clamp(0, self.key_len).minimum(seen)
            counts = counts - (first if real is None else real.gather(1, first.expand(len(real), -1)))
        return counts[:, None, :, None]
