"""A figure of all claims of all tables: each difference with its interval, and what follows."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reluformers.errors import UserError
from reluformers.evaluation.plotting import check_picture_path
from reluformers.files import atomic_write

from .report import FAILS, HOLDS, OPEN, TableReport
from .tables import SCORE

# colours that colour-blind readers tell apart, and markers that need none
_STYLES = {HOLDS: ("#0072B2", "o"), OPEN: ("#777777", "|"), FAILS: ("#D55E00", "X")}
_LINE_INCHES = 0.17


def plot_claims(reports: Sequence[TableReport], path: str | Path) -> Path:
    """Draw every claim about a score: a point for the difference of its two rows, a line for the 95 % interval.

    A panel for each task; the differences are in its metric. A claim is true to the right of 0, with `>=` and `~` from
    minus the margin on, which a light line marks.

    Args:
        reports: tables with their records.
        path: .png or .svg.

    Raises:
        ValueError: the suffix is another one.
        UserError: no claim has runs.
    """
    path = check_picture_path(path)
    panels: dict[str, list] = {}
    for report in reports:
        for verdict in report.verdicts:
            if verdict.claim.measure == SCORE and verdict.difference is not None:
                panels.setdefault(report.metric.title, []).append((report, verdict))
    if not panels:
        raise UserError("no claim has runs of both its rows, so there is nothing to draw")
    lines = [len(claims) for claims in panels.values()]
    with rc_context({"font.size": 7.5, "svg.hashsalt": "reluformers", "axes.spines.top": False}):
        figure = Figure(figsize=(9, 1.2 + _LINE_INCHES * sum(lines)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=lines)[:, 0]
        for one, (title, claims) in zip(axes, panels.items(), strict=True):
            for place, (report, verdict) in enumerate(claims):
                colour, marker = _STYLES[verdict.verdict]
                low, high = verdict.difference.interval
                one.plot([low, high], [place, place], color=colour, linewidth=1.2)
                one.plot(verdict.difference.value, place, marker=marker, color=colour, markersize=5)
                margin = report.table.margin
                if verdict.claim.relation in (">=", "~"):
                    one.plot([-margin, -margin], [place - 0.4, place + 0.4], color="#bbbbbb", linewidth=0.8)
            one.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
            names = [f"{report.table.name} {report.setting}: {verdict.claim.text}" for report, verdict in claims]
            one.set_yticks(range(len(claims)), names)
            one.set_ylim(len(claims) - 0.4, -0.6)
            one.set_xlabel(f"difference in {title} (first row − second row), 95 % interval")
            one.spines["right"].set_visible(False)
        handles = [
            Line2D([], [], color=colour, marker=marker, linewidth=1.2, label=verdict)
            for verdict, (colour, marker) in _STYLES.items()
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=110, metadata={"Software" if path.suffix == ".png" else "Date": None})
    return path
