"""Figures of training runs, of what a classifier confuses, and of how a model attends."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from reluformers.configuration.field_checks import check_choice
from reluformers.files import atomic_write

from .attention_report import SITE_NAMES, AttentionReport

# Colour-blind readers tell these apart (Okabe and Ito 2008). Their yellow is left out, as it is faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)))
_MARKERS = "osD^vP*X"
_X_LABELS = {"step": "updates", "epoch": "epochs"}
_PANELS = {
    ("loss", "eval_loss"): "loss (nats)",
    ("eval_bleu",): "evaluation BLEU",
    ("eval_accuracy",): "evaluation accuracy",
}
_LINE_NAMES = {"loss": "training loss", "eval_loss": "evaluation loss"}
_ATTENTION_PANELS = {"zeros": "zero weights", "null_rate": "null rows", "entropy": "entropy (nats)"}
# With more classes, cells have no number, or not every class has a label.
_NUMBERED_CLASSES = 20
_LABELLED_CLASSES = 120
_NAME_LENGTH = 24
_CURVE = {"linewidth": 1.8, "markersize": 5}

LogHistory = Sequence[Mapping[str, float]]


def plot_training_curves(runs: Mapping[str, LogHistory] | LogHistory, path: str | Path, *, x: str = "step") -> Path:
    """Draw the losses and, where it was measured, the BLEU or accuracy of one or several runs.

    The training loss is dotted, the evaluation loss has markers; a run has one colour and one marker in all panels.
    The training loss of our models holds label smoothing and the regulariser as well, the evaluation loss does not.

    Args:
        runs: {name: log history} or one log history, as in `trainer.state.log_history`: dicts with `step`, `epoch` and
            some of `loss`, `eval_loss` (nats per token or image), `eval_bleu` (0 to 100), `eval_accuracy` (0 to 1).
        path: figure to write, .png or .svg.
        x: "step" or "epoch".

    Raises:
        ValueError: no run has anything to draw.
    """
    runs = runs if isinstance(runs, Mapping) else {"": runs}
    panels = [keys for keys in _PANELS if any(_points(log, key, x) for log in runs.values() for key in keys)]
    width = 5.5 * len(panels)
    # In inches: a line sample takes 0.6, a letter of its name 0.09.
    columns = max(1, int(width / (0.6 + 0.09 * max(map(len, runs)))))
    figure = Figure(figsize=(width, 3.6 + 0.22 * ceil(len(runs) / columns)), layout="constrained")
    for axes, keys in zip(figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, runs, keys, x)
    if "" not in runs:
        _name_lines(figure, list(runs), columns)
    return save_figure(figure, path)


def plot_confusion_matrix(
    matrix: np.ndarray | Sequence[Sequence[int]],
    class_names: Sequence[str],
    path: str | Path,
    *,
    title: str | None = None,
) -> Path:
    """Draw how often the images of each class were taken for which class.

    A row is a true class, a column a predicted one. The colour is the share of the row, on a square-root scale that
    shows rare mistakes too; the cells hold the counts where there are few classes. A class without images is grey.

    Args:
        matrix: counts [true classes, predicted classes], whole numbers.
        class_names: a name for each row; long ones are shortened.
        path: figure to write, .png or .svg.
        title: text above the figure.
    """
    counts = np.asarray(matrix)
    classes = len(class_names)
    images = counts.sum(1, keepdims=True)
    shares = np.ma.masked_array(counts / np.maximum(images, 1), mask=np.broadcast_to(images == 0, counts.shape))
    cell = min(0.5, max(0.13, 8 / classes), 16 / classes)  # In inches.
    figure = Figure(figsize=(classes * cell + 3, classes * cell + 2), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["Blues"].with_extremes(bad="0.88")
    picture = axes.imshow(shares, cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    ticks = range(0, classes, ceil(classes / _LABELLED_CLASSES))
    labels = [_shortened(class_names[tick]) for tick in ticks]
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_xticks(ticks, labels, fontsize=8, rotation=90)
    axes.set_ylabel("true class")
    axes.set_xlabel("predicted class")
    if classes <= _NUMBERED_CLASSES:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[row, column] > 0.28 else "0.15"
            axes.text(column, row, counts[row, column], color=colour, fontsize=8, ha="center", va="center")
    bar = figure.colorbar(picture, ax=axes, shrink=min(1.0, 4 / (classes * cell)), format=PercentFormatter(1.0))
    bar.set_ticks([0, 0.01, 0.05, 0.2, 0.5, 1])
    bar.set_label("share of the true class")
    if title:
        figure.suptitle(title)
    return save_figure(figure, path)


def plot_attention_report(report: AttentionReport, path: str | Path) -> Path:
    """Draw how zeros, null rows and entropy go through the layers of each site, into a .png or .svg."""
    sites = {site: name for site, name in SITE_NAMES.items() if site in report.sites}
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, 3, sharex=True), _ATTENTION_PANELS.items(), strict=True):
        for number, site in enumerate(sites):
            values = [getattr(row, key) for row in report.sites[site].layers]
            # Sites often lie on each other, so the later ones get smaller markers.
            size = 5 + 2.5 * (len(sites) - 1 - number)
            axes.plot(range(1, len(values) + 1), values, **{**line_style(number), **_CURVE, "markersize": size})
        axes.set_title(label, fontsize=11)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        clear_frame(axes)
        if key != "entropy":
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        else:
            axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # The largest marker needs some room.
    if len(sites) > 1:
        _name_lines(figure, list(sites.values()), len(sites))
    return save_figure(figure, path)


def check_picture_path(path: str | Path) -> None:
    """Raise a `ValueError` if the path of a figure ends in neither .png nor .svg."""
    check_choice("figure", "ending", Path(path).suffix, (".png", ".svg"))


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure; without a date in an SVG, so that the same numbers give the same file."""
    path = Path(path)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with atomic_write(path) as temporary, rc_context({"svg.hashsalt": "reluformers"}):
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)
    return path


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the curve of that number; curves differ in two of them at least.

    Markers and dashes also do without colour. Markers are hollow, so that curves that lie on each other show through.
    """
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        # When colours come again, they have other dashes.
        "linestyle": _DASHES[(number + 2 * (number // len(_COLOURS))) % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markerfacecolor": "none",
        "markeredgewidth": 1.4,
    }


def clear_frame(axes: Axes) -> None:
    """Leave the left and the lower edge and faint lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def _points(log: LogHistory, key: str, x: str) -> list[tuple[float, float]]:
    """Positions and values of one key of a log."""
    return [(entry[x], entry[key]) for entry in log if entry.get(key) is not None and entry.get(x) is not None]


