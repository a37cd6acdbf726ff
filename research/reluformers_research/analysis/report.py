"""What `reluformers analyse` has measured, as a table of means and as a picture by layer."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from reluformers.evaluation.attention_report import MISSING, SITE_NAMES
from reluformers.evaluation.plotting import clear_frame, line_style, save_figure
from reluformers.evaluation.results import markdown_table

Models = Mapping[str, Mapping[str, Any]]  # name → what `analyse_model` returns
# statistic → title of its row of charts and of its column
_BY_LAYER = {
    "zeros": "zero weights",
    "null_rate": "null rows",
    "null_rate.shuffled": "null rows, wrong pairs",
    "entropy": "entropy, nats",
    "row_sum": "sum of a row",
    "sink": "share of the first key",
    "head_diversity": "divergence of heads, nats",
}


def means_table(models: Models) -> str:
    """Means over sites and layers, a line for each model."""
    lines = []
    for name, results in models.items():
        values = [_mean(results["statistics"].get(key, {})) for key in _BY_LAYER]
        lines.append([name, *(MISSING if value is None else f"{value:.3g}" for value in values)])
    return markdown_table(["model", *_BY_LAYER.values()], lines)


def plot_layers(models: Models, path: Path) -> Path:
    """Draw statistics by layer: a row of charts for each, a column for each site, a line for each model."""
    known = [{key: value for key in _BY_LAYER if (value := one["statistics"].get(key))} for one in models.values()]
    keys = [key for key in _BY_LAYER if any(key in statistics for statistics in known)]
    sites = [site for site in SITE_NAMES if any(site in part for one in known for part in one.values())]
    figure = Figure(figsize=(3 * len(sites) + 1, 1.9 * len(keys)), layout="constrained")
    rows = figure.subplots(len(keys), len(sites), squeeze=False, sharey="row")
    for key, row in zip(keys, rows, strict=True):
        row[0].set_ylabel(_BY_LAYER[key])
        for site, axis in zip(sites, row, strict=True):
            for number, (name, statistics) in enumerate(zip(models, known, strict=True)):
                layers = statistics.get(key, {}).get(site, [])
                axis.plot(
                    range(1, len(layers) + 1),
                    [float("nan") if layer["overall"] is None else layer["overall"] for layer in layers],
                    label=name,
                    **line_style(number),
                )
            axis.set_title(SITE_NAMES[site], fontsize=9)
            axis.set_xticks([])
            clear_frame(axis)
    rows[0][0].legend(frameon=False, fontsize=8)
    figure.supxlabel("layers, from the first to the last")
    return save_figure(figure, path)


def _mean(sites: Mapping[str, Any]) -> float | None:
    known = [layer["overall"] for layers in sites.values() for layer in layers if layer["overall"] is not None]
    return fmean(known) if known else None
