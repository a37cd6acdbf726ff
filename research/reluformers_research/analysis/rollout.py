"""Attention rollout of vision models: which patches reach a token through all layers."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .observation import Observed, Statistic


def attention_rollout(layers: Sequence[Tensor], residual_share: float = 0.5) -> Tensor:
    r"""Follow attention and residual connections through the layers (Abnar and Zuidema 2020, eq. 1).

    R = Ā_L · … · Ā_1 with Ā_l = r·I + (1 − r)·P_l, P_l the mean over heads of s_ij / Σ_j s_ij

    Rollout multiplies distributions, so rows that do not sum to 1 are divided by their sum first: what a large row
    sum adds to the output is not seen. A row that is null in some heads is the mean of the others; null in all heads,
    it adds nothing and the token keeps itself, Ā_ii = 1. With a negative weight a row is no distribution: undefined.

    Args:
        layers: weights of self-attention from the first layer on, [batch, heads, tokens, tokens] each.
        residual_share: r in [0, 1].

    Returns:
        R [batch, tokens, tokens]; rows sum to 1.

    Raises:
        ValueError: there are no layers, r is not in [0, 1], a weight is negative or the matrices are not square.
    """
    if not layers:
        raise ValueError("rollout needs the weights of a layer or more, got none.")
    if not 0 <= residual_share <= 1:
        raise ValueError(f"residual_share must be in [0, 1], got {residual_share}.")
    rolled = None
    for weights in layers:
        if weights.shape[-1] != weights.shape[-2]:
            raise ValueError(f"rollout needs self-attention, got weights {list(weights.shape)}.")
        if (weights < 0).any():
            raise ValueError("rollout is not defined for negative weights.")
        weights = weights.float()
        sums = weights.sum(-1, keepdim=True)
        shares = weights / sums.masked_fill(sums == 0, 1.0)
        active = (sums > 0).sum(1)  # heads whose row is not null [batch, tokens, 1]
        mixed = shares.sum(1) / active.clamp(min=1)
        identity = torch.eye(weights.shape[-1], device=weights.device)
        mixed = torch.where(active > 0, residual_share * identity + (1 - residual_share) * mixed, identity)
        rolled = mixed if rolled is None else mixed @ rolled
    return rolled


class Rollout(Statistic):
    """rollout: mean over images of R, from the class token, else from all patches, to the patches of the grid.

    {"map": rows of columns of shares, which sum to 1} or {"undefined": why}; for vision models alone.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.images, self.reason = 0, None

    def update(self, observed: Observed) -> None:
        """Add the maps of one batch."""
        if observed.grid is None or self.reason is not None:
            return
        layers = [rows.weights for rows in observed.attention["encoder"]]
        before = layers[0].shape[-1] - prod(observed.grid)
        try:
            rolled = attention_rollout(layers)
        except ValueError as error:
            self.reason = str(error)
            return
        if before < 0 or (self.total is not None and self.total.shape != observed.grid):
            self.reason = "the images have several sizes." if before >= 0 else "the tokens are no grid of patches."
            return
        received = rolled[:, 0] if observed.has_class_token else rolled[:, before:].mean(1)
        patches = received[:, before:].unflatten(-1, observed.grid)
        patches = patches / patches.sum((1, 2), keepdim=True).clamp(min=torch.finfo(patches.dtype).tiny)
        patches = patches.cpu().double().sum(0)
        self.total = patches if self.total is None else self.total + patches
        self.images += len(rolled)

    def result(self) -> dict[str, Any]:
        """The map, or why there is none."""
        if self.reason is not None:
            return {"rollout": {"undefined": self.reason}}
        return {} if self.total is None else {"rollout": {"map": (self.total / self.images).tolist()}}
