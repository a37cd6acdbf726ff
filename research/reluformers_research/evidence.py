"""The records of a folder, and what they say of the difference of two rows, whatever tables these stand in."""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from .causal.scoring import mean_nats
from .records import LOSS, RunRecord, load_records
from .statistics import Difference, RankDifference, Run, SeedModel, row_draws
from .tables import row_key
from .tasks import task_named

LEVEL = 0.05  # of verdicts
LEAST_ROWS = 4  # of a schedule, to say how the score falls with the loss
# metric → nats that go with one of it where rows are fewer: about those of the published schedules with the most rows
NATS = {"bleu": 1 / 14.2, "accuracy": 1 / 0.36}
# what may differ between rows whose seeds are those of the same batches in the same order
_FREE = {"training": ("seed", "learning_rate", "lr_scheduler_kwargs", "bf16"), "data": ("scale_length_percentile",)}


class Evidence:
    """Finished runs of one folder, by row."""

    def __init__(self, records: Sequence[RunRecord]):
        self._rows: dict[str, list[RunRecord]] = defaultdict(list)
        keys: dict[str, str] = {}
        for record in sorted(records, key=lambda record: record.seed):
            # Seeds of a row share its key, because checking a recipe takes milliseconds.
            recipe = {**record.recipe, "training": record.recipe["training"] | {"seed": None}}
            text = json.dumps(recipe, sort_keys=True)
            if text not in keys:
                keys[text] = row_key(record.to_recipe())
            self._rows[keys[text]].append(record)
        self._schedules = {
            key: next((_schedule(record) for record in rows if record.evaluation), None)
            for key, rows in self._rows.items()
        }
        self._model = cache(self._fit)
        self._draws = cache(self._draw)
        self._nats = cache(self._slope)

    @classmethod
    def load(cls, folder: Path) -> "Evidence":
        """Read the records of a folder."""
        return cls(load_records(folder))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def rows(self) -> list[str]:
        """Keys of all rows with a run, as `row_key` makes them."""
        return list(self._rows)

    def of_row(self, key: str) -> list[RunRecord]:
        """Runs of a row by seed, those that diverged too."""
        return self._rows.get(key, [])

    def difference(self, first: str, second: str, measure: str) -> Difference | RankDifference | None:
        """How much the first row is ahead by a measure; of the loss, how much lower it is.

        Exact ranks where one of the two spreads more than most and both have runs enough for them; else Student's t.

        Args:
            first, second: keys of rows.
            measure: a metric of the task, `LOSS`, or a statistic of the attention.

        Returns:
            None unless both have two runs with a value, by one schedule.
        """
        if not {first, second} <= self._rows.keys() or self._schedules[first] != self._schedules[second]:
            return None
        model = self._model(self._schedules[first], measure)
        if not {first, second} <= model.systems:
            return None
        values = model.values(first), model.values(second)
        if not {first, second} <= model.steady and RankDifference.can_decide(*map(len, values), LEVEL):
            return RankDifference(*values)
        return model.difference(first, second, self._test_variance(first, second, measure))

    def has_rows(self, first: str, second: str, measure: str) -> bool:
        """Whether the interval of a difference has the part of the rows that the two are scored on."""
        return all(self._draws(key, measure) is not None for key in (first, second))

    def is_apart(self, key: str, measure: str) -> bool:
        """Whether a row spreads more between seeds than those of its schedule, so that its variance is its own."""
        model = self._model(self._schedules[key], measure)
        return key in model.systems - model.steady

    def values(self, key: str, measure: str) -> list[float]:
        """Value of each run of a row that has one."""
        return [value for record in self.of_row(key) if (value := record.value(measure)) is not None]

    def nats(self, key: str) -> float:
        """Nats that go with one of the score over the rows of a row's schedule; 1 where the loss is the score.

        Least squares over means of rows, from `LEAST_ROWS` rows on.
        """
        metric = task_named(self.of_row(key)[0].recipe["task"]).main_metric
        if metric == LOSS:
            return 1.0
        return self._nats(self._schedules[key], metric)

    def _slope(self, schedule: str, metric: str) -> float:
        """Nats for one of a metric, over the rows of a schedule."""
        keys = [key for key, own in self._schedules.items() if own == schedule]
        if len(keys) < LEAST_ROWS:
            return NATS[metric]
        means = np.array([[np.mean(self.values(key, name)) for name in (LOSS, metric)] for key in keys])
        return float(-1 / np.polyfit(*means.T, 1)[0])

    def _fit(self, schedule: str, measure: str) -> SeedModel:
        """The model of all rows of one schedule."""
        sign = -1.0 if measure == LOSS else 1.0
        return SeedModel(
            [
                Run(key, record.seed, machine_of(record), sign * value)
                for key, rows in self._rows.items()
                if self._schedules[key] == schedule
                for record in rows
                if (value := record.value(measure)) is not None
            ]
        )

    def _test_variance(self, first: str, second: str, measure: str) -> float:
        """Variance of the difference of two rows over draws of the test rows; 0 of what has one value a run."""
        if not self.has_rows(first, second, measure):
            return 0.0
        return float(np.var(self._draws(first, measure) - self._draws(second, measure)))

    def _draw(self, key: str, measure: str) -> np.ndarray | None:
        """Mean score of a row's runs for each draw of test rows."""
        scored = [record for record in self.of_row(key) if measure in record.counts]
        if not scored:
            return None
        score = task_named(scored[0].recipe["task"]).scorer.scores_of_sums().get(measure, mean_nats)
        return np.mean([row_draws(record.counts[measure], score) for record in scored], axis=0)


def machine_of(record: RunRecord) -> str:
    """Name of the GPU that computed a run, else of the processor."""
    known = record.evaluation.circumstances
    return str((known.processor or known.device) if known.device in (None, "cpu") else known.device)


def _schedule(record: RunRecord) -> str:
    """Data, batches and updates of a run: its test set, and its recipe but for the model and what `_FREE` names."""
    sections = {name: value for name, value in record.to_recipe().to_dict().items() if name != "model"}
    for section, names in _FREE.items():
        sections[section] = {name: value for name, value in sections[section].items() if name not in names}
    return json.dumps([sections, record.evaluation.data.checksum], sort_keys=True, default=str)
