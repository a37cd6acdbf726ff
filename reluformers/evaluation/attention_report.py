"""How sparse, how empty and how spread out the attention of a model is, by site, layer and head."""

from collections.abc import Iterable

from torch import Tensor
from transformers import PreTrainedModel

from .attention_statistics import AttentionReport, AttentionStatistics, SiteStatistics
from .observation import Batch, analyse
from .statistics import RowStatistic


def attention_report(model: PreTrainedModel, batches: Iterable[Batch]) -> AttentionReport:
    """Measure the attention weights of forward passes, of translation models with teacher forcing.

    It is `statistics.RowStatistic` alone, whose docstring has the formulas: zeros, null rows, entropy and row sums.

    Args:
        model, batches: as in `observation.analyse`.

    Returns:
        The report: of translation models the sites "encoder", "decoder" and "cross", of vision models "encoder" and,
        where one pools, "pooling". Every row weighs the same, whatever its layer and head.

    Raises:
        ValueError: there are no batches, a batch lacks its inputs, or the model returns no attention weights.
    """
    statistic = RowStatistic()
    analyse(model, batches, [statistic])
    sites = {
        site: SiteStatistics(
            [_statistics(sums.sum(0)) for sums in layers],
            _statistics(_total(layers)),
            [[_statistics(head) for head in sums] for sums in layers],
        )
        for site, layers in statistic.sums.items()
    }
    return AttentionReport(sites, _statistics(sum(map(_total, statistic.sums.values()))))


def format_attention_report(report: AttentionReport) -> str:
    """The report as a table with a line for each layer, each site and all sites together."""
    lines = [f"{'site':<8} {'layer':>7} {'zeros %':>8} {'null %':>8} {'entropy':>8} {'row sum':>8}"]
    for site, statistics in report.sites.items():
        lines += [_table_line(site, str(layer), row) for layer, row in enumerate(statistics.layers)]
        lines.append(_table_line(site, "all", statistics.overall))
    lines.append(_table_line("all", "all", report.overall))
    return "\n".join(lines)


def _table_line(site: str, layer: str, row: AttentionStatistics) -> str:
    entropy = "-" if row.entropy is None else f"{row.entropy:.3f}"
    return f"{site:<8} {layer:>7} {100 * row.zeros:>8.2f} {100 * row.null_rate:>8.2f} {entropy:>8} {row.row_sum:>8.3f}"


def _total(layers: list[Tensor]) -> Tensor:
    """Sums over layers and heads."""
    return sum(sums.sum(0) for sums in layers)


def _statistics(sums: Tensor) -> AttentionStatistics:
    """Turn summed counts into the reported shares and means."""
    pairs, zeros, rows, null, spread, entropy, row_sum = sums.tolist()
    return AttentionStatistics(
        zeros=zeros / max(pairs, 1),
        null_rate=null / max(rows, 1),
        entropy=entropy / spread if spread else None,
        row_sum=row_sum / max(rows, 1),
        rows=int(rows),
    )
