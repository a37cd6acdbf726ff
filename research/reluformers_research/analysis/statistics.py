"""The statistics of the papers' figures and tables, each a mean or a variance over what a pass adds up.

Notation: s_ij is the weight of visible key j for real query i, n_i the number of visible keys, Σ_i = Σ_j s_ij,
p_ij = s_ij / Σ_i. A row is null when all its weights are 0; where p is needed, null rows and rows with a negative
weight are left out. Every statistic is given for each site and layer, over all its heads together and, unless it
compares heads, for each of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from reluformers.evaluation.attention_report import count_rows, sums_by_head

from .observation import Rows

LARGEST_POWER = 12  # rows of 2^12 keys and more are counted together
# columns of `count_rows`: how many, and the sum
_COLUMNS = {"zeros": [0, 1], "null_rate": [2, 3], "entropy": [4, 5], "row_sum": [2, 6]}


class LayerValue(TypedDict):
    """A statistic of one layer.

    Args:
        overall: over all heads together; None where there was nothing to measure.
        heads: of each head; empty for what compares heads or has none.
    """

    overall: float | None
    heads: list[float | None]


class Sums:
    """What a pass adds up; its memory does not grow with the data."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[Tensor]]] = {}  # name → site → each layer

    def add(self, sites: Mapping[str, Sequence[Rows]], count: Callable[[Rows], dict[str, Tensor]]) -> None:
        """Add what `count` finds in the rows of one batch, of each layer by site."""
        for site, layers in sites.items():
            counts = [count(rows) for rows in layers]
            for name in counts[0]:
                layer_sums = self._sums.setdefault(name, {}).setdefault(site, [torch.zeros(())] * len(counts))
                layer_sums[:] = [old + new[name] for old, new in zip(layer_sums, counts, strict=True)]

    def values(self) -> dict[str, dict[str, list[LayerValue]]]:
        """Name → site → value of each layer, without what was measured nowhere, such as lengths that do not occur."""
        return {
            name: {site: [_layer_value(layer) for layer in layers] for site, layers in sites.items()}
            for name, sites in self._sums.items()
            if any(layer[..., 0].any() for layers in sites.values() for layer in layers)
        }


def count_all(rows: Rows) -> dict[str, Tensor]:
    """Name → how many were counted, and their sum: float64 [heads or 1, 2]; of a variance their squares too.

    zeros, null_rate, entropy, row_sum
                    as of the library's `attention_report`
    sink            mean of p_i1, the share of the first visible key, over rows that see others too; in [0, 1]. Heads
                    that have nothing to attend to park their weight there where rows must sum to 1 (Xiao et al. 2024,
                    §3); a null row needs no such key, and has no share.
    head_diversity  how much the H heads of a layer disagree, a generalised Jensen–Shannon divergence (ReLA §5.2,
                    fig. 5, table 6): mean over queries i of H(1/H Σ_h p_ih) − 1/H Σ_h H(p_ih), in nats, 0 (equal) to
                    log H (nothing in common). p of a null row puts all its mass on a dummy key. Queries with a
                    negative weight in any head are left out.

    See also `count_outputs`.
    """
    first = rows.visible.float().argmax(-1, keepdim=True).expand(*rows.row_sums.shape, 1)
    has_choice = rows.spread & (rows.key_counts > 1)
    counts = count_rows(rows)
    sums = {
        **{name: counts[:, columns] for name, columns in _COLUMNS.items()},
        "sink": sums_by_head(has_choice, rows.shares.gather(-1, first).squeeze(-1) * has_choice),
        "head_diversity": _count_divergences(rows),
    }
    if rows.values is not None:
        sums |= count_outputs(rows, rows.values)
    return sums


def count_shuffled(rows: Rows) -> dict[str, Tensor]:
    """`null_rate` of targets that belong to other sources (ReLA fig. 6, dashed)."""
    return {"null_rate.shuffled": sums_by_head(rows.real, rows.null)}


def count_outputs(rows: Rows, values: Tensor) -> dict[str, Tensor]:
    """output_variance.N: variance of the components of o_i = Σ_j s_ij v_j over rows with N ≤ n_i < 2N; at least 0.

    By Theorem 4.1 of ReLUFormer, relu scores and values that are independent N(0, 1) give o the variance n/2, which
    grows with n; so the scores are divided by γ√(n/2). It is measured before any norm of the output, and before an
    exclusive one loses its own value.
    """
    # on the CPU in float64: a variance is a small difference of large sums
    output = rows.weights.cpu().double() @ values.cpu().double()  # [batch, heads, query_len, head_dim]
    counted = torch.full_like(output[..., 0], output.shape[-1])
    moments = torch.stack([counted, output.sum(-1), output.square().sum(-1)], dim=-1)
    powers = rows.key_counts.clamp(min=1).log2().floor().clamp(max=LARGEST_POWER)
    return {
        f"output_variance.{2**power}": (moments * (rows.real & (powers == power)).cpu().unsqueeze(-1)).sum((0, 2))
        for power in range(LARGEST_POWER + 1)
    }


def _count_divergences(rows: Rows) -> Tensor:
    counted = (rows.null | rows.spread).all(1, keepdim=True)  # [batch, 1, query_len]
    shares = torch.cat([rows.shares, rows.null.unsqueeze(-1).float()], dim=-1)
    mixed = torch.special.entr(shares.mean(1, keepdim=True)).sum(-1)
    divergences = mixed - torch.special.entr(shares).sum(-1).mean(1, keepdim=True)
    return sums_by_head(counted, divergences.masked_fill(~counted, 0.0))


def _layer_value(sums: Tensor) -> LayerValue:
    """Value of sums [heads or 1, sums]."""
    heads = sums.tolist() if len(sums) > 1 else []
    return {"overall": _value(*sums.sum(0).tolist()), "heads": [_value(*head) for head in heads]}


def _value(count: float, total: float, squares: float | None = None) -> float | None:
    """Mean, or variance where there is a sum of squares."""
    if not count:
        return None
    mean = total / count
    value = mean if squares is None else squares / count - mean**2
    return value if math.isfinite(value) else None
