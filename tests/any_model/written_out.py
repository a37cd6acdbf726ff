"""The judge: attention in the models of transformers by the formulas of `reference`, from masks of their own."""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import reference

HIDDEN = -1e4  # what is added to the score of a key that is not seen, or less


def register_written_out(name: str, phi: str = "relu", is_exclusive: bool = False, **options) -> None:
    """Register the attention of `reference` with an activation and other options.

    `is_exclusive` takes out of the output what lies along the value of the query's own token: of the last keys.
    """

    def attention(module, query, key, value, attention_mask, scaling=None, position_bias=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        visible = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
        bias = torch.zeros((), dtype=query.dtype)
        for part in (attention_mask, position_bias):
            if part is not None:
                part = part[..., : key.shape[2]]
                visible = visible & (part > HIDDEN)
                bias = bias + part.masked_fill(part <= HIDDEN, 0.0)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        output, weights = reference.attention(
            query, key, value, visible, scale=scale, threshold=-bias, activation=phi, **options
        )
        if is_exclusive:
            own = value[:, :, -query.shape[2] :]
            output = output - (output * own).sum(-1, keepdim=True) * own / (own * own).sum(-1, keepdim=True)
        return output.transpose(1, 2).contiguous(), weights

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, eager_mask)
