"""A table as Markdown: the paper's numbers, ours, what differs, and what follows for its claims."""

import fnmatch
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reluformers.evaluation.attention_report import MISSING
from reluformers.evaluation.results import METRICS, markdown_table

from .evidence import LEVEL, Evidence, machine_of
from .records import LOSS, RunRecord
from .statistics import Difference, RankDifference, holm
from .tables import SCORE, Claim, Row, Table, row_key
from .tasks import Task, task_named

HOLDS = "holds"
AT_ONE_RATE = "holds at one rate"
OPEN = "open"
NO_LEAD = "no lead that matters"
AS_SMALL = "as small in the paper"
NOT_THERE = "the paper's lead is not there"
REVERSED = "contradicted: reversed"
DIFFERS = "contradicted: differs"
OUTCOMES = (HOLDS, AT_ONE_RATE, "contradicted", NOT_THERE, AS_SMALL, NO_LEAD, OPEN)
_FAILS = {">": NO_LEAD, ">=": REVERSED, "~": DIFFERS}
# learning rates that a row is the best of, at least
_RATES = 3
# less than this share of the second row's value is called equal, of a statistic of the attention
MEASURE_MARGIN = 0.1
# the part of the test rows makes standard errors of BLEU and chrF 1.18 to 1.32 times as large; a verdict by the loss
# that would change with so much more, where records have no such part, is one of seeds only
WIDER = 1.2