def _shortened(name: str) -> str:
    if len(name) <= _NAME_LENGTH:
        return name
    return name[: _NAME_LENGTH - 1].rstrip() + "…"


def _name_lines(figure: Figure, names: Sequence[str], columns: int) -> None:
    """Put a legend of curves below the panels."""
    lines = [Line2D([], [], **line_style(number), **_CURVE, label=name) for number, name in enumerate(names)]
    figure.legend(handles=lines, loc="outside lower center", ncols=min(len(names), columns), frameon=False)


def _draw_panel(axes: Axes, runs: Mapping[str, LogHistory], keys: Sequence[str], x: str) -> None:
    """Draw some keys of all runs into one panel."""
    samples = {}
    for number, log in enumerate(runs.values()):
        for key in keys:
            if points := _points(log, key, x):
                of_training = {"marker": "", "linestyle": ":", "linewidth": 1.3} if key == "loss" else {}
                (line,) = axes.plot(*zip(*points, strict=True), **{**line_style(number), **_CURVE, **of_training})
                samples.setdefault(_LINE_NAMES.get(key), line)
    if len(keys) > 1:
        axes.legend(samples.values(), samples, frameon=False)
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(_PANELS[keys])
    if keys == ("eval_accuracy",):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.01))  # An accuracy is at most 100 %.
    clear_frame(axes)
