"""Differences between two systems, each trained with several seeds and scored on the same rows.

A score is a function of sums over rows (BLEU of n-gram counts, accuracy of hits), so that a draw of rows is scored
without looking at a text again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from sacrebleu.metrics.base import Score, Signature
from sacrebleu.significance import PairedTest

from reluformers.scorer import ScoreOfSums

DRAWS = 2000
LEVEL = 0.95  # of intervals
POWER = 0.8  # with which `smallest_effect` would have been found


@dataclass(frozen=True)
class Difference:
    """How much a system is ahead of another, and how sure that is.

    Args:
        value: mean over the seeds of the one minus that of the other, in the unit of the score.
        draws: the same of each draw of the bootstrap.
    """

    value: float
    draws: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the percentile interval that holds `LEVEL` of the draws."""
        low, high = np.quantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    @property
    def smallest_effect(self) -> float:
        """The smallest true difference that these runs find with probability `POWER` by a two-sided test.

        (z_{(1 + LEVEL)/2} + z_POWER) · σ, σ the standard deviation of the draws.
        """
        normal = NormalDist()
        return (normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)) * float(self.draws.std(ddof=1))

    def chance_below(self, bound: float) -> float:
        """p-value of "the difference is at most `bound`": the share of draws that say so, never quite 0."""
        return (1 + int((self.draws <= bound).sum())) / (1 + len(self.draws))

    def chance_above(self, bound: float) -> float:
        """p-value of "the difference is at least `bound`"."""
        return (1 + int((self.draws >= bound).sum())) / (1 + len(self.draws))


def difference(
    system: Sequence[np.ndarray], baseline: Sequence[np.ndarray], score: ScoreOfSums, *, draws: int = DRAWS
) -> Difference:
    """Bootstrap over seeds × rows.

    Every draw takes rows with replacement, the same for all runs, and seeds with replacement, of each system by
    itself. Its deviation by the seeds is stretched by √(m/(m − 1)), as m seeds drawn from m vary too little by that.

    Args:
        system, baseline: of each seed the statistics of its rows [rows, columns]; the same rows in all.
        score: of sums over rows.
        draws: how many.

    Raises:
        ValueError: a system has fewer than two seeds, or the runs differ in their number of rows.
    """
    rows = {len(run) for run in (*system, *baseline)}
    if len(rows) != 1:
        raise ValueError(f"The runs were scored on {sorted(rows)} rows, but must be on the same ones.")
    if min(len(system), len(baseline)) < 2:
        raise ValueError(f"A difference needs two seeds of each system, got {len(system)} and {len(baseline)}.")
    random = np.random.default_rng(0)
    (number,) = rows
    weights = random.multinomial(number, np.full(number, 1 / number), size=draws)  # [draws, rows]
    means = [
        _mean_over_seeds(np.array([_scores(weights @ run, score) for run in runs]), random)
        for runs in (system, baseline)
    ]
    value = np.mean([score(run.sum(0)) for run in system]) - np.mean([score(run.sum(0)) for run in baseline])
    return Difference(float(value), means[0] - means[1])


def _scores(sums: np.ndarray, score: ScoreOfSums) -> np.ndarray:
    return np.array([score(row) for row in sums])


def _mean_over_seeds(scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Of scores [seeds, draws], the mean over seeds drawn with replacement, its deviation stretched; [draws]."""
    seeds, draws = scores.shape
    means = scores.mean(0)
    picked = random.integers(seeds, size=(seeds, draws))
    return means + math.sqrt(seeds / (seeds - 1)) * (np.take_along_axis(scores, picked, 0).mean(0) - means)


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