@dataclass
class Runs:
    """The finished runs of a row.

    Args:
        row: which.
        key: of its records.
        records: by seed, those that did not diverge.
        diverged: seeds whose training diverged.
    """

    row: Row
    key: str
    records: list[RunRecord]
    diverged: list[int]


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim by one measure.

    Args:
        verdict: `REVERSED`, `DIFFERS` or one of `OUTCOMES`.
        difference: of its two rows.
        found_from: the lead, or of `~` the difference, that would have been found; None where that is not known.
        notes: what has to be known beside it.
    """

    verdict: str
    difference: Difference | RankDifference
    found_from: float | None
    notes: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        return self.verdict.partition(":")[0]


class TableReport:
    """A table of one setting with the records that there are.

    Args:
        table: which.
        setting: name of one of its settings.
        evidence: the records: those of the table's rows belong to it, whatever their seed and wherever their data lay.
        rows: patterns of names of rows.
        overrides: changes that all rows were trained with.

    Attributes:
        runs: of its rows; a row without a finished run has none.
        verdicts: of each claim by each measure that two rows can be compared by; of the score by the loss first.

    Raises:
        ValueError: a row has runs of different data or one seed twice.
    """

    def __init__(
        self,
        table: Table,
        setting: str,
        evidence: Evidence,
        *,
        rows: Sequence[str] = ("*",),
        overrides: Sequence[str] = (),
    ):
        self.table = table
        self.setting = setting
        self.evidence = evidence
        recipes = {row.name: table.recipe(setting, row, 1, overrides) for row in table.rows_of(setting, rows)}
        self.runs = {name: self._runs_of(table.rows[name], row_key(recipe)) for name, recipe in recipes.items()}
        self.task: Task = task_named(next(iter(recipes.values())).task)
        self.measures = tuple(dict.fromkeys((LOSS, *self.task.scorer.scores_of_sums())))
        claims = [claim for claim in table.claims if all(map(self.rows_like, (claim.first, claim.second)))]
        self.verdicts: dict[Claim, dict[str, Verdict]] = {claim: {} for claim in claims}
        for measure in (*self.measures, *sorted({claim.measure for claim in claims} - {SCORE})):
            own = SCORE if measure in self.measures else measure
            self._judge([claim for claim in claims if claim.measure == own], measure)

    def _runs_of(self, row: Row, key: str) -> Runs:
        """Runs of a row, all of the same data and each of its own seed."""
        own = self.evidence.of_row(key)
        scored = [record for record in own if record.evaluation is not None]
        diverged = [record.seed for record in own if record.evaluation is None]
        _check_same_data(f"{self.table.name}, row {row.name}", scored)
        for earlier, later in pairwise(own):  # sorted by seed
            if earlier.seed == later.seed:
                raise ValueError(
                    f"{earlier.name} and {later.name} are both the run of {self.table.name}, row {row.name}, with "
                    f"seed {later.seed}; keep one of them in the folder"
                )
        return Runs(row, key, scored, diverged)

    def rows_like(self, name: str) -> list[str]:
        """The row of that name, or the rows that fit a pattern."""
        if name in self.runs:
            return [name]
        return fnmatch.filter(self.runs, name)

    def row_of(self, name: str) -> Runs:
        """The row of that name; of a pattern, the one with the lowest mean validation loss."""
        rows = [self.runs[row] for row in self.rows_like(name)]
        return min(rows, key=lambda runs: statistics.mean(self._values(runs, LOSS) or [math.inf]))

    def difference(self, first: str, second: str, measure: str = LOSS) -> Difference | RankDifference | None:
        """Compare two rows; None unless both have two runs that did not diverge, a pattern's at `_RATES` rates."""
        for name in {first, second} - self.runs.keys():
            if sum(bool(self.runs[row].records) for row in self.rows_like(name)) < _RATES:
                return None
        one = self.row_of(first)
        other = self.row_of(second)
        _check_same_data(self.table.name, [*one.records, *other.records])
        return self.evidence.difference(one.key, other.key, measure)

    def markdown(self) -> str:
        """The table, its footnotes and the verdicts; docs/research/tables.md says what the columns mean."""
        rows = [self._line(one) for one in self.runs.values() if one.records or one.diverged]
        if not rows:
            return f"No run of {self.table.name} ({self.setting}) is finished.\n"
        columns = list(dict.fromkeys(column for row in rows for column, text in row.items() if text != MISSING))
        seeds = {record.seed for runs in self.runs.values() for record in runs.records}
        if {row["seeds"] for row in rows} == {str(len(seeds))}:  # Then the footnote says it.
            columns.remove("seeds")
        same = []
        for heading, _ in self.task.columns.values():
            if heading in columns and len(rows) > 1 and len({row.get(heading) for row in rows}) == 1:
                columns.remove(heading)
                same.append(f"{heading} {rows[0][heading]}")
        lines = [[row.get(column, MISSING) for column in columns] for row in rows]
        parts = [markdown_table(columns, lines), self._footnote(same)]
        lines = [
            [claim.text, *(self.text(verdicts.get(measure), measure, measure == LOSS) for measure in self.measures)]
            for claim, verdicts in self.verdicts.items()
            if verdicts and claim.measure == SCORE
        ]
        if lines:
            parts.append(markdown_table(["claim", *map(self.heading, self.measures)], lines))
        parts.append(
            "".join(
                f"- `{claim.text}` {self.text(verdicts[claim.measure], claim.measure)}.\n"
                for claim, verdicts in self.verdicts.items()
                if verdicts and claim.measure != SCORE
            )
        )
        left = [f"`{claim.text}`" for claim, verdicts in self.verdicts.items() if not verdicts]
        if left:
            parts.append(f"Too few comparable runs to judge: {', '.join(left)}.\n")
        return "\n".join(filter(None, parts))

    def text(self, verdict: Verdict | None, measure: str, whole: bool = True) -> str:
        """A verdict with its difference, and where it is to be `whole` with interval and notes."""
        if verdict is None:
            return MISSING
        if not whole:
            return f"{verdict.outcome} {signed(verdict.difference.value, self._form(measure))}"
        text = f"**{verdict.verdict}** {self.difference_text(verdict.difference, measure)}"
        text += "".join(f", {note}" for note in verdict.notes)
        if verdict.found_from is not None:
            text += f", found from {self._form(measure)(verdict.found_from)}".replace("-", "−")
        return text

    def difference_text(self, difference: Difference | RankDifference, measure: str) -> str:
        """A difference with its interval."""
        form = self._form(measure)
        low, high = difference.interval
        return f"{signed(difference.value, form)} [{signed(low, form)}, {signed(high, form)}]"

    def heading(self, measure: str) -> str:
        """Heading of a measure; the loss is that of the validation set unless the task is scored by it."""
        is_of_dev = measure == LOSS and self.task.main_metric != LOSS
        return "dev loss" if is_of_dev else METRICS[measure].title

    def _line(self, runs: Runs) -> dict[str, str]:
        paper = MISSING if runs.row.paper is None else str(runs.row.paper)
        line = {"row": runs.row.name, "paper": paper, "seeds": str(len(runs.records))}
        if runs.diverged:
            line["seeds"] += f" + {len(runs.diverged)} diverged"
        for measure in self.measures:
            line[self.heading(measure)] = _mean_text(self._values(runs, measure), self._form(measure))
        baseline = self.table.baseline_of(runs.row.name)
        if baseline in self.runs:
            difference = None if runs.row.name == baseline else self.difference(runs.row.name, baseline)
            line[f"lead on {self.table.baseline}"] = (
                MISSING if difference is None else self.difference_text(difference, LOSS)
            )
        for measure, (heading, form) in self.task.columns.items():
            values = self._values(runs, measure)
            line[heading] = format(statistics.mean(values), form) if values else MISSING
        return line

    def _values(self, runs: Runs, measure: str) -> list[float]:
        return self.evidence.values(runs.key, measure)

    def _form(self, measure: str) -> Callable[[float], str]:
        """How a value is written."""
        if measure in METRICS and measure != LOSS:
            return METRICS[measure].format
        return "{:.3f}".format

    def _footnote(self, same: Sequence[str]) -> str:
        """Data, seeds and versions of the runs, and what is the same in all rows."""
        records = [record for runs in self.runs.values() for record in runs.records]
        if not records:
            return ""
        data = records[0].evaluation.data
        sizes = join_names([f"{size:,}" for size in dict.fromkeys(record.evaluation.data.rows for record in records)])
        seeds = sorted({record.seed for record in records})
        noun = "seeds" if len(seeds) > 1 else "seed"
        title = METRICS[self.task.main_metric].title
        notes = [f"{title} on {sizes} {data.unit} of {data.source}, {noun} {', '.join(map(str, seeds))}"]
        apart = [name for name, runs in self.runs.items() if runs.records and self.evidence.is_apart(runs.key, LOSS)]
        if apart:
            notes.append(f"set apart by the loss: {', '.join(apart)}")
        machines = defaultdict(set)
        for record in records:
            machines[_versions(record)].add(machine_of(record))
        notes += [f"{versions}; {', '.join(sorted(names))}" for versions, names in sorted(machines.items())]
        if same:
            notes.insert(0, f"{join_names(same)} in all rows")
        if note := self.table.settings[self.setting].note:
            notes.insert(0, note)
        return "".join(f"- {note}.\n" for note in notes)

    def _judge(self, claims: Sequence[Claim], measure: str) -> None:
        """Judge claims by one-sided tests, each corrected: that they are false, true, and the reverse of the truth."""
        known = {}
        for claim in claims:
            difference = self.difference(claim.first, claim.second, measure)
            if difference is not None:
                known[claim] = (difference, self._margin(claim, measure))
        verdicts = _verdicts([(claim.relation, *known[claim]) for claim in known])
        wider = _verdicts(
            [(claim.relation, difference.widened(WIDER), margin) for claim, (difference, margin) in known.items()]
        )
        for (claim, (difference, margin)), verdict, other in zip(known.items(), verdicts, wider, strict=True):
            found_from = _found_from(claim.relation, difference, margin, len(known)) if verdict == OPEN else None
            notes = []
            stands = standing(difference, margin)
            is_said = stands in ("level", "open") or (claim.relation, stands) == (">", "ahead")
            if verdict in (HOLDS, NO_LEAD) and not is_said:
                notes.append(stands)
            keys = [self.row_of(name).key for name in (claim.first, claim.second)]
            if verdict != other and measure == LOSS and not self.evidence.has_rows(*keys, measure):
                notes.append("by seeds only")
            if measure == LOSS:
                notes += [self._rate_note(name) for name in (claim.first, claim.second) if name not in self.runs]
            if verdict == NO_LEAD and not claim.is_ours and not self.table.is_ours:
                lead = self._paper_lead(claim)
                is_small = lead is not None and lead < self.table.margin
                verdict = AS_SMALL if is_small else NOT_THERE
                notes += [f"{lead:.2g} there"] if is_small else []
            if verdict == HOLDS and self._is_at_one_rate(claim):
                verdict = AT_ONE_RATE
            self.verdicts[claim][measure] = Verdict(verdict, difference, found_from, tuple(notes))

    def _is_at_one_rate(self, claim: Claim) -> bool:
        """Whether both rows have one learning rate, which neither of them chose."""
        if not {claim.first, claim.second} <= self.runs.keys():
            return False
        rows = [self.runs[name].row for name in (claim.first, claim.second)]
        rates = [self.table.recipe(self.setting, row, 1).training.get("learning_rate") for row in rows]
        return rates[0] == rates[1]

    def _rate_note(self, name: str) -> str:
        """Which row a pattern stands for, and whether it is at the edge of the rates."""
        tried = [row for row in self.rows_like(name) if self.runs[row].records]
        best = self.row_of(name).row.name
        return f"{best} is best of {len(tried)}{', at their edge' if best in (tried[0], tried[-1]) else ''}"

    def _paper_lead(self, claim: Claim) -> float | None:
        """How much the source has the first row ahead, where it prints a score of both."""
        scores = [re.match(r"[\d.]+", str(self.row_of(name).row.paper)) for name in (claim.first, claim.second)]
        if all(scores):
            return float(scores[0][0]) - float(scores[1][0])
        return None

    def _margin(self, claim: Claim, measure: str) -> float:
        if measure in self.measures:
            nats = self.evidence.nats(self.row_of(claim.second).key) if measure == LOSS else 1.0
            return self.table.margin * nats
        return MEASURE_MARGIN * abs(statistics.mean(self._values(self.row_of(claim.second), measure)))


