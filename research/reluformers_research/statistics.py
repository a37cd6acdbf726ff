"""Differences between systems, each trained with several seeds and scored on the same rows.

A score is a function of sums over rows (BLEU of n-gram counts, accuracy of hits), so that a draw of rows is scored
without looking at a text again.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from sacrebleu.metrics.base import Score, Signature
from sacrebleu.significance import PairedTest

from reluformers.evaluation.scorer import ScoreOfSums

ROW_DRAWS = 2_000  # of test rows
DRAWS = 10 * ROW_DRAWS  # of the seeds
LEVEL = 0.95  # of intervals
POWER = 0.8  # with which `smallest_effect` would have been found


@dataclass(frozen=True)
class SeedVariance:
    """Variance of a score between the seeds of one system, s² = Σ_i Σ_k (x_ik − x̄_i)² / f with f = Σ_i (m_i − 1).

    Two or three seeds say little of their variance: it is taken to be the same for all systems i of a table.

    Args:
        value: s².
        degrees: f, its degrees of freedom.
    """

    value: float
    degrees: int

    @classmethod
    def of(cls, scores: Iterable[Sequence[float]]) -> "SeedVariance":
        """Pool the variance of the scores of each system; systems of one seed say nothing.

        Raises:
            ValueError: no system has two seeds.
        """
        groups = [np.asarray(group, dtype=float) for group in scores if len(group) > 1]
        degrees = sum(len(group) - 1 for group in groups)
        if degrees == 0:
            raise ValueError("A variance of seeds needs a system with two.")
        return cls(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / degrees, degrees)


@dataclass(frozen=True)
class Mean:
    """A system's mean score over its seeds, and how sure it is.

    Args:
        value: in the unit of the score.
        draws: what it might be for other test rows and other seeds.
    """

    value: float
    draws: np.ndarray

    @classmethod
    def of(cls, name: str, runs: Sequence[np.ndarray], score: ScoreOfSums, variance: SeedVariance) -> "Mean":
        """Test rows are drawn with replacement, the same ones for all systems; of seeds the variance is known.

        A draw adds z·s·√(f/χ²)/√m to the mean over m seeds: z is the system's own and normal, χ² of f degrees of
        freedom the same for all systems. So the seeds' part of a difference has Student's t distribution.

        Args:
            name: of the system, which decides on its z.
            runs: of each seed the statistics of its rows [rows, columns]; the same rows in all.
            score: of sums over rows.
            variance: s² and f.

        Raises:
            ValueError: the runs differ in their number of rows.
        """
        rows = {len(run) for run in runs}
        if len(rows) != 1:
            raise ValueError(f"The runs were scored on {sorted(rows)} rows, but must be on the same ones.")
        (number,) = rows
        of_rows = np.mean([_scores(run, _row_weights(number), score) for run in runs], axis=0)
        normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(DRAWS)
        chi_square = np.random.default_rng(variance.degrees).chisquare(variance.degrees, DRAWS)
        spread = np.sqrt(variance.value * variance.degrees / chi_square / len(runs))
        value = float(np.mean([score(run.sum(0)) for run in runs]))
        return cls(value, np.tile(of_rows, DRAWS // ROW_DRAWS) + spread * normal)


@dataclass(frozen=True)
class Difference:
    """How much a system is ahead of another, and how sure that is.

    Args:
        value: mean over the seeds of the one minus that of the other, in the unit of the score.
        draws: the same of each draw.
    """

    value: float
    draws: np.ndarray

    @classmethod
    def of(cls, system: Mean, baseline: Mean) -> "Difference":
        """Subtract two means of the same test rows."""
        return cls(system.value - baseline.value, system.draws - baseline.draws)

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the percentile interval that holds `LEVEL` of the draws."""
        low, high = np.quantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    @property
    def smallest_effect(self) -> float:
        """The smallest true difference that these runs find with probability `POWER` by a two-sided test.

        q_LEVEL(|δ|) + q_POWER(δ), quantiles of the deviations δ of the draws from their mean.
        """
        deviations = self.draws - self.draws.mean()
        return float(np.quantile(np.abs(deviations), LEVEL) + np.quantile(deviations, POWER))

    def chance_below(self, bound: float) -> float:
        """p-value of "the difference is at most `bound`": the share of draws that say so, never quite 0."""
        return (1 + int((self.draws <= bound).sum())) / (1 + len(self.draws))

    def chance_above(self, bound: float) -> float:
        """p-value of "the difference is at least `bound`"."""
        return (1 + int((self.draws >= bound).sum())) / (1 + len(self.draws))


@lru_cache(maxsize=2)
def _row_weights(rows: int) -> np.ndarray:
    """How often each draw takes each row, the same whenever it is asked for    uint8 [draws, rows]."""
    random, shares = np.random.default_rng(0), np.full(rows, 1 / rows)
    return np.stack([random.multinomial(rows, shares).astype(np.uint8) for _ in range(ROW_DRAWS)])


def _scores(run: np.ndarray, weights: np.ndarray, score: ScoreOfSums) -> np.ndarray:
    """The score of each draw of rows    [draws]."""
    parts = np.array_split(weights, max(1, weights.size // 2**22))  # as floats all at once take gigabytes
    sums = np.concatenate([part.astype(float) @ run.astype(float) for part in parts]).astype(run.dtype)
    return np.array([score(row) for row in sums])


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that may be held against one level although they are many (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def paired_p_value(system: np.ndarray, baseline: np.ndarray, score: ScoreOfSums) -> float:
    """p-value of sacreBLEU's paired approximate randomisation of two runs: 10,000 trials, two-sided.

    Args:
        system, baseline: statistics of the rows [rows, columns] of one run each.
        score: of sums over rows.
    """
    # sacreBLEU takes rows for its hypotheses, as the metric reads no text
    test = PairedTest([("baseline", baseline), ("system", system)], {"score": _CountedMetric(score)}, None, "ar")
    _, results = test()
    return results["score"][1].p_value


class _CountedMetric:
    """What sacreBLEU's test asks of a metric, with statistics of rows for hypotheses."""

    def __init__(self, score: ScoreOfSums):
        self.score = score

    def _extract_corpus_statistics(self, hypotheses, references):
        return hypotheses

    def _aggregate_and_compute(self, statistics):
        return Score("score", self.score(np.sum(statistics, axis=0)))

    def get_signature(self):
        return Signature({"num_refs": 1})
