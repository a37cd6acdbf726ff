"""The statistics of the papers' figures and tables, each a sum over rows that a pass adds up.

Notation: s_ij is the weight of visible key j for real query i, n_i the number of visible keys, Σ_i = Σ_j s_ij,
p_ij = s_ij / Σ_i. A row is null when all its weights are 0; where p is needed, null rows and rows with a negative
weight are left out. Every statistic is given for each site and layer, over all its heads together and, unless it
compares heads, for each of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from reluformers.evaluation.attention_report import count_rows, sums_by_head

from .observation import Rows

LARGEST_POWER = 12  # rows of 2^12 keys and more are counted together


class LayerValue(TypedDict):
    """A statistic of one layer.

    Args:
        overall: over all heads together; None where there was nothing to measure.
        heads: of each head; empty for what compares heads or has none.
    """

    overall: float | None
    heads: list[float | None]


class Statistic(ABC):
    """What is measured in a pass: sums over rows, whose memory does not grow with the data."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}

    @abstractmethod
    def count(self, rows: Rows) -> Tensor | None:
        """Sums over the rows of one batch, float64 [heads, sums], or [1, sums]; None where nothing can be counted."""

    @abstractmethod
    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Name → value [...] of sums [..., sums]; NaN where there was nothing to measure."""

    def update(self, sites: Mapping[str, Sequence[Rows]]) -> None:
        """Add the sums of one batch, of the rows of each layer by site."""
        for site, layers in sites.items():
            counts = [self.count(rows) for rows in layers]
            if all(count is not None for count in counts):
                before = self.sums.get(site, [torch.zeros(())] * len(counts))
                self.sums[site] = [old + count for old, count in zip(before, counts, strict=True)]

    def result(self) -> dict[str, dict[str, list[LayerValue]]]:
        """Name → site → value of each layer, without what was measured nowhere, such as lengths that do not occur."""
        results: dict[str, dict[str, list[LayerValue]]] = {}
        for site, layers in self.sums.items():
            for sums in layers:
                overall = self.values(sums.sum(0))
                heads = self.values(sums)
                for name, value in overall.items():
                    by_head = heads[name].tolist() if len(sums) > 1 else []
                    layer = {"overall": _known(value.item()), "heads": [_known(number) for number in by_head]}
                    results.setdefault(name, {}).setdefault(site, []).append(layer)
        return {
            name: sites
            for name, sites in results.items()
            if any(layer["overall"] is not None for layers in sites.values() for layer in layers)
        }


class RowStatistic(Statistic):
    r"""How sparse, empty and spread out rows are.

    zeros      Σ_ij [s_ij = 0] / Σ_i n_i, in [0, 1]: sparsity rate (ReLA §5.2, fig. 3; ReLUFormer §4.2)
    null_rate  share of null rows, in [0, 1] (ReLA §5.2, fig. 6)
    entropy    mean of H(p_i) = −Σ_j p_ij log p_ij, in nats, 0 to log n (ReLUFormer §4.2, tables 3 and 5)
    row_sum    mean of Σ_i over all rows: 1 for softmax, else any number (ReLUFormer eq. 7 pulls it to 1)
    """

    def count(self, rows: Rows) -> Tensor:
        """See `count_rows`."""
        return count_rows(rows)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """The four of them."""
        pairs, zeros, rows, null, spread, entropy, row_sum = sums.unbind(-1)
        return {
            "zeros": zeros / pairs,
            "null_rate": null / rows,
            "entropy": entropy / spread,
            "row_sum": row_sum / rows,
        }


class NullRate(RowStatistic):
    """`null_rate` of `RowStatistic` alone, for shuffled targets (ReLA fig. 6, dashed)."""

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Give the values of a model that has seen only such pairs."""
        return {"null_rate": super().values(sums)["null_rate"]}


class Sink(Statistic):
    """sink: mean of p_i1, the share of the first visible key, over rows that see others too; in [0, 1].

    Heads that have nothing to attend to park their weight there where rows must sum to 1 (Xiao et al. 2024, §3); a
    null row needs no such key, and has no share.
    """

    def count(self, rows: Rows) -> Tensor:
        """Rows, and shares of their first key."""
        first = rows.visible.float().argmax(-1, keepdim=True).expand(*rows.row_sums.shape, 1)
        counted = rows.spread & (rows.key_counts > 1)
        return sums_by_head(counted, rows.shares.gather(-1, first).squeeze(-1) * counted)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """The mean share."""
        return {"sink": sums[..., 1] / sums[..., 0]}


