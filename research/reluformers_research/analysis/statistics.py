"""The statistics of the papers' figures and tables, each a sum over rows that a pass adds up.

Notation: s_ij is the weight of visible key j for real query i, n_i the number of visible keys, Σ_i = Σ_j s_ij,
p_ij = s_ij / Σ_i. A row is null when all its weights are 0; where p is needed, null rows and rows with a negative
weight are left out. Every statistic is given for each site and layer, over all its heads together and, unless it
compares heads, for each of them.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from reluformers.evaluation.attention_report import count_rows, sums_by_head

from .observation import FeedForwardRows, Observed, Rows, Statistic

ATTENTION_PERCENTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
SLOT_PERCENTS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
TEMPERATURES = (1.0, 0.5, 0.25, 0.1)
LARGEST_POWER = 12  # rows of 2^12 keys and more are counted together


@dataclass
class LayerValue:
    """A statistic of one layer.

    Args:
        overall: over all heads together; None where there was nothing to measure.
        heads: of each head; empty for what compares heads or has none.
    """

    overall: float | None
    heads: list[float | None] = field(default_factory=list)


class SumStatistic(Statistic):
    """Values of sums over rows, whose memory does not grow with the data."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}

    def parts(self, observed: Observed) -> dict[str, list[Any]]:
        """Site → what is counted of each layer."""
        return observed.attention

    @abstractmethod
    def count(self, part: Any) -> Tensor | None:
        """Sums over the rows of one batch, float64 [heads, sums], or [1, sums]; None where nothing can be counted."""

    @abstractmethod
    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Name → value [...] of sums [..., sums]; NaN where there was nothing to measure."""

    def update(self, observed: Observed) -> None:
        """Add the sums of one batch."""
        for site, parts in self.parts(observed).items():
            counts = [self.count(part) for part in parts]
            if all(count is not None for count in counts):
                before = self.sums.get(site, [torch.zeros(())] * len(counts))
                self.sums[site] = [old + count for old, count in zip(before, counts, strict=True)]

    def result(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Name → site → `LayerValue` of each layer as a dict."""
        results: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for site, layers in self.sums.items():
            for sums in layers:
                overall, heads = self.values(sums.sum(0)), self.values(sums)
                for name, value in overall.items():
                    by_head = heads[name].tolist() if len(sums) > 1 else []
                    layer = LayerValue(_known(value.item()), [_known(number) for number in by_head])
                    results.setdefault(name, {}).setdefault(site, []).append(asdict(layer))
        # what was measured nowhere, such as lengths that do not occur, is left out
        return {
            name: sites
            for name, sites in results.items()
            if any(layer["overall"] is not None for layers in sites.values() for layer in layers)
        }


class RowStatistic(SumStatistic):
    r"""How sparse, empty and spread out rows are.

    zeros      Σ_ij [s_ij = 0] / Σ_i n_i, in [0, 1]: sparsity rate (ReLA §5.2, fig. 3; ReLUFormer §4.2)
    null_rate  share of null rows, in [0, 1] (ReLA §5.2, fig. 6)
    entropy    mean of H(p_i) = −Σ_j p_ij log p_ij, in nats, 0 to log n (ReLUFormer §4.2, tables 3 and 5)
    row_sum    mean of Σ_i over all rows: 1 for softmax, else any number (ReLUFormer eq. 7 pulls it to 1)
    """

    def count(self, part: Rows) -> Tensor:
        """See `count_rows`."""
        return count_rows(part)

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


class Sink(SumStatistic):
    """sink: mean of p_i1, the share of the first visible key, over rows that see others too; in [0, 1].

    Heads that have nothing to attend to park their weight there where rows must sum to 1 (Xiao et al. 2024, §3); a
    null row needs no such place, and has no share.
    """

    def count(self, part: Rows) -> Tensor:
        """Rows, and shares of their first key."""
        first = part.visible.float().argmax(-1, keepdim=True).expand(*part.row_sums.shape, 1)
        counted = part.spread & (part.key_counts > 1)
        return sums_by_head(counted, part.shares.gather(-1, first).squeeze(-1) * counted)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """The mean share."""
        return {"sink": sums[..., 1] / sums[..., 0]}


