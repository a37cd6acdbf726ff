"""How sparse, how empty and how spread out the attention of a model is, by site, layer and head."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .observation import Batch, Rows, observing

MISSING = "–"  # A cell shows it for an unknown value.
SITE_NAMES = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention", "pooling": "pooling query"}


@dataclass
class AttentionSummary:
    """How sparse, empty and spread out attention rows are.

    Args:
        zeros: share of weights that are exactly 0 among the visible pairs, in [0, 1].
        null_rate: share of rows without any weight, in [0, 1].
        entropy: mean over the other rows, in nats; None if there is none.
        row_sum: mean sum of a row.
        rows: number of query rows times heads.
    """

    zeros: float
    null_rate: float
    entropy: float | None
    row_sum: float
    rows: int

    def cells(self) -> dict[str, str]:
        """Column → text."""
        return {
            "zeros": f"{self.zeros:.1%}",
            "null rows": f"{self.null_rate:.1%}",
            "entropy": MISSING if self.entropy is None else f"{self.entropy:.2f}",
            "row sum": f"{self.row_sum:.2f}",
        }


@dataclass
class SiteStatistics:
    """Statistics of one attention site: of each layer, of all of them, and of each head of each layer if known."""

    layers: list[AttentionSummary]
    overall: AttentionSummary
    heads: list[list[AttentionSummary]] = field(default_factory=list)


@dataclass
class AttentionReport:
    """Statistics of a model's attention.

    Args:
        sites: "encoder", "decoder", "cross", "pooling", as far as the model has them → statistics.
        overall: of all sites.
    """

    sites: dict[str, SiteStatistics]
    overall: AttentionSummary

    def to_dict(self) -> dict[str, Any]:
        """The report as it is written: sites, and beside them `overall`."""
        return {**{site: asdict(part) for site, part in self.sites.items()}, "overall": asdict(self.overall)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AttentionReport":
        """Read what `to_dict` gives; a key that is missing or not known is a KeyError or TypeError."""
        sites = {
            site: SiteStatistics(
                [AttentionSummary(**layer) for layer in part["layers"]],
                AttentionSummary(**part["overall"]),
                [[AttentionSummary(**head) for head in layer] for layer in part.get("heads", [])],
            )
            for site, part in values.items()
            if site != "overall"
        }
        return cls(sites, AttentionSummary(**values["overall"]))


def attention_report(model: PreTrainedModel, batches: Iterable[Batch]) -> AttentionReport:
    """Measure the attention weights of forward passes, of translation models with teacher forcing.

    With s_ij the weight of visible key j for real query i, n_i the visible keys, Σ_i = Σ_j s_ij and p_ij = s_ij / Σ_i:

        zeros      Σ_ij [s_ij = 0] / Σ_i n_i, in [0, 1]: sparsity rate (ReLA §5.2, fig. 3; ReLUFormer §4.2)
        null_rate  share of rows whose weights are all 0, in [0, 1] (ReLA §5.2, fig. 6)
        entropy    mean of H(p_i) = −Σ_j p_ij log p_ij, in nats, over the other rows without a negative weight
        row_sum    mean of Σ_i over all rows: 1 for softmax, else any number (ReLUFormer eq. 7 pulls it to 1)

    Args:
        model, batches: as in `observing`. Memory is bounded by the largest batch.

    Returns:
        The report: of translation models the sites "encoder", "decoder" and "cross", of vision models "encoder" and,
        where one pools, "pooling". Every row weighs the same, whatever its layer and head.

    Raises:
        ValueError: the model returns no attention weights.
    """
    sums: dict[str, list[Tensor]] = {}
    with observing(model) as observe:
        for batch in batches:
            for site, layers in observe(batch).items():
                counts = [count_rows(rows) for rows in layers]
                sums[site] = [
                    old + count for old, count in zip(sums.get(site, [0] * len(counts)), counts, strict=True)
                ]
    sites = {}
    overall = torch.zeros(7, dtype=torch.float64)
    for site, layers in sums.items():
        by_layer = [layer.sum(0) for layer in layers]
        overall += sum(by_layer)
        heads = [[summarize(head) for head in layer] for layer in layers]
        sites[site] = SiteStatistics([summarize(layer) for layer in by_layer], summarize(sum(by_layer)), heads)
    return AttentionReport(sites, summarize(overall))


def count_rows(rows: Rows) -> Tensor:
    """Count visible pairs, zeros, rows, null rows, rows with an entropy, entropies, row sums: float64 [heads, 7]."""
    zeros = rows.visible & (rows.weights == 0)
    return sums_by_head(
        rows.key_counts,
        zeros.sum(-1),
        rows.real,
        rows.null,
        rows.spread,
        rows.entropies,
        rows.row_sums.masked_fill(~rows.real, 0.0),
    )


def sums_by_head(*values: Tensor) -> Tensor:
    """Sums of each of `values` [batch, heads or 1, query_len, …] over batch and queries: float64 [heads, sums]."""
    heads = max(value.shape[1] for value in values)
    sums = []
    for value in values:
        # Add up in float32 within a sequence, on its device: not every device has float64.
        total = value.float().sum(2).cpu().double().sum(0)
        sums.append(total.reshape(len(total), -1).expand(heads, -1))
    return torch.cat(sums, dim=-1)


def format_attention_report(report: AttentionReport) -> str:
    """The report as a table with a line for each layer, each site and all sites together."""
    lines = [f"{'site':<8} {'layer':>7} {'zeros %':>8} {'null %':>8} {'entropy':>8} {'row sum':>8}"]
    rows = []
    for site, statistics in report.sites.items():
        rows += [(site, layer, row) for layer, row in [*enumerate(statistics.layers), ("all", statistics.overall)]]
    for site, layer, row in [*rows, ("all", "all", report.overall)]:
        entropy = "-" if row.entropy is None else f"{row.entropy:.3f}"
        shares = f"{100 * row.zeros:>8.2f} {100 * row.null_rate:>8.2f}"
        lines.append(f"{site:<8} {layer:>7} {shares} {entropy:>8} {row.row_sum:>8.3f}")
    return "\n".join(lines)


def summarize(sums: Tensor) -> AttentionSummary:
    """Turn summed counts into the reported shares and means."""
    pairs, zeros, rows, null, spread, entropy, row_sum = sums.tolist()
    return AttentionSummary(
        zeros=zeros / max(pairs, 1),
        null_rate=null / max(rows, 1),
        entropy=entropy / spread if spread else None,
        row_sum=row_sum / max(rows, 1),
        rows=int(rows),
    )
