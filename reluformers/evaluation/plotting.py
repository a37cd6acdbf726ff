"""Pictures of training runs, of what a classifier confuses, and of how a model attends."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

from reluformers.files import atomic_write

from .attention_statistics import SITE_NAMES, AttentionReport

# Okabe and Ito 2008: eight colours that colour-blind readers tell apart; without yellow, which is faint on white
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PRESET = "model.preset"
_INCIDENTAL = r"data\.|training\.(logging_|save_|disable_tqdm|use_cpu|output_dir)"
_FORMATS = (".png", ".svg")
_X_LABELS = {"step": "updates", "epoch": "epochs"}

_PANELS = (("loss", "eval_loss"), ("eval_bleu",), ("eval_accuracy",))
_Y_LABELS = {"eval_loss": "loss (nats)", "eval_bleu": "evaluation BLEU", "eval_accuracy": "evaluation accuracy"}
_LINE_NAMES = {"loss": "training loss", "eval_loss": "evaluation loss"}
# training is thin and dotted whatever the run; evaluations are thick and have the run's dashes and markers
_LINES = {
    "loss": {"linewidth": 1.3},
    "eval_loss": {"linewidth": 1.8, "markersize": 5},
    "eval_bleu": {"linewidth": 1.8, "markersize": 5},
    "eval_accuracy": {"linewidth": 1.8, "markersize": 5},
}
_ATTENTION_PANELS = {"zeros": "zero weights", "null_rate": "null rows", "entropy": "entropy (nats)"}
_DASHES = ("-", "--", "-.", (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)))
_DOTS = (1.1, 1.1)
_MARKERS = "osD^vP*X"
# entries of the log that a point of the smoothed training loss is the mean of, and how many of them have to be there
_SMOOTHED, _LONG_LOG = 9, 30

# as many classes have a number in each cell and as many a label each; inches of a cell in between
_NUMBERED_CLASSES, _LABELLED_CLASSES = 20, 120
_NAME_LENGTH = 24

LogHistory = Sequence[Mapping[str, float]]


def plot_training_curves(runs: Mapping[str, LogHistory] | LogHistory, path: str | Path, *, x: str = "step") -> Path:
    """Draw the losses and, where it was measured, the BLEU or accuracy of one or several runs.

    The training loss is dotted and, of a long log, a running mean of nine entries; the evaluation loss has markers. A
    run has one colour and one marker in all panels. Of our models the training loss holds label smoothing and the
    regulariser as well, the evaluation loss does not.

    Args:
        runs: {name: log history} or one log history, as in `trainer.state.log_history` or `trainer_state.json`:
            dicts with `step`, `epoch` and some of `loss`, `eval_loss` (nats per token or image), `eval_bleu` (0 to
            100), `eval_accuracy` (0 to 1).
        path: picture to write, .png or .svg.
        x: "step" or "epoch".

    Returns:
        The path of the picture.

    Raises:
        ValueError: the suffix or `x` is not allowed, or no run has anything to draw.
    """
    path = check_picture_path(path)
    if x not in _X_LABELS:
        raise ValueError(f"x={x!r} is not one of {list(_X_LABELS)}.")
    runs = runs if isinstance(runs, Mapping) else {"": runs}
    panels = [keys for keys in _PANELS if any(_points(log, key, x)[0] for log in runs.values() for key in keys)]
    if not panels:
        raise ValueError(f"None of the runs {list(runs)} has one of {list(_LINES)} at some {x} in its log.")
    width = 5.5 * len(panels)
    columns = max(1, int(width / (0.6 + 0.09 * max(map(len, runs)))))  # inches of a line sample and of its name
    figure = Figure(figsize=(width, 3.6 + 0.22 * ceil(len(runs) / columns)), layout="constrained")
    for axes, keys in zip(figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, runs, keys, x)
    keys = [key for panel in panels for key in panel]
    drawn = [any(_points(log, key, x)[0] for key in keys) for log in runs.values()]
    names = [
        Line2D([], [], **line_style(number), linewidth=1.8, markersize=5, label=name)
        for number, name in enumerate(runs)
        if name and drawn[number]
    ]
    if names:
        figure.legend(handles=names, loc="outside lower center", ncols=min(len(names), columns), frameon=False)
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
        path: picture to write, .png or .svg.
        title: text above the picture.

    Returns:
        The path of the picture.

    Raises:
        ValueError: the suffix is not allowed, the matrix is not a square of counts, or the names do not fit it.
    """
    path = check_picture_path(path)
    counts = _checked_counts(matrix, class_names)
    images = counts.sum(1, keepdims=True)
    shares = np.ma.masked_array(counts / np.maximum(images, 1), mask=np.broadcast_to(images == 0, counts.shape))
    classes = len(counts)
    cell = _cell_size(classes)
    figure = Figure(figsize=(classes * cell + 3, classes * cell + 2), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["Blues"].with_extremes(bad="0.88")
    picture = axes.imshow(shares, cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    _label_classes(axes, class_names, font_size=min(10.0, 62 * cell))
    if classes <= _NUMBERED_CLASSES:
        _number_cells(axes, counts, shares, font_size=min(10.0, 88 * cell / (1 + len(str(counts.max())))))
    bar = figure.colorbar(picture, ax=axes, shrink=min(1.0, 4 / (classes * cell)), format=PercentFormatter(1.0))
    bar.set_ticks([0, 0.01, 0.05, 0.2, 0.5, 1])
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    if title:
        figure.suptitle(title)
    return save_figure(figure, path)


def plot_attention_report(report: AttentionReport, path: str | Path) -> Path:
    """Draw how zeros, null rows and entropy go through the layers of each site.

    Args:
        report: of `analysis.attention_report`.
        path: picture to write, .png or .svg.

    Returns:
        The path of the picture.

    Raises:
        ValueError: the suffix is not allowed.
    """
    path = check_picture_path(path)
    sites = {site: name for site, name in SITE_NAMES.items() if site in report.sites}
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, 3, sharex=True), _ATTENTION_PANELS.items(), strict=True):
        for number, (site, name) in enumerate(sites.items()):
            rows = [(layer, getattr(row, key)) for layer, row in enumerate(report.sites[site].layers, start=1)]
            # sites often lie on each other, as where no row is null: the later ones are smaller, so that all show
            size = 5 + 2.5 * (len(sites) - 1 - number)
            axes.plot(*zip(*rows, strict=True), **line_style(number), linewidth=1.8, markersize=size, label=name)
        axes.set_title(label, fontsize=11)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        clear_frame(axes)
        if key != "entropy":
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        else:
            axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # with room for the largest marker
    if len(sites) > 1:
        handles = [
            Line2D([], [], **line_style(number), linewidth=1.8, markersize=6, label=name)
            for number, name in enumerate(sites.values())
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(sites), frameon=False)
    return save_figure(figure, path)


