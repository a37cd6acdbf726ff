"""The judge: attention in the models of transformers with every weight written out, from masks of their own."""

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

ACTIVATIONS = {"relu": torch.relu, "relu2": lambda scores: torch.relu(scores) ** 2, "sigmoid": torch.sigmoid}


def register_written_out(
    name: str,
    phi: str = "relu",
    exponent: float = 0.0,
    coefficient: float = 1.0,
    is_summed: bool = False,
    is_exclusive: bool = False,
) -> None:
    """Register s_ij = φ(a·q_i·k_j + b_ij) / (c·n_i^α), or over the sum of the row, or softmax.

    `is_exclusive` takes out of the output what lies along the value of the query's own token: of the last keys.
    """

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, position_bias=None, **_):
        heads, query_len, key_len = query.shape[1], query.shape[2], key.shape[2]
        key, value = (states.repeat_interleave(heads // states.shape[1], dim=1) for states in (key, value))
        scores = torch.einsum("bhid,bhjd->bhij", query, key) * (
            query.shape[-1] ** -0.5 if scaling is None else scaling
        )
        hidden = torch.zeros(1, 1, query_len, key_len, dtype=torch.bool)
        mask = attention_mask
        if mask is not None:
            hidden = mask[..., :key_len] <= -1e4
            scores = scores + torch.where(hidden, 0.0, mask[..., :key_len])
        if position_bias is not None:
            scores = scores + torch.where(position_bias <= -1e4, 0.0, position_bias)
            hidden = hidden | (position_bias <= -1e4)
        if phi == "softmax":
            largest = torch.where(hidden, -1e6, scores).amax(-1, keepdim=True).detach()
            powers = torch.where(hidden, 0.0, torch.exp(torch.where(hidden, largest, scores) - largest))
            weights = powers / powers.sum(-1, keepdim=True).clamp_min(1e-30)
        else:
            weights = torch.where(hidden, 0.0, ACTIVATIONS[phi](scores))
        counts = (~hidden).expand(*hidden.shape[:2], query_len, key_len).sum(-1, keepdim=True).clamp_min(1)
        weights = weights / (coefficient * counts.to(weights.dtype) ** exponent)
        if is_summed:
            sums = weights.sum(-1, keepdim=True)
            weights = torch.where(sums == 0, 0.0, weights / torch.where(sums == 0, 1.0, sums))
        dropped = nn.functional.dropout(weights, dropout, module.training)
        output = torch.einsum("bhij,bhjd->bihd", dropped, value).contiguous()
        if is_exclusive:
            own = value[:, :, -query_len:].transpose(1, 2)
            output = output - (output * own).sum(-1, keepdim=True) * own / (own * own).sum(-1, keepdim=True)
        return output, weights

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, eager_mask)
