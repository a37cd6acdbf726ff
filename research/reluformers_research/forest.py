"""A figure of all claims of all tables: each lead with its interval by each measure, and what follows."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from reluformers.evaluation.plotting import check_picture_path
from reluformers.files import atomic_write

from .page import FAILS, judged
from .report import HOLDS, OPEN, TableReport, Verdict
from .tables import Claim

# colours that colour-blind readers tell apart, and markers that need none
_STYLES = {HOLDS: ("#0072B2", "o"), OPEN: ("#777777", "|"), FAILS: ("#D55E00", "X")}
_LINE_INCHES = 0.165
_LINEAR = 2.0  # margins; beyond them the axis is logarithmic


def plot_claims(reports: Sequence[TableReport], path: str | Path) -> Path:
    """Draw every claim about a score: a point for the lead of the row that is to be ahead, a line for its interval.

    A column for each measure; leads are counted in margins, so that all tasks share an axis. Light lines mark the
    margins.

    Args:
        reports: tables with their records.
        path: .png or .svg.

    Raises:
        ValueError: the suffix is another one.
        ValueError: no claim has runs.
    """
    path = check_picture_path(path)
    lines: list[tuple[TableReport, Claim | None, dict[str, Verdict]]] = []
    for report in reports:
        if found := judged(report):
            lines += [(report, None, {}), *((report, claim, verdicts) for claim, verdicts in found.items())]
    if not lines:
        raise ValueError("no claim has runs of both its rows, so there is nothing to draw")
    columns = max((report.measures for report, _, _ in lines), key=len)
    with rc_context({"font.size": 7, "svg.hashsalt": "reluformers", "axes.spines.top": False}):
        figure = Figure(figsize=(9.5, 1.2 + _LINE_INCHES * len(lines)), layout="constrained")
        axes = figure.subplots(1, len(columns), squeeze=False, sharey=True, sharex=True)[0]
        for place, axis in enumerate(axes):
            headings = (
                report.heading(report.measures[place]) for report, _, _ in lines if place < len(report.measures)
            )
            _prepare(axis, " or ".join(dict.fromkeys(headings)))
            for line, (report, _, verdicts) in enumerate(lines):
                if verdicts and place < len(report.measures):
                    _draw(axis, line, verdicts[report.measures[place]])
        axes[0].set_ylim(len(lines) - 0.4, -0.6)
        names = [claim.text if claim else f"{report.table.name} {report.setting}" for report, claim, _ in lines]
        axes[0].set_yticks(range(len(lines)), names)
        for text, (_, claim, _) in zip(axes[0].get_yticklabels(), lines, strict=True):
            text.set_fontweight("normal" if claim else "bold")
        figure.supxlabel("lead of the row that is claimed to be ahead, in margins, with its 95 % interval", fontsize=7)
        handles = [
            Line2D([], [], color=colour, marker=marker, linewidth=1.2, label=verdict)
            for verdict, (colour, marker) in _STYLES.items()
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=120, metadata={"Software" if path.suffix == ".png" else "Date": None})
    return path


def _prepare(axis: Axes, heading: str) -> None:
    axis.set_title(heading, fontsize=8)
    axis.set_xscale("symlog", linthresh=_LINEAR)
    axis.set_xlim(-40, 60)
    axis.set_xticks([-20, -5, -1, 0, 1, 5, 20])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axis.axvline(0, color="#888888", linewidth=0.8, zorder=0)
    for margin in (-1, 1):
        axis.axvline(margin, color="#cccccc", linewidth=0.8, zorder=0)
    axis.tick_params(axis="y", length=0)
    axis.spines["right"].set_visible(False)


def _draw(axis: Axes, line: int, verdict: Verdict) -> None:
    found = verdict.difference
    if found is None:
        return
    colour, marker = _STYLES.get(verdict.verdict, _STYLES[FAILS])
    low, high = (end / verdict.margin if math.isfinite(end) else math.copysign(1e3, end) for end in found.interval)
    axis.plot([low, high], [line, line], color=colour, linewidth=1.2)
    axis.plot(found.value / verdict.margin, line, marker=marker, color=colour, markersize=4.5)