def join_names(names: Sequence[str]) -> str:
    """Names as a sentence has them: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def standing(difference: Difference | RankDifference, margin: float) -> str:
    """Where a lead stands: ahead or behind where its interval excludes 0, and whether by less than matters."""
    low, high = difference.interval
    is_small = -margin < low and high < margin
    if low > 0 or high < 0:
        return ("ahead" if low > 0 else "behind") + (", by less than matters" if is_small else "")
    return "level" if is_small else "open"


def _verdicts(claims: Sequence[tuple[str, Difference | RankDifference, float]]) -> list[str]:
    """The verdict of each of some relations, differences and margins, corrected for their number."""
    chances = [_chances(*claim) for claim in claims]
    corrected = zip(*map(holm, zip(*chances, strict=True)), strict=True) if chances else ()
    verdicts = []
    for (relation, _, _), (false, true, reverse) in zip(claims, corrected, strict=True):
        if false < LEVEL:
            verdicts.append(HOLDS)
        elif reverse < LEVEL:
            verdicts.append(REVERSED)
        else:
            verdicts.append(_FAILS[relation] if true < LEVEL else OPEN)
    return verdicts


def _chances(relation: str, difference: Difference | RankDifference, margin: float) -> tuple[float, float, float]:
    """p-values of "the claim is false", of "the claim is true", and of "the reverse is not true".

    A claim of `>` is true above 0 and false below the margin: a lead too small to matter is both.
    """
    if relation == ">":
        return difference.chance_below(0.0), difference.chance_above(margin), difference.chance_above(0.0)
    if relation == ">=":
        return difference.chance_below(-margin), difference.chance_above(-margin), difference.chance_above(-margin)
    outside = max(difference.chance_below(-margin), difference.chance_above(margin))
    # the smaller of two chances comes out small twice as often
    return outside, min(1.0, 2 * min(difference.chance_below(margin), difference.chance_above(-margin))), 1.0


def _found_from(relation: str, difference: Difference | RankDifference, margin: float, claims: int) -> float | None:
    """The lead at which a claim would have been found to hold; of `~` the difference at which not."""
    effect = difference.smallest_effect(LEVEL / claims / (2 if relation == "~" else 1))
    if effect is None:
        return None
    return effect + {">": 0.0, ">=": -margin, "~": margin}[relation]


def _check_same_data(what: str, records: Sequence[RunRecord]) -> None:
    """Refuse runs that were scored on different test sets or in other ways, or trained on files that differ."""
    metrics = [record.evaluation.scores[task_named(record.recipe["task"]).main_metric] for record in records]
    trained_on = [(record.data.get("train") or {}).get("sha256", [None]) for record in records]
    for kind, values in {
        "scored with different signatures": {metric.signature for metric in metrics},
        "scored on different test sets": {record.evaluation.data.checksum for record in records},
        "trained on different files": {tuple(sums) for sums in trained_on if None not in sums},
    }.items():
        if len(values) > 1:
            raise ValueError(f"{what}: there are runs {kind}, {values}; keep the records of one kind in a folder")


def _mean_text(values: Sequence[float], form: Callable[[float], str]) -> str:
    if not values:
        return MISSING
    spread = f" ± {form(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{form(statistics.mean(values))}{spread}"


def signed(value: float, form: Callable[[float], str]) -> str:
    """A number with its sign."""
    return ("+" if value >= 0 else "−") + form(abs(value))


def _versions(record: RunRecord) -> str:
    known = record.evaluation.circumstances
    return f"torch {known.torch}, transformers {known.transformers}"
