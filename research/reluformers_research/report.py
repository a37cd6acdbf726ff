"""A table as Markdown: the paper's numbers, ours, what differs, and what follows for its claims."""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reluformers.errors import UserError
from reluformers.evaluation.attention_statistics import MISSING
from reluformers.evaluation.plotting import plot_scores
from reluformers.evaluation.results import METRICS, listed, markdown_table
from reluformers.evaluation.scorer import ScoreOfSums
from reluformers.tasks import Task, task_named

from .records import RunRecord, load_records
from .statistics import Difference, Mean, SeedVariance, holm, paired_p_value
from .tables import SCORE, Claim, Row, Table, row_key

LEVEL = 0.05  # of verdicts, after Holm's correction
HOLDS, FAILS, OPEN = "holds", "does not", "not decided"
# less than this share of the second row's value is called equal, of a statistic of the attention and of the loss
MEASURE_MARGIN, LOSS_MARGIN = 0.1, 0.01
_BEGIN = "<!-- table: "
_BLOCK = re.compile(rf"({_BEGIN}(\S+) (\S+) -->\n)(?:(?!{_BEGIN}).)*?(<!-- end of table -->)", re.DOTALL)


@dataclass
class Runs:
    """The finished runs of a row.

    Args:
        row: which.
        records: by seed, those that did not diverge.
        diverged: seeds whose training diverged.
    """

    row: Row
    records: list[RunRecord]
    diverged: list[int]

    @property
    def is_begun(self) -> bool:
        """Whether one of its runs has ended, well or not."""
        return bool(self.records or self.diverged)

    @property
    def scores(self) -> list[float]:
        """Score of each record."""
        return [record.score for record in self.records]

    def values(self, measure: str) -> list[float]:
        """Value of each record that has one."""
        return [value for record in self.records if (value := record.measure(measure)) is not None]


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    Args:
        claim: which.
        verdict: `HOLDS`, `FAILS` or `OPEN`.
        difference: of its two rows, or None where too little has run.
        reason: what the verdict stands on, in words.
    """

    claim: Claim
    verdict: str
    difference: Difference | None
    reason: str


class TableReport:
    """A table of one setting with the records that there are.

    Args:
        table: which.
        setting: name of one of its settings.
        runs: of its rows; a row without a finished run has none.
    """

    def __init__(self, table: Table, setting: str, runs: Sequence[Runs]):
        self.table, self.setting = table, setting
        self.runs = {one.row.name: one for one in runs}
        self.task: Task = task_named(table.recipe(setting, runs[0].row, seed=1).task)
        self.metric = METRICS[self.task.main_metric]
        self._means: dict[tuple[str, str], Mean | None] = {}
        self._variances: dict[str, SeedVariance] = {}
        claims = [claim for claim in table.claims if {claim.first, claim.second} <= self.runs.keys()]
        self.verdicts = self._judge(claims)
        # what the other metrics say of the claims about scores: a second opinion, which is corrected for by itself
        of_scores = [claim for claim in claims if self._metric(claim.measure)]
        self.second_verdicts = {
            metric: dict(zip(of_scores, self._judge([claim.by(metric) for claim in of_scores]), strict=True))
            for metric in self.task.scorer.scores_of_sums()
            if metric != self.task.main_metric
        }

    @classmethod
    def of_records(
        cls,
        table: Table,
        setting: str,
        records: Mapping[str, Sequence[RunRecord]],
        *,
        rows: Sequence[str] = ("*",),
        overrides: Sequence[str] = (),
    ) -> "TableReport":
        """The table of the records that belong to it, whatever their seed and wherever their data lay.

        Args:
            table, setting: which.
            records: of `records_by_row`.
            rows: patterns of names of rows.
            overrides: changes that all rows were trained with.

        Raises:
            UserError: a row has runs of different data or one seed twice.
        """
        runs = []
        for row in table.rows_of(setting, rows):
            own = records.get(row_key(table.recipe(setting, row, 1, overrides)), ())
            scored = [record for record in own if record.evaluation is not None]
            diverged = [record.seed for record in own if record.evaluation is None]
            _check_same_data(f"{table.name}, row {row.name}", scored)
            for earlier, later in pairwise(own):  # sorted by seed
                if earlier.seed == later.seed:
                    raise UserError(
                        f"{earlier.name} and {later.name} are both the run of {table.name}, row {row.name}, with seed "
                        f"{later.seed}; keep one of them in the folder"
                    )
            runs.append(Runs(row, scored, diverged))
        return cls(table, setting, runs)

    def difference(self, first: str, second: str, measure: str = SCORE) -> Difference | None:
        """Compare two rows; None unless both have two runs that did not diverge.

        Raises:
            UserError: their runs were trained or scored on different data.
        """
        if not {first, second} <= self.runs.keys():
            return None
        _check_same_data(self.table.name, [*self.runs[first].records, *self.runs[second].records])
        means = [self._mean(name, measure) for name in (first, second)]
        return None if None in means else Difference.of(*means)

    def _mean(self, name: str, measure: str) -> Mean | None:
        """Mean of a row over its seeds, if there are two."""
        if (name, measure) not in self._means:
            samples, score = self._samples(self.runs[name], measure)
            mean = Mean.of(name, samples, score, self._seed_variance(measure)) if len(samples) > 1 else None
            self._means[name, measure] = mean
        return self._means[name, measure]

    def _seed_variance(self, measure: str) -> SeedVariance:
        """Variance over seeds, pooled over all rows of the table."""
        if measure not in self._variances:
            scores = []
            for runs in self.runs.values():
                samples, score = self._samples(runs, measure)
                scores.append([score(rows.sum(0)) for rows in samples])
            self._variances[measure] = SeedVariance.of(scores)
        return self._variances[measure]

    def _samples(self, runs: Runs, measure: str) -> tuple[list[np.ndarray], ScoreOfSums]:
        """Statistics of the test rows of each run, and their score; what has one value a run has one row."""
        if metric := self._metric(measure):
            return [record.counts[metric] for record in runs.records], self.task.scorer.scores_of_sums()[metric]
        return [np.array([[value]]) for value in runs.values(measure)], _only

    def markdown(self, *, explain: bool = True) -> str:
        """The table, its footnotes and the verdicts.

        Args:
            explain: whether to say what the columns mean; a page of many tables says it once.
        """
        rows = [self._line(one) for one in self.runs.values() if one.is_begun]
        if not rows:
            return f"No run of {self.table.name} ({self.setting}) is finished.\n"
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines = [[row.get(column, MISSING) for column in columns] for row in rows]
        parts = [markdown_table(columns, lines), self._footnote(columns if explain else ())]
        begun, left = [], []
        for verdict in self.verdicts:
            claim = verdict.claim
            is_begun = self.runs[claim.first].is_begun or self.runs[claim.second].is_begun
            (begun if is_begun else left).append(verdict)
        if begun:
            titles = [METRICS[metric].title for metric in self.second_verdicts]
            claims = [
                [
                    verdict.claim.text,
                    self._difference_text(verdict.difference, verdict.claim.measure),
                    verdict.verdict,
                    verdict.reason,
                    *(self._second_text(found.get(verdict.claim)) for found in self.second_verdicts.values()),
                ]
                for verdict in begun
            ]
            columns = ["claim", "difference", "here", "because", *(f"by {title}" for title in titles)]
            parts.append(markdown_table(columns, claims))
        if left:
            texts = ", ".join(f"`{verdict.claim.text}`" for verdict in left)
            parts.append(f"Claims of rows without a run: {texts}.\n")
        return "\n".join(parts)

    def plot(self, path: Path) -> Path:
        """Draw the scores of all rows that have some.

        Raises:
            ValueError: the suffix is neither .png nor .svg, or nothing is finished.
        """
        scores = {name: runs.scores for name, runs in self.runs.items()}
        is_share = self.metric.format(1.0).endswith("%")
        title, axis = self.table.title, self.table.axis
        return plot_scores(scores, path, label=self.metric.title, is_share=is_share, x=axis, title=title)

    def _line(self, runs: Runs) -> dict[str, str]:
        line = {"row": runs.row.name, "paper": _paper_text(runs.row.paper), "seeds": str(len(runs.records))}
        if runs.diverged:
            line["seeds"] += f" + {len(runs.diverged)} diverged"
        for name in self.task.scorer.scores_of_sums():
            scores = [record.evaluation.scores[name].value for record in runs.records]
            line[METRICS[name].title] = _mean_text(scores, METRICS[name])
        baseline = self.table.baseline_of(runs.row.name)
        if runs.row.name != baseline and (found := self.difference(runs.row.name, baseline)):
            line[f"− {self.table.baseline}"] = self._difference_text(found)
            line["found from"] = self.metric.format(found.smallest_effect)
        p_values = [p for (name, _), p in self.p_values.items() if name == runs.row.name]
        line["p by seed"] = " ".join("<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") for p in p_values) or MISSING
        for measure, title, form in (
            ("loss", "dev loss", ".3f"),
            ("zeros", "zeros", ".1%"),
            ("null_rate", "null rows", ".1%"),
            ("entropy", "entropy", ".2f"),
            ("row_sum", "row sum", ".2f"),
        ):
            if measure == "loss" and all(claim.measure != "loss" for claim in self.table.claims):
                continue
            values = runs.values(measure)
            line[title] = format(statistics.mean(values), form) if values else MISSING
        return line

    @cached_property
    def p_values(self) -> dict[tuple[str, int], float]:
        """(Row, seed) → p-value of sacreBLEU's paired test against the baseline, with Holm's correction over all."""
        found = {}
        for name, runs in self.runs.items():
            baseline = self.runs.get(self.table.baseline_of(name))
            if baseline is None or baseline is runs:
                continue
            theirs = {record.seed: record.counts for record in baseline.records}
            for record in runs.records:
                if record.seed in theirs:
                    main = self.task.main_metric
                    found[name, record.seed] = paired_p_value(
                        record.counts[main], theirs[record.seed][main], self.task.scorer.scores_of_sums()[main]
                    )
        return dict(zip(found, holm(list(found.values())), strict=True))

    def _second_text(self, verdict: Verdict | None) -> str:
        """Difference and verdict by another metric; nothing of a claim that is not about the score."""
        if verdict is None or verdict.difference is None:
            return MISSING
        return f"{self._difference_text(verdict.difference, verdict.claim.measure)} {verdict.verdict}"

    def _difference_text(self, found: Difference | None, measure: str = SCORE) -> str:
        if found is None:
            return MISSING
        form = self._form(measure)
        low, high = found.interval
        return f"{_signed(found.value, form)} [{_signed(low, form)}, {_signed(high, form)}]"

    def _form(self, measure: str) -> Callable[[float], str]:
        """How a value is written."""
        metric = self._metric(measure)
        return METRICS[metric].format if metric else "{:.3f}".format

    def _metric(self, measure: str) -> str | None:
        """The metric that a claim speaks of, or None for a measure of the attention."""
        name = self.task.main_metric if measure == SCORE else measure
        return name if name in self.task.scorer.scores_of_sums() else None

    def _footnote(self, explained: Collection[str]) -> str:
        """Data, seeds and versions of the runs, and what the columns `explained` mean."""
        records = [record for runs in self.runs.values() for record in runs.records]
        if not records:
            return ""
        data = records[0].evaluation.data
        sizes = listed([f"{size:,}" for size in dict.fromkeys(record.evaluation.data.rows for record in records)])
        seeds = sorted({record.seed for record in records})
        spread = "mean and standard deviation over seeds" if len(seeds) > 1 else "seed"
        notes = [f"{self.metric.title} on {sizes} {data.unit} of {data.source}, {spread} {', '.join(map(str, seeds))}"]
        if "found from" in explained:
            notes += [
                f"differences to `{self.table.baseline}` with 95 % intervals: a bootstrap over {data.unit}, and for "
                "seeds Student's t with the variance of all rows",
                "found from: the smallest difference that so many runs find with 80 % probability",
            ]
        if self.p_values and "p by seed" in explained:
            notes.append(
                "p by seed: sacreBLEU's paired approximate randomisation against the same seed of the baseline, with "
                "Holm's correction over the table"
            )
        signature = records[0].evaluation.scores[self.task.main_metric].signature
        if signature:
            notes.append(f"signature `{signature}`")
        commits = sorted({(record.evaluation.circumstances.commit or "unknown")[:10] for record in records})
        versions = sorted({_versions(record) for record in records})
        notes.append(f"{'; '.join(versions)}; commit {', '.join(commits)}")
        if note := self.table.settings[self.setting].note:
            notes.insert(0, note)
        return "".join(f"- {note}.\n" for note in notes)

    def _judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Every claim by two one-sided tests, that it is false and that it is true, each with Holm's correction."""
        found = [self.difference(claim.first, claim.second, claim.measure) for claim in claims]
        known = [place for place, one in enumerate(found) if one is not None]
        chances = [self._chances(claims[place], found[place]) for place in known]
        for_it = dict(zip(known, holm([chance for chance, _ in chances]), strict=True))
        against = dict(zip(known, holm([chance for _, chance in chances]), strict=True))
        return [
            self._verdict(claim, found[place], for_it.get(place), against.get(place))
            for place, claim in enumerate(claims)
        ]

    def _chances(self, claim: Claim, found: Difference) -> tuple[float, float]:
        """p-values of "the claim is false" and of "the claim is true".

        A claim of `>` is true above 0 and false below the margin: a lead too small to matter is both.
        """
        margin = self._margin(claim)
        if claim.relation == ">":
            return found.chance_below(0.0), found.chance_above(margin)
        if claim.relation == ">=":
            return found.chance_below(-margin), found.chance_above(-margin)
        outside = max(found.chance_below(-margin), found.chance_above(margin))
        # the smaller of two chances comes out small twice as often
        return outside, min(1.0, 2 * min(found.chance_below(margin), found.chance_above(-margin)))

    def _margin(self, claim: Claim) -> float:
        if self._metric(claim.measure):
            return self.table.margin
        share = LOSS_MARGIN if claim.measure == "loss" else MEASURE_MARGIN
        return share * abs(statistics.mean(self.runs[claim.second].values(claim.measure)))

    def _verdict(self, claim: Claim, found: Difference | None, false: float | None, true: float | None) -> Verdict:
        if found is None:
            return self._verdict_without_numbers(claim)
        if false < LEVEL:
            return Verdict(claim, HOLDS, found, f"{_p_text(false)} that it is false")
        if true < LEVEL:
            return Verdict(claim, FAILS, found, f"{_p_text(true)} that it is true")
        smallest = self._form(claim.measure)(found.smallest_effect)
        return Verdict(claim, OPEN, found, f"differences from {smallest} would have been found")

    def _verdict_without_numbers(self, claim: Claim) -> Verdict:
        rows = [self.runs[name] for name in (claim.first, claim.second)]
        counts = [len(row.records) for row in rows]
        # a row that always diverges is the worse one
        for row, other, verdict in zip(rows, rows[::-1], (FAILS, HOLDS), strict=True):
            if claim.measure == SCORE and not row.records and len(row.diverged) >= 2 and len(other.records) >= 2:
                reason = f"all {len(row.diverged)} runs of {row.row.name} diverged"
                return Verdict(claim, FAILS if claim.relation == "~" else verdict, None, reason)
        return Verdict(claim, OPEN, None, f"needs two seeds of both, has {counts[0]} and {counts[1]}")


