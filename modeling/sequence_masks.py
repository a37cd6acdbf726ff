# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Masks and positions of token sequences: what of the padding, the past and the future a query may see.

Wrong masks are `ValueError`s: of other dimensions, not of all tokens, additive, or with rows for another sequence.
"""

import torch
from torch import Tensor
from torch.nn import functional

from .masks import AttentionMask


def padding_mask(
    attention_mask: Tensor | None, query_len: int, key_len: int, device: torch.device, is_cross: bool = False
) -> AttentionMask:
    """The mask of a sequence that every query sees the same way.

    Args:
        attention_mask: 1 or True = real token [batch, key_len], or a ready mask of 4 dimensions.
        query_len, key_len, device: as in `AttentionMask`.
        is_cross: the queries are another sequence's, so that a ready mask must not tell them apart.
    """
    if attention_mask is None:
        return AttentionMask(query_len, key_len, device)
    mask = _checked(attention_mask)
    if mask.dim() == 2:
        return AttentionMask(query_len, key_len, device, mask)
    if is_cross and mask.shape[2] != 1:
        raise ValueError(f"the mask of cross-attention is {list(mask.shape)}, but must be [batch, 1, 1, source_len]")
    return AttentionMask.of(mask, query_len, key_len, device)


def causal_mask(
    query_len: int, key_len: int, past_len: int | Tensor, attention_mask: Tensor | None, device: torch.device
) -> AttentionMask:
    """Make the mask of decoder self-attention: key j is visible to query i if it is real and not in i's future.

    Args:
        query_len: number of new tokens.
        key_len: number of keys, cached ones included; a static cache counts its empty places too.
        past_len: number of tokens before the new ones.
        attention_mask: as in `padding_mask`; of 2 dimensions it covers past and new tokens.
        device: where the queries are.
    """
    mask = None if attention_mask is None else _checked(attention_mask)
    # A dense mask says which keys each query sees, causality too.
    if mask is not None and mask.dim() == 4:
        return AttentionMask.of(mask, query_len, key_len, device)
    if isinstance(past_len, Tensor):
        # The past length is copied, because the cache counts on in place before the mask is made dense.
        past_len = past_len.clone()
    if mask is None:
        return AttentionMask(query_len, key_len, device, causal_offset=past_len)
    if not torch.compiler.is_compiling() and attention_mask.shape[-1] != past_len + query_len:
        raise ValueError(
            f"decoder_attention_mask covers {attention_mask.shape[-1]} tokens, but there are {int(past_len)} past and "
            f"{query_len} new ones"
        )
    # Slots of a static cache that hold no token yet are hidden.
    mask = functional.pad(mask, (0, max(0, key_len - mask.shape[-1])))
    return AttentionMask(query_len, key_len, device, mask[:, :key_len], past_len)


def token_positions(
    query_len: int, past_len: int | Tensor, attention_mask: Tensor | None, device: torch.device
) -> Tensor:
    """Positions [batch or 1, query_len] that do not move when a sequence is padded, on either side."""
    if attention_mask is None or attention_mask.dim() != 2:
        return (torch.arange(query_len, device=device) + past_len)[None]
    # The first real token of a sequence has position 0, wherever padding stands.
    return (attention_mask.bool().long().cumsum(-1) - 1).clamp_min(0)[:, -query_len:]


def _checked(mask: Tensor) -> Tensor:
    """The mask as bool; an additive one of 4 dimensions (0 = may attend) would be read upside down."""
    if mask.dim() not in (2, 4):
        raise ValueError(f"an attention mask is {list(mask.shape)}, but must be [batch, length] or of 4 dimensions")
    if mask.dim() == 4 and mask.is_floating_point():
        raise ValueError(f"an attention mask of 4 dimensions must be boolean, True = may attend, but is {mask.dtype}")
    return mask.bool()
