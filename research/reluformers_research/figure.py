"""The figure of a table: the scores of its rows."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from reluformers.evaluation.plotting import check_picture_path, clear_frame, line_style, save_figure


def plot_scores(
    scores: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    label: str,
    is_share: bool = False,
    x: str | None = None,
    title: str | None = None,
) -> Path:
    """Draw the scores of a table's rows: a dot for every seed, and a line through the means.

    With `x`, where one of the parts of the rows' names, `a/b/c`, is a number in all of them, it lies on the horizontal
    axis and the other parts name the curves; otherwise every row has a place of its own.

    Args:
        scores: {row: score of each seed}; a row without scores is left out.
        path: picture to write, .png or .svg.
        label: of the scores.
        is_share: whether they are shares, in [0, 1], to be shown in percent.
        x: what the numbers in the names are; None to leave them in the names.
        title: text above the picture.

    Returns:
        The path of the picture.

    Raises:
        ValueError: the suffix is not allowed, or no row has a score.
    """
    path = check_picture_path(path)
    scores = {row: values for row, values in scores.items() if len(values)}
    if not scores:
        raise ValueError("No row has a score.")
    parts = {row: row.split("/") for row in scores}
    # the first parts of all names, the second ones, …
    columns = enumerate(zip(*parts.values(), strict=False)) if x else ()
    places = [place for place, column in columns if all(map(_is_number, column))]
    curves: dict[str, dict[float, Sequence[float]]] = {}
    if places:
        for row, values in scores.items():
            number = float(parts[row].pop(places[-1]))
            curves.setdefault("/".join(parts[row]), {})[number] = values
    else:
        curves[""] = dict(enumerate(scores.values()))
    figure = Figure(figsize=(6.5 if places else max(4.0, 1.2 + 0.8 * len(scores)), 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        style = line_style(number) if places else {**line_style(0), "linestyle": ""}
        numbers = sorted(points)
        means = [float(np.mean(points[one])) for one in numbers]
        axes.plot(numbers, means, **style, linewidth=1.8, markersize=8, label=name)
        for one in numbers:
            axes.plot([one] * len(points[one]), points[one], ".", color=style["color"], markersize=4)
    positions = sorted({number for points in curves.values() for number in points})
    if not places:
        axes.set_xticks(positions, list(scores), rotation=30, ha="right")
    else:
        if positions[0] > 0 and positions[-1] / positions[0] > 8:
            axes.set_xscale("log", base=2)
        axes.set_xticks(positions, [f"{position:g}" for position in positions])
        axes.minorticks_off()
        axes.set_xlabel(x)
    if len(curves) > 1:
        axes.legend(frameon=False)
    axes.set_ylabel(label)
    if is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    clear_frame(axes)
    axes.margins(x=0.08)
    if title:
        figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