def records_by_row(folder: Path) -> dict[str, list[RunRecord]]:
    """Records of a folder by `row_key`, in the order of their seeds.

    Raises:
        UserError: one cannot be read, or is of a recipe that this version does not know.
    """
    found = defaultdict(list)
    for record in sorted(load_records(folder), key=lambda record: record.seed):
        found[row_key(record.to_recipe())].append(record)
    return found


def replace_tables(text: str, tables: Mapping[tuple[str, str], str]) -> str:
    """A page with the blocks between `<!-- table: NAME SETTING -->` and `<!-- end of table -->` written anew.

    Args:
        text: of the page.
        tables: (name, setting) → Markdown; blocks of others stay as they are.

    Raises:
        UserError: the page has no block for one of `tables`, or one that is not as above.
    """
    blocks = tables_in(text)
    if text.count(_BEGIN) != len(blocks):
        raise UserError(f"the page has a line with {_BEGIN!r}, but not NAME SETTING --> behind it and an end below it")
    missing = tables.keys() - set(blocks)
    if missing:
        raise UserError(f"the page has no line <!-- table: {' '.join(min(missing))} --> with an end of table below it")

    def written(found: re.Match) -> str:
        markdown = tables.get((found[2], found[3]))
        return found[0] if markdown is None else f"{found[1]}{markdown}{found[4]}"

    return _BLOCK.sub(written, text)