class RightAndWrong(Statistic):
    """Rows at places where the model, given the reference so far, is right, and where it is wrong.

    NAME.right, NAME.wrong   `row_sum` and `entropy` of `RowStatistic` over the rows of such places
    accuracy                 share of the places that are right, in [0, 1]

    Right: the most probable token is the reference's; of images, the class. Weights that nothing normalises may add
    rivals up where softmax has to choose; ours, no paper's.
    """

    def count(self, rows: Rows) -> Tensor | None:
        """Rows, row sums, rows with an entropy and entropies, of right and of wrong places."""
        if rows.correct is None:
            return None
        sums = []
        for chosen in (rows.correct, ~rows.correct):
            spread = rows.spread & chosen
            counted = rows.real & chosen
            sums.append(sums_by_head(counted, rows.row_sums * counted, spread, rows.entropies * spread))
        return torch.cat(sums, dim=-1)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Means of both kinds, and how many are right."""
        values = {"accuracy": sums[..., 0] / (sums[..., 0] + sums[..., 4])}
        for number, name in enumerate(("right", "wrong")):
            rows, row_sum, spread, entropy = sums[..., 4 * number : 4 * number + 4].unbind(-1)
            values |= {f"row_sum.{name}": row_sum / rows, f"entropy.{name}": entropy / spread}
        return values


class OutputVariance(Statistic):
    r"""output_variance.N: variance of the components of o_i = Σ_j s_ij v_j over rows with N ≤ n_i < 2N; at least 0.

    By Theorem 4.1 of ReLUFormer, relu scores and values that are independent N(0, 1) give o the variance n/2, which
    grows with n; so the scores are divided by γ√(n/2). It is measured before any norm of the output, and before an
    exclusive one loses its own value.
    """

    def count(self, rows: Rows) -> Tensor | None:
        """Components, their sum and the sum of their squares, for each power of two."""
        if rows.values is None:
            return None
        # on the CPU in float64: a variance is a small difference of large sums
        output = rows.weights.cpu().double() @ rows.values.cpu().double()  # [batch, heads, query_len, head_dim]
        powers = rows.key_counts.clamp(min=1).log2().floor().long().clamp(max=LARGEST_POWER)
        members = (_one_hot(powers, LARGEST_POWER + 1) & rows.real.unsqueeze(-1)).cpu()
        moments = (torch.full_like(output[..., 0], output.shape[-1]), output.sum(-1), output.square().sum(-1))
        # [heads, moments · powers]
        return torch.cat([(members * moment.unsqueeze(-1)).sum((0, 2)) for moment in moments], dim=-1)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Variances, with the lengths in powers of two."""
        count, total, squares = sums.unflatten(-1, (3, -1)).unbind(-2)
        variances = squares / count - (total / count).square()
        return {f"output_variance.{2**power}": variances[..., power] for power in range(LARGEST_POWER + 1)}


class HeadDiversity(Statistic):
    r"""How much the H heads of a layer disagree: a generalised Jensen–Shannon divergence (ReLA §5.2, fig. 5, table 6).

    head_diversity  mean over queries i of H(1/H Σ_h p_ih) − 1/H Σ_h H(p_ih), in nats, 0 (equal) to log H (nothing in
                    common)

    p of a null row puts all its mass on a dummy key. Queries with a negative weight in any head are left out.
    """

    def count(self, rows: Rows) -> Tensor:
        """Queries and divergences."""
        counted = (rows.null | rows.spread).all(1, keepdim=True)  # [batch, 1, query_len]
        shares = torch.cat([rows.shares, rows.null.unsqueeze(-1).float()], dim=-1)
        mixed = torch.special.entr(shares.mean(1, keepdim=True)).sum(-1)
        divergences = mixed - torch.special.entr(shares).sum(-1).mean(1, keepdim=True)
        return sums_by_head(counted, divergences.masked_fill(~counted, 0.0))

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """The mean divergence."""
        return {"head_diversity": sums[..., 1] / sums[..., 0]}


def all_statistics() -> list[Statistic]:
    """One of each."""
    return [kind() for kind in (RowStatistic, Sink, RightAndWrong, OutputVariance, HeadDiversity)]


def head_variance(heads: Sequence[float | None]) -> float | None:
    """Variance of a statistic over heads, Σ_h (x_h − x̄)² / (H − 1); None of fewer than two heads that have it.

    ReLA §5.2 prints 0.256 for null rates, which is more than 1/4, the largest that a division by H could give.
    """
    known = torch.tensor([value for value in heads if value is not None], dtype=torch.float64)
    if len(known) > 1:
        return known.var().item()
    return None


def _one_hot(classes: Tensor, number: int) -> Tensor:
    """bool [..., classes]."""
    return classes.unsqueeze(-1) == torch.arange(number, device=classes.device)


def _known(value: float) -> float | None:
    if value != value or value in (torch.inf, -torch.inf):
        return None
    return value
