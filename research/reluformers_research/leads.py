"""The first table of the results: the lead of each attention on softmax in each laboratory, and its picture."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import yaml
from matplotlib.figure import Figure

from reluformers.evaluation.attention_report import MISSING
from reluformers.evaluation.plotting import clear_frame, save_figure
from reluformers.evaluation.results import METRICS, markdown_table

from .evidence import Evidence
from .records import LOSS
from .report import signed, standing
from .statistics import Difference, RankDifference
from .tables import RECIPES, Table, row_key
from .tasks import task_named

PLACES = RECIPES / "leads.yaml"


class Lead(NamedTuple):
    """An attention in a laboratory.

    Args:
        text: a cell of the table: the lead and where it stands, learning rates, score, share of exactly zero weights.
            If the row has a baseline of its own, the baseline's score and an arrow come before the score.
        difference: how much lower its loss is than that of the row it is compared with; None of that row, or of one
            seed.
    """

    text: str
    difference: Difference | RankDifference | None


def find_leads(evidence: Evidence) -> dict[str, dict[str, Lead]]:
    """Laboratory → attention → lead, as recipes/leads.yaml names them; what has no run is left out."""
    leads: dict[str, dict[str, Lead]] = {}
    for laboratory, attentions in yaml.safe_load(PLACES.read_text(encoding="utf-8")).items():
        for attention, row_name in attentions.items():
            if lead := _lead(evidence, row_name, attentions["softmax"]):
                leads.setdefault(laboratory, {})[attention] = lead
    return leads


def _lead(evidence: Evidence, row_name: str, usual: str) -> Lead | None:
    """The lead of "TABLE SETTING ROW" on a usual baseline, or of "TABLE SETTING ROW over BASELINE"."""
    own, _, baseline = row_name.partition(" over ")
    table, key, tried = _row_of(evidence, own)
    _, other, _ = _row_of(evidence, f"{own.rpartition(' ')[0]} {baseline}" if baseline else usual)
    losses = evidence.values(key, LOSS)
    if not losses:
        return None
    parts = [f"loss {fmean(losses):.3f}" if len(losses) > 1 else "one seed"]
    difference = None if key == other else evidence.difference(key, other, LOSS)
    if difference is not None:
        low, high = difference.interval
        lead = f"{signed(difference.value, '{:.3f}'.format)} ± {(high - low) / 2:.3f}"
        lead = f"**{lead}**" if low > 0 or high < 0 else lead
        parts = [lead, standing(difference, table.margin * evidence.nats(other))]
    if tried > 1:
        parts.append(f"best of {tried} rates")
    elif difference is not None:
        parts.append("at one rate")
    if score := _score(evidence, key):
        parts.append(f"{_score(evidence, other)} → {score}" if baseline else score)
    zeros = fmean(evidence.values(key, "zeros") or [0.0])
    if zeros >= 0.005:
        parts.append(f"{zeros:.0%} zeros")
    return Lead("; ".join(parts), difference)


def _score(evidence: Evidence, key: str) -> str:
    metric = task_named(evidence.of_row(key)[0].recipe["task"]).main_metric
    if metric == LOSS:
        return ""
    mean = fmean(evidence.values(key, metric))
    return f"{mean:.1f} BLEU" if metric == "bleu" else METRICS[metric].format(mean)


def _row_of(evidence: Evidence, row_name: str) -> tuple[Table, str, int]:
    """Table and key of a row, of a pattern the one with the lowest mean loss, and of how many with runs."""
    name, setting, pattern = row_name.split(" ")
    table = Table.load(name)
    keys = [row_key(table.recipe(setting, row, seed=1)) for row in table.rows_of(setting, [pattern])]
    losses = {key: fmean(values) for key in keys if (values := evidence.values(key, LOSS))}
    return table, min(losses, key=losses.get, default=keys[0]), len(losses)


def leads_table(leads: Mapping[str, Mapping[str, Lead]]) -> str:
    """A line for each attention, a column for each laboratory."""
    attentions = dict.fromkeys(attention for column in leads.values() for attention in column)
    lines = [
        [name, *(column[name].text if name in column else MISSING for column in leads.values())] for name in attentions
    ]
    return markdown_table(["", *leads], lines)


def plot_leads(leads: Mapping[str, Mapping[str, Lead]], path: Path) -> Path:
    """Draw each lead of `find_leads` with its interval, a panel for each laboratory, into a .png or .svg."""
    names = [name for name in dict.fromkeys(one for column in leads.values() for one in column) if name != "softmax"]
    figure = Figure(figsize=(2 * len(leads), 0.4 * len(names) + 1.2), layout="constrained")
    for axis, (laboratory, column) in zip(
        figure.subplots(1, len(leads), sharex=True, sharey=True), leads.items(), strict=True
    ):
        for height, name in enumerate(names):
            lead = column.get(name)
            if lead is None or lead.difference is None:
                continue
            low, high = lead.difference.interval
            colour = "#0072B2" if low > 0 else "#D55E00" if high < 0 else "#777777"
            axis.hlines(height, low, high, color=colour, linewidth=2)
            axis.plot(lead.difference.value, height, "o" if low > 0 else "X" if high < 0 else "|", color=colour)
        axis.axvline(0, color="#888888", linewidth=0.8, zorder=0)
        axis.set_title(laboratory.replace(", ", "\n").replace(" of ", "\nof "), fontsize=9)
        axis.tick_params(labelsize=8)
        clear_frame(axis)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel("lead on softmax, nats, with its 95 % interval", fontsize=9)
    return save_figure(figure, path)
