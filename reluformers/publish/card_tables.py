"""The tables of a model card: what the model scored, what its attention is like."""

from pathlib import Path
from typing import Any

from reluformers.evaluation.attention_statistics import MISSING, SITE_NAMES, AttentionReport
from reluformers.evaluation.results import Evaluation

from .finished_run import FinishedRun
from .markdown import Markup, code, escape


def result_table(run: FinishedRun, name: str, baseline: str | Path | None) -> dict[str, Any] | None:
    """Scores of a model, and perhaps those in a file of a softmax model: headers and rows; None without scores.

    Raises:
        ValueError: the two evaluations were not made in the same way.
    """
    measured = run.evaluation
    if measured is None:
        return None
    cells = _cells(measured)
    rows = [[Markup(f"**{escape(name)}**"), *cells.values()]]
    if baseline is not None:
        other = Evaluation.load(baseline)
        measured.check_comparable(other)
        rows.append(["softmax baseline", *(_cells(other).get(header, MISSING) for header in cells)])
    return {"headers": list(cells), "rows": rows}


def statistics_rows(report: AttentionReport) -> list[list[str]]:
    """The rows of the attention report: each site, and all of them if there are several."""
    statistics = {name: report.sites[site].overall for site, name in SITE_NAMES.items() if site in report.sites}
    if len(statistics) > 1:
        statistics["all"] = report.overall
    return [[name, *row.cells().values()] for name, row in statistics.items()]


def _cells(evaluation: Evaluation) -> dict[str, str]:
    """Column → text of the scores, of the zeros and of the null rows."""
    cells = evaluation.cells()
    if evaluation.attention:
        statistics = evaluation.attention.overall.cells()
        cells |= {name: statistics[name] for name in ("zeros", "null rows")}
    return cells


def signatures(evaluation: Evaluation) -> Markup | None:
    """The signatures of sacreBLEU in a line; None where there are none."""
    # their parts are joined by strokes, which mean nothing outside of tables
    found = [
        f"{title} {code(str(signature).replace('|', ' ')).replace(' ', '|')}"
        for title, signature in evaluation.signatures().items()
    ]
    return Markup(", ".join(found) + " (sacreBLEU).") if found else None