class RightAndWrong(SumStatistic):
    """Rows at places where the model, given the reference so far, is right, and where it is wrong.

    NAME.right, NAME.wrong   `row_sum` and `entropy` of `RowStatistic` over the rows of such places
    accuracy                 share of the places that are right, in [0, 1]

    Right: the most probable token is the reference's; of images, the class. Weights that nothing normalises may add
    rivals up where softmax has to choose; ours, no paper's.
    """

    def count(self, part: Rows) -> Tensor | None:
        """Rows, row sums, rows with an entropy and entropies, of right and of wrong places."""
        if part.correct is None:
            return None
        sums = []
        for chosen in (part.correct, ~part.correct):
            spread = part.spread & chosen
            rows = part.real & chosen
            sums.append(sums_by_head(rows, part.row_sums * rows, spread, part.entropies * spread))
        return torch.cat(sums, dim=-1)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Means of both kinds, and how many are right."""
        values = {"accuracy": sums[..., 0] / (sums[..., 0] + sums[..., 4])}
        for number, name in enumerate(("right", "wrong")):
            rows, row_sum, spread, entropy = sums[..., 4 * number : 4 * number + 4].unbind(-1)
            values |= {f"row_sum.{name}": row_sum / rows, f"entropy.{name}": entropy / spread}
        return values


class OutputVariance(SumStatistic):
    r"""output_variance.N: variance of the components of o_i = Σ_j s_ij v_j over rows with N ≤ n_i < 2N; at least 0.

    By Theorem 4.1 of ReLUFormer, relu scores and values that are independent N(0, 1) give o the variance n/2, which
    grows with n; so the scores are divided by γ√(n/2). It is measured before any norm of the output, and before an
    exclusive one loses its own value.
    """

    needs = frozenset({"values"})

    def count(self, part: Rows) -> Tensor | None:
        """Components, their sum and the sum of their squares, for each power of two."""
        if part.values is None:
            return None
        # on the CPU in float64: a variance is a small difference of large sums
        output = part.weights.cpu().double() @ part.values.cpu().double()  # [batch, heads, query_len, head_dim]
        powers = part.key_counts.clamp(min=1).log2().floor().long().clamp(max=LARGEST_POWER)
        members = (_one_hot(powers, LARGEST_POWER + 1) & part.real.unsqueeze(-1)).cpu()
        moments = (torch.full_like(output[..., 0], output.shape[-1]), output.sum(-1), output.square().sum(-1))
        # [heads, moments · powers]
        return torch.cat([(members * moment.unsqueeze(-1)).sum((0, 2)) for moment in moments], dim=-1)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """Variances, with the lengths in powers of two."""
        count, total, squares = sums.unflatten(-1, (3, -1)).unbind(-2)
        variances = squares / count - (total / count).square()
        return {f"output_variance.{2**power}": variances[..., power] for power in range(LARGEST_POWER + 1)}


class TopShare(SumStatistic):
    r"""top_share.P: mean over rows of the sum of the ⌈n_i·P/100⌉ largest p_ij, in (0, 1] (ReLUFormer §3.4, §4.3, fig. 4).

    Args:
        percents: P, above 0 and at most 100.
    """  # noqa: E501

    name = "top_share"

    def __init__(self, percents: Sequence[float] = ATTENTION_PERCENTS):
        super().__init__()
        self.percents = percents

    def count(self, part: Rows) -> Tensor:
        """Rows, and the sums of each percentage."""
        tops = _top_shares(part.shares, part.key_counts, self.percents)
        return sums_by_head(part.spread, tops * part.spread.unsqueeze(-1))

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """A mean for each percentage."""
        return {
            f"{self.name}.{percent:g}": sums[..., 1 + number] / sums[..., 0]
            for number, percent in enumerate(self.percents)
        }


class HeadDiversity(SumStatistic):
    r"""How much the H heads of a layer disagree: a generalised Jensen–Shannon divergence (ReLA §5.2, fig. 5, table 6).

    mean over queries i of H(1/H Σ_h q_ih) − 1/H Σ_h H(q_ih), in nats, 0 (equal) to log H (nothing in common)

    head_diversity     q_ih = p_ih, as for weights that sum to 1 anyway
    head_diversity.τ   q_ih = softmax over the visible keys of s_ih^τ, as ReLA renormalises weights that do not; not
                       measured where all rows sum to 1 anyway

    q of a null row puts all its mass on a dummy key. Queries with a negative weight in any head are left out.

    Args:
        temperatures: τ.
    """

    def __init__(self, temperatures: Sequence[float] = TEMPERATURES):
        super().__init__()
        self.temperatures = temperatures

    def count(self, part: Rows) -> Tensor:
        """Queries; divergences of shares and for each τ; rows that do not sum to 1."""
        counted = (part.null | part.spread).all(1, keepdim=True)  # [batch, 1, query_len]
        shares = torch.cat([part.shares, part.null.unsqueeze(-1).float()], dim=-1)
        divergences = [_divergence(shares)]
        for temperature in self.temperatures:
            scores = part.weights.clamp(min=0.0).pow(temperature).masked_fill(~part.visible, -torch.inf)
            renormalised = scores.softmax(-1).masked_fill(part.null.unsqueeze(-1), 0.0)
            divergences.append(_divergence(torch.cat([renormalised, part.null.unsqueeze(-1).float()], dim=-1)))
        divergences = torch.stack(divergences, dim=-1).masked_fill(~counted.unsqueeze(-1), 0.0)
        free = (part.real & ((part.row_sums - 1).abs() > 1e-2)).any(1, keepdim=True)
        return sums_by_head(counted, divergences, free)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """The mean divergences."""
        means = sums[..., 1:-1] / sums[..., :1]
        renormalised = means[..., 1:].masked_fill(sums[..., -1:] == 0, torch.nan)
        return {
            "head_diversity": means[..., 0],
            **{f"head_diversity.{value:g}": renormalised[..., place] for place, value in enumerate(self.temperatures)},
        }


class FeedForwardTopShare(TopShare):
    r"""ffn_top_share.P: the same of the inner states a_t of feed-forward networks, Σ of the ⌈m·P/100⌉ largest of
    a_tj / Σ_j a_tj over the m slots, mean over tokens, in (0, 1] (ReLUFormer §3.4, fig. 2).

    Tokens with a negative inner state, as GELU and gated forms give them, are left out.

    Args:
        percents: P, above 0 and at most 100.
    """

    name = "ffn_top_share"
    needs = frozenset({"feed_forward"})

    def __init__(self, percents: Sequence[float] = SLOT_PERCENTS):
        super().__init__(percents)

    def parts(self, observed: Observed) -> dict[str, list[FeedForwardRows]]:
        """The feed-forward networks."""
        return observed.feed_forward

    def count(self, part: FeedForwardRows) -> Tensor:
        """Tokens, and the sums of each percentage."""
        visible = torch.ones_like(part.inner, dtype=torch.bool)
        return super().count(Rows.of(part.inner[None, None], visible[None], visible[None, :, 0]))


class VarianceRatio(SumStatistic):
    """ffn_variance_ratio: Var(output of the feed-forward network) / Var(residual it is added to), at least 0.

    Variances over all components of all real tokens (ReLUFormer §3.2, table 1: softmax without a norm is drowned).
    """

    needs = frozenset({"feed_forward"})

    def parts(self, observed: Observed) -> dict[str, list[FeedForwardRows]]:
        """The feed-forward networks."""
        return observed.feed_forward

    def count(self, part: FeedForwardRows) -> Tensor:
        """Components, and sums and sums of squares of both."""
        states = torch.stack([part.output, part.residual]).flatten(1)
        moments = torch.stack([states, states.square()]).cpu().double().sum(-1)  # [2 powers, 2 states]
        return torch.cat([torch.tensor([states.shape[1]]).double(), moments.flatten()]).unsqueeze(0)

    def values(self, sums: Tensor) -> dict[str, Tensor]:
        """The ratio."""
        means = sums[..., 1:] / sums[..., :1]
        output, residual = (means[..., 2:] - means[..., :2].square()).unbind(-1)
        return {"ffn_variance_ratio": output / residual}


def all_statistics() -> list[SumStatistic]:
    """One of each."""
    kinds = (RowStatistic, Sink, RightAndWrong, OutputVariance, TopShare, HeadDiversity)
    return [kind() for kind in (*kinds, FeedForwardTopShare, VarianceRatio)]


def head_variance(heads: Sequence[float | None]) -> float | None:
    """Variance of a statistic over heads, Σ_h (x_h − x̄)² / (H − 1); None of fewer than two heads that have it.

    ReLA §5.2 prints 0.256 for null rates, which is more than 1/4, the largest that a division by H could give.
    """
    known = torch.tensor([value for value in heads if value is not None], dtype=torch.float64)
    return known.var().item() if len(known) > 1 else None


def _one_hot(classes: Tensor, number: int) -> Tensor:
    """bool [..., classes]."""
    return classes.unsqueeze(-1) == torch.arange(number, device=classes.device)


def _top_shares(shares: Tensor, counts: Tensor, percents: Sequence[float]) -> Tensor:
    """Sums of the largest shares [..., percents] of shares [..., key_len] with `counts` of visible keys [...]."""
    sums = shares.sort(dim=-1, descending=True).values.cumsum(-1)
    # rounded, as 5 % of 20 is 1.0000000000000002 in floats
    sizes = torch.stack([(counts.cpu().double() * percent / 100).sub(1e-6).ceil() for percent in percents], dim=-1)
    places = (sizes.long().to(shares.device) - 1).clamp(min=0)
    return sums.gather(-1, places.expand(*sums.shape[:-1], -1))


def _divergence(distributions: Tensor) -> Tensor:
    """H(mean) − mean of H over the heads of [batch, heads, query_len, keys]: [batch, 1, query_len]."""
    mixed = torch.special.entr(distributions.mean(1, keepdim=True)).sum(-1)
    return mixed - torch.special.entr(distributions).sum(-1).mean(1, keepdim=True)


def _known(value: float) -> float | None:
    return None if value != value or value in (torch.inf, -torch.inf) else value