def run_labels(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Name runs by what differs in their recipes: the preset and each field, such as "relu-vit, length_exponent 0.5".

    Args:
        recipes: {name: sections of its recipe}; empty where it is not known.

    Returns:
        A label for each name; the name itself where its recipe is unknown or tells it from no other.
    """
    fields = {name: dict(_flat(recipe)) for name, recipe in recipes.items()}
    known = [values for values in fields.values() if values]
    differing = [
        key
        for key in dict.fromkeys(key for values in known for key in values)
        if any(values.get(key) != known[0].get(key) for values in known)
    ]
    # the place of the data and the pace of the log are no part of what is compared
    differing = [key for key in differing if not re.match(_INCIDENTAL, key)]
    endings = Counter(key.rpartition(".")[2] for key in differing)
    labels = {}
    for name, values in fields.items():
        parts = [str(values[_PRESET])] if _PRESET in differing and _PRESET in values else []
        for key in differing:
            if key != _PRESET and key in values:
                ending = key.rpartition(".")[2]
                parts.append(f"{ending if endings[ending] == 1 else key} {values[key]}")
        labels[name] = ", ".join(parts) or name
    counts = Counter(labels.values())
    return {name: label if counts[label] == 1 else name for name, label in labels.items()}


def check_picture_path(path: str | Path) -> Path:
    """Make sure that a picture can have that name.

    Args:
        path: picture to be written.

    Returns:
        The path.

    Raises:
        ValueError: it ends in neither .png nor .svg.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(f"The picture {path} must end in one of {list(_FORMATS)}.")
    return path


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of nested mappings under dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a picture; without a date in an SVG, so that the same numbers give the same file."""
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with atomic_write(path) as temporary, rc_context({"svg.hashsalt": "reluformers"}):
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)
    return path


def _points(log: LogHistory, key: str, x: str) -> tuple[list[float], list[float]]:
    """Return the positions and values of one key of a log."""
    entries = [entry for entry in log if entry.get(key) is not None and entry.get(x) is not None]
    return [entry[x] for entry in entries], [entry[key] for entry in entries]


def smoothed(values: Sequence[float]) -> list[float]:
    """Running mean of nine values, the middle one in its place; of fewer towards both ends, where a curve is steep.

    Values that are not finite are left out of the means and stay gaps. A log of less than 30 entries is returned as it
    is, since its shape would be lost.
    """
    series = np.asarray(values, dtype=float)
    if len(series) < _LONG_LOG:
        return series.tolist()
    means = []
    for place, value in enumerate(series):
        reach = min(place, len(series) - 1 - place, _SMOOTHED // 2)
        window = series[place - reach : place + reach + 1]
        means.append(float(np.mean(window[np.isfinite(window)])) if np.isfinite(value) else value.item())
    return means


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the curve of that number; curves differ in two of them at least.

    Colours are those of Okabe and Ito, which colour-blind readers tell apart; markers and dashes also do without
    colour. Markers are hollow, so that curves that lie on each other show through.
    """
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        # the second time round a colour comes with other dashes
        "linestyle": _DASHES[(number + 2 * (number // len(_COLOURS))) % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markerfacecolor": "none",
        "markeredgewidth": 1.4,
    }


def _draw_panel(axes: Axes, runs: Mapping[str, LogHistory], keys: Sequence[str], x: str) -> None:
    """Draw some keys of all runs into one panel."""
    labels = {}
    for number, log in enumerate(runs.values()):
        for key in keys:
            places, values = _points(log, key, x)
            if not places:
                continue
            style = {**line_style(number), **_LINES[key]}
            labels.setdefault(key, _LINE_NAMES.get(key))
            if key == "loss":
                # dots of runs that lie on each other fall between each other
                style |= {"marker": "", "linestyle": (1.1 * number, _DOTS)}
                labels[key] = f"{_LINE_NAMES[key]}, running mean" if len(values) >= _LONG_LOG else labels[key]
                values = smoothed(values)
            axes.plot(places, values, **style)
    if len(keys) > 1:
        samples = {"loss": {"linestyle": (0, _DOTS)}, "eval_loss": {"marker": "o", "markerfacecolor": "none"}}
        handles = [
            Line2D([], [], color="0.35", label=label, **_LINES[key], **samples[key]) for key, label in labels.items()
        ]
        axes.legend(handles=handles, frameon=False)
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(_Y_LABELS[keys[-1]])
    if keys == ("eval_accuracy",):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.01))  # there is nothing above 100 %
    clear_frame(axes)
    axes.margins(x=0.02)


def clear_frame(axes: Axes) -> None:
    """Leave the left and the lower edge and faint lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def _checked_counts(matrix: np.ndarray | Sequence[Sequence[int]], class_names: Sequence[str]) -> np.ndarray:
    """Return the matrix as int64 [classes, classes] if it is one of counts and has a name for each class."""
    counts = np.asarray(matrix)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise ValueError(f"A confusion matrix must be a square, got the shape {list(counts.shape)}.")
    if not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise ValueError(f"A confusion matrix must hold counts, got {counts.dtype} from {counts.min()} on.")
    if len(class_names) != len(counts):
        raise ValueError(f"There are {len(class_names)} class names for a matrix of {len(counts)} classes.")
    return counts.astype(np.int64)


def _cell_size(classes: int) -> float:
    """Return the inches of a cell: room for a number, else for a line of text, else what fits a picture of 20."""
    if classes <= _NUMBERED_CLASSES:
        return 0.9 if classes < 5 else 0.5
    return max(0.13, 8 / classes) if classes <= _LABELLED_CLASSES else 16 / classes


def _label_classes(axes: Axes, class_names: Sequence[str], font_size: float) -> None:
    """Put the names on both axes; of very many classes every n-th."""
    ticks = range(0, len(class_names), ceil(len(class_names) / _LABELLED_CLASSES))
    labels = [_shortened(class_names[tick]) for tick in ticks]
    font_size = max(font_size, 6.0)
    is_short = len(class_names) < 5 and max(map(len, labels)) <= 8
    axes.set_yticks(ticks, labels, fontsize=font_size)
    axes.set_xticks(ticks, labels, fontsize=font_size, rotation=0 if is_short else 90)
    axes.set_ylabel("true class")
    axes.set_xlabel("predicted class")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1].rstrip() + "…"


def _number_cells(axes: Axes, counts: np.ndarray, shares: np.ndarray, font_size: float) -> None:
    """Write the counts into the cells, and none where it is 0."""
    for row, column in zip(*np.nonzero(counts), strict=True):
        axes.text(
            column,
            row,
            str(counts[row, column]),
            color="white" if shares[row, column] > 0.28 else "0.15",
            fontsize=font_size,
            ha="center",
            va="center",
        )
