"""Boolean attention masks, True = may attend, and the number of keys that each query may see.

They are built here and not by an `AttentionMaskInterface`: that registry belongs to the process, while two checkpoints
may carry two versions of this code, and n_i needs the boolean mask anyway.
"""

import torch
from torch import Tensor


def padding_mask(attention_mask: Tensor | None, is_cross: bool = False) -> Tensor | None:
    """The mask of a sequence that every query sees the same way.

    Args:
        attention_mask: 1 or True = real token [batch, key_len], or a ready mask of 4 dimensions.
        is_cross: the queries are another sequence's, so that a ready mask must not tell them apart.

    Returns:
        bool [batch, 1, 1, key_len], the ready mask, or None where all is visible.

    Raises:
        ValueError: a ready mask is not boolean, or has rows for the queries of another sequence.
    """
    if attention_mask is None:
        return None
    if attention_mask.dim() != 4:
        return attention_mask.bool()[:, None, None, :]
    if is_cross and attention_mask.shape[2] != 1:
        raise ValueError(
            f"the source's attention mask is {list(attention_mask.shape)}, but cross-attention can only take one of "
            "[batch, 1, 1, source_len]"
        )
    return _ready_mask(attention_mask)


def causal_mask(
    query_len: int, key_len: int, past_len: int | Tensor, attention_mask: Tensor | None, device: torch.device
) -> Tensor | None:
    """The mask of decoder self-attention: key j is visible to query i if it is real and not in i's future.

    Args:
        query_len: number of new tokens.
        key_len: number of keys, cached ones included; a static cache counts its empty places too.
        past_len: number of tokens before the new ones.
        attention_mask: as in `padding_mask`; of 2 dimensions it covers past and new tokens.

    Returns:
        bool [batch or 1, 1, query_len, key_len], or None if every query sees every key.

    Raises:
        ValueError: the mask does not cover the past and new tokens.
    """
    if attention_mask is not None and attention_mask.dim() == 4:
        return _ready_mask(attention_mask)
    if attention_mask is None and query_len == 1 and isinstance(past_len, int) and key_len == past_len + 1:
        return None
    query_positions = torch.arange(query_len, device=device) + past_len
    mask = torch.arange(key_len, device=device) <= query_positions[:, None]  # [query_len, key_len]
    mask = mask[None, None]
    if attention_mask is None:
        return mask
    if isinstance(past_len, int) and attention_mask.shape[-1] != past_len + query_len:
        raise ValueError(
            f"decoder_attention_mask covers {attention_mask.shape[-1]} tokens, but there are {past_len} past and "
            f"{query_len} new ones"
        )
    real_keys = attention_mask.bool()
    if real_keys.shape[-1] < key_len:  # places of a static cache that no token has reached
        real_keys = torch.nn.functional.pad(real_keys, (0, key_len - real_keys.shape[-1]))
    return mask & real_keys[:, None, None, :key_len]


def count_visible_keys(mask: Tensor | None, key_len: int) -> Tensor | int:
    """n_i: one number without a mask, else [batch, 1 or heads, query_len or 1, 1]."""
    return key_len if mask is None else mask.sum(-1, keepdim=True)


def token_positions(
    query_len: int, past_len: int | Tensor, attention_mask: Tensor | None, device: torch.device
) -> Tensor:
    """Positions that do not move when a sequence is padded, on either side.

    Returns:
        int64 [1, query_len], or with a 2-dimensional mask of past and new tokens [batch, query_len].
    """
    if attention_mask is None or attention_mask.dim() != 2:
        return (torch.arange(query_len, device=device) + past_len)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)[:, -query_len:]


def _ready_mask(mask: Tensor) -> Tensor:
    """A mask of 4 dimensions as bool; an additive one (0 = may attend) would be read upside down."""
    if mask.is_floating_point():
        raise ValueError(f"an attention mask of 4 dimensions must be boolean, True = may attend, but is {mask.dtype}")
    return mask.bool()
