"""A figure of all claims of all tables: each difference with its interval, and what follows."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from reluformers.errors import UserError
from reluformers.evaluation.plotting import check_picture_path
from reluformers.files import atomic_write

from .report import FAILS, HOLDS, OPEN, TableReport
from .tables import SCORE

# colours that colour-blind readers tell apart, and markers that need none
_STYLES = {HOLDS: ("#0072B2", "o"), OPEN: ("#777777", "|"), FAILS: ("#D55E00", "X")}
# edges of what a claim allows, in margins
_MARGINS = {">=": (-1,), "~": (-1, 1)}
_LINE_INCHES = 0.17


def plot_claims(reports: Sequence[TableReport], path: str | Path) -> Path:
    """Draw every claim about a score: a point for the lead of the row that is to be ahead, a line for its interval.

    A panel for each task; the lead is in its metric. Light lines mark the margins of a claim of `>=` or `~`.

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
                for margin in _MARGINS.get(verdict.claim.relation, ()):
                    edge = margin * report.table.margin
                    one.plot([edge, edge], [place - 0.4, place + 0.4], color="#999999", linewidth=0.9)
            one.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
            names = [f"{report.table.name} {report.setting}: {verdict.claim.text}" for report, verdict in claims]
            one.set_yticks(range(len(claims)), names)
            one.set_ylim(len(claims) - 0.4, -0.6)
            one.set_xlabel(f"lead of the row that is claimed to be ahead, {title}, 95 % interval")
            if claims[0][0].metric.format(1.0).endswith("%"):
                one.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            one.spines["right"].set_visible(False)
        handles = [
            Line2D([], [], color=colour, marker=marker, linewidth=1.2, label=verdict)
            for verdict, (colour, marker) in _STYLES.items()
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=110, metadata={"Software" if path.suffix == ".png" else "Date": None})
    return path
