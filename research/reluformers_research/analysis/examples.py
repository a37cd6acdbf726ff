"""Sentence pairs that show what cross-attention does: those with most null rows, and the most sharply aligned."""

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .observation import Observed, Rows, Statistic
from .tokens import token_texts

FEWEST_TOKENS, MOST_TOKENS = 5, 32  # of a side: shorter ones are sharp by chance, longer ones do not fit a page


class Examples(Statistic):
    r"""examples: of all sentence pairs of 5 to 32 tokens a side, those that stand out by their cross-attention.

    most_null     largest share of null rows over all layers and heads, above 0 (ReLA §5.2, app. B); with the map of
                  the layer that has most of them
    most_aligned  largest mean over target tokens i of max_j p̄_ij, p̄ the mean over heads of s_ij / Σ_j s_ij, in the
                  layer where it is largest; with the map p̄ of this layer

    Args:
        number: how many of each.
    """

    def __init__(self, number: int = 3):
        self.number = number
        self.kept: dict[str, list[tuple[float, int, dict[str, Any]]]] = {"most_null": [], "most_aligned": []}
        self._order = count(0, -1)  # of equal ones the first are kept

    def update(self, observed: Observed) -> None:
        """Look at every pair of one batch."""
        layers = observed.attention.get("cross")
        if not layers:
            return
        # [batch, target_len] and [batch, source_len]
        queries, keys = (layers[0].visible.any(dim)[:, 0].cpu() for dim in (3, 2))
        lengths = torch.stack([queries.sum(-1), keys.sum(-1)], dim=-1)
        fits = ((lengths >= FEWEST_TOKENS) & (lengths <= MOST_TOKENS)).all(-1)
        nulls = torch.stack([rows.null.float().mean(1).cpu() for rows in layers])  # [layers, batch, target_len]
        peaks = torch.stack([rows.shares.mean(1).amax(-1).cpu() for rows in layers])
        for place in fits.nonzero().flatten().tolist():
            is_query, is_key = queries[place], keys[place]
            for kind, values in (("most_null", nulls), ("most_aligned", peaks)):
                by_layer = values[:, place, is_query].mean(-1)
                score = by_layer.mean().item() if kind == "most_null" else by_layer.max().item()
                if score == 0 or (len(self.kept[kind]) == self.number and score <= self.kept[kind][0][0]):
                    continue
                layer = int(by_layer.argmax())
                example = {
                    "score": score,
                    "layer": layer,
                    "source": observed.inputs["input_ids"][place].cpu()[is_key].tolist(),
                    "target": observed.inputs["labels"][place].cpu()[is_query].tolist(),
                    "weights": _map(layers[layer], place, is_query, is_key),
                    "null": nulls[layer, place, is_query].tolist(),
                }
                heapq.heappush(self.kept[kind], (score, next(self._order), example))
                if len(self.kept[kind]) > self.number:
                    heapq.heappop(self.kept[kind])

    def result(self) -> dict[str, Any]:
        """Kind → examples, from the one that stands out most: score, layer from 0, ids of both sides, the map, and the
        share of heads whose row is null for each target token."""
        found = {kind: [row for *_, row in sorted(kept, reverse=True)] for kind, kept in self.kept.items()}
        return {"examples": found} if any(found.values()) else {}


def _map(rows: Rows, place: int, is_query: Tensor, is_key: Tensor) -> list[list[float]]:
    shares = rows.shares[place].mean(0).cpu()
    return [[round(value, 4) for value in row] for row in shares[is_query][:, is_key].tolist()]


def with_tokens(
    examples: dict[str, list[dict[str, Any]]], tokenizers: Sequence[PreTrainedTokenizerBase]
) -> dict[str, list[dict[str, Any]]]:
    """Copy examples with the text of tokens in place of their ids, "▁" for a blank."""
    return {
        kind: [
            {
                **row,
                "source": token_texts(tokenizers[0], row["source"]),
                "target": token_texts(tokenizers[1], row["target"]),
            }
            for row in rows
        ]
        for kind, rows in examples.items()
    }