def tables_in(text: str) -> list[tuple[str, str]]:
    """(Name, setting) of the blocks of a page."""
    return [(name, setting) for _, name, setting, _ in _BLOCK.findall(text)]


def _check_same_data(what: str, records: Sequence[RunRecord]) -> None:
    """Refuse runs that were scored on different test sets or in other ways, or trained on files that differ."""
    metrics = [record.evaluation.scores[task_named(record.recipe["task"]).main_metric] for record in records]
    signatures = {metric.signature for metric in metrics}
    tests = {record.evaluation.data.checksum for record in records}
    trained_on = [record.data.get("train", {}).get("sha256", [None]) for record in records]
    files = {tuple(sums) for sums in trained_on if None not in sums}
    if len(signatures) > 1:
        raise UserError(f"{what}: there are runs with the signatures {' and '.join(sorted(map(str, signatures)))}")
    for kind, found in (("scored on different test sets", tests), ("trained on different files", files)):
        if len(found) > 1:
            raise UserError(f"{what}: there are runs {kind}; keep the records of one data set in a folder")


def _only(sums: np.ndarray) -> float:
    return float(sums[0])


def _mean_text(values: Sequence[float], metric: Any) -> str:
    if not values:
        return MISSING
    spread = f" ± {metric.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{metric.format(statistics.mean(values))}{spread}"


def _paper_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return MISSING if value is None else str(value)


def _p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _signed(value: float, form: Any) -> str:
    return ("+" if value >= 0 else "−") + form(abs(value))


def _versions(record: RunRecord) -> str:
    known = record.evaluation.circumstances
    return f"torch {known.torch}, transformers {known.transformers}, {known.processor or known.device}"
