"""Differences between systems, each trained with several seeds and scored on the same rows.

docs/research/tables.md says which procedures, and why.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from .row_scores import ScoreOfSums

ROW_DRAWS = 2_000  # of test rows
LEVEL = 0.95  # of intervals
POWER = 0.8  # `Difference.smallest_effect` would be detected with this probability.
APART = 0.25  # level of the tests of the largest variance, which is that for tests before pooling


class Run(NamedTuple):
    """One training run.

    Args:
        system: what was trained.
        seed: of the training.
        machine: by name.
        value: what it scored.
    """

    system: str
    seed: int
    machine: str
    value: float


@dataclass(frozen=True)
class Variance:
    """Variance s² of one run and its degrees of freedom."""

    value: float
    degrees: float


@dataclass(frozen=True)
class Difference:
    """How much a system is ahead of another, by Student's t.

    Args:
        value: in the unit of the score.
        error: its standard error.
        degrees: of freedom.
    """

    value: float
    error: float
    degrees: float

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval of `LEVEL`."""
        half = self.error * stats.t.ppf((1 + LEVEL) / 2, self.degrees)
        return float(self.value - half), float(self.value + half)

    def widened(self, factor: float) -> "Difference":
        """Widen the interval to so many times the standard error."""
        return replace(self, error=factor * self.error)

    def chance_below(self, bound: float) -> float:
        """p-value of "the difference is at most `bound`"."""
        return float(stats.t.sf((self.value - bound) / self.error, self.degrees))

    def chance_above(self, bound: float) -> float:
        """p-value of "the difference is at least `bound`"."""
        return float(stats.t.cdf((self.value - bound) / self.error, self.degrees))

    def smallest_effect(self, level: float) -> float:
        """The smallest distance from a bound that a one-sided test of that level finds with probability `POWER`."""
        critical = stats.t.isf(level, self.degrees)
        return float(self.error * special.nctdtrinc(self.degrees, 1 - POWER, critical))


@dataclass(frozen=True)
class RankDifference:
    """Difference of two systems by exact ranks (Mann and Whitney 1947), for runs of any distribution.

    Args:
        first, second: values of the runs of the two systems.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]

    @staticmethod
    def can_decide(first: int, second: int, level: float) -> bool:
        """Whether so many runs of each can give a p-value below `level`."""
        return 1 / math.comb(first + second, first) < level

    @property
    def value(self) -> float:
        """Median of the differences of all pairs (Hodges and Lehmann 1963)."""
        return float(np.median(self._pairs))

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the widest interval whose level is `LEVEL` or more (Hodges and Lehmann 1963)."""
        # pairs that the first system wins, in every order of the runs
        size = len(self.first)
        places = range(len(self.first) + len(self.second))
        wins = [sum(chosen) - size * (size - 1) // 2 for chosen in combinations(places, size)]
        outside = 0
        while np.mean(np.array(wins) <= outside) <= (1 - LEVEL) / 2:
            outside += 1
        if outside == 0:
            return -math.inf, math.inf
        return float(self._pairs[outside - 1]), float(self._pairs[-outside])

    def chance_below(self, bound: float) -> float:
        """p-value of "the difference is at most `bound`"."""
        return self._chance(bound, "greater")

    def chance_above(self, bound: float) -> float:
        """p-value of "the difference is at least `bound`"."""
        return self._chance(bound, "less")

    def widened(self, factor: float) -> "RankDifference":
        """Itself: it has no standard error."""
        return self

    def smallest_effect(self, level: float) -> None:
        """None: it depends on a distribution that is not known."""
        return None

    @cached_property
    def _pairs(self) -> np.ndarray:
        return np.sort(np.subtract.outer(self.first, self.second), axis=None)

    def _chance(self, bound: float, alternative: str) -> float:
        shifted = np.array(self.first) - bound
        return float(stats.mannwhitneyu(shifted, self.second, alternative=alternative, method="exact").pvalue)


class SeedModel:
    """value = system + seed + machine + rest, of runs of the same data and schedule.

    Systems share the variance of the rest but for those that spread more, which have their own.

    Args:
        runs: systems of one run are left out, as they say nothing of a variance.
    """

    def __init__(self, runs: Sequence[Run]):
        systems = Counter(run.system for run in runs)
        runs = [run for run in runs if systems[run.system] > 1]
        self._systems = np.array([run.system for run in runs])
        self._values = np.array([run.value for run in runs], dtype=float)
        self._rows = _indicators(self._systems)
        blocks = [_indicators(np.array([getattr(run, name) for run in runs])) for name in ("seed", "machine")]
        self._design = np.concatenate([self._rows, *blocks], axis=1)
        self.steady = self.systems = frozenset(self._systems.tolist())
        self._variances: dict[str, Variance] = {}
        if not runs:
            return
        if self._residuals(np.ones(len(runs)))[1].sum() < 1 - 1e-6:
            self._design = self._rows  # no two systems share two seeds
        self.steady -= self._apart()
        self._variances = self._estimate()
        if not self._variances:
            return
        weights = np.array([self._variances[system].value for system in self._systems]) ** -0.5
        weights /= weights.max(initial=0)
        self._solution = np.linalg.pinv(self._design * weights[:, None]) * weights  # coefficients from values

    def values(self, system: str) -> tuple[float, ...]:
        """Values of the runs of a system."""
        return tuple(self._values[self._systems == system].tolist())

    def difference(self, first: str, second: str, test_variance: float = 0.0) -> Difference | None:
        """Compare two systems by weighted least squares; None where one has less than two runs.

        Args:
            first, second: systems.
            test_variance: of their difference, over draws of test rows.
        """
        if not {first, second} <= self._variances.keys():
            return None
        ours, others = (self._rows[np.argmax(self._systems == name)] for name in (first, second))
        contrast = np.zeros(self._design.shape[1])
        contrast[: len(ours)] = ours - others
        influence = contrast @ self._solution
        if not np.allclose(influence @ self._design, contrast, atol=1e-6):
            return None  # no chain of shared seeds leads from one to the other
        parts: dict[Variance, float] = defaultdict(float)
        for system, share in zip(self._systems, influence**2, strict=True):
            parts[self._variances[system]] += share * self._variances[system].value
        total = sum(parts.values()) + test_variance
        degrees = total**2 / sum(part**2 / variance.degrees for variance, part in parts.items())
        return Difference(float(influence @ self._values), math.sqrt(total), degrees)

    def _residuals(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals of least squares, and how many degrees of freedom each has left."""
        fit = self._design @ (np.linalg.pinv(self._design * weights[:, None]) * weights)
        return self._values - fit @ self._values, 1 - np.diag(fit)

    def _spread(self, systems: frozenset[str]) -> tuple[np.ndarray, dict[str, tuple[float, float]]]:
        """Residuals from seeds and machines of `systems`; sum of squares and degrees of freedom of each of these."""
        # the others say next to nothing of seeds and machines, unless nobody else does
        residuals, degrees = self._residuals(np.where(np.isin(self._systems, list(systems)), 1.0, 1e-5))
        sums = {}
        for system in sorted(systems):
            own = self._systems == system
            sums[system] = float((residuals[own] ** 2).sum()), float(degrees[own].sum())
        return residuals, sums

    def _apart(self) -> frozenset[str]:
        """Systems that spread more than the others.

        The largest variance is tested against the rest by F, with Bonferroni's correction, and put aside, until half
        are left; those up to the last one that was told apart are it, as a wide one hides another (Rosner 1983).
        """
        left = self.systems
        aside = []
        count = 0
        while len(left) > max(2, len(self.systems) // 2):
            _, sums = self._spread(left)
            worst = max(sums, key=lambda system: sums[system][0])
            square, degrees = (sum(part) for part in zip(*sums.values(), strict=True))
            own, free = sums[worst]
            if degrees - free < 1 - 1e-6:
                break
            ratio = own / free / max((square - own) / (degrees - free), 1e-300)
            left -= {worst}
            aside.append(worst)
            if stats.f.sf(ratio, free, degrees - free) < APART / (len(left) + 1):
                count = len(aside)
        return frozenset(aside[:count])

    def _estimate(self) -> dict[str, Variance]:
        """The variance of each system."""
        residuals, sums = self._spread(self.steady)
        square, degrees = (sum(part) for part in zip(*sums.values(), strict=True))
        if degrees < 1 - 1e-6:
            return {}
        # values that agree to rounding would have infinite weight
        floor = 1e-30 + float(np.abs(self._values).max() * 1e-9) ** 2
        variances = dict.fromkeys(self.steady, Variance(max(square / degrees, floor), degrees))
        for system in self.systems - self.steady:
            own = residuals[self._systems == system]
            variances[system] = Variance(float((own**2).sum()) / (len(own) - 1), len(own) - 1)
        return variances


def _indicators(names: np.ndarray) -> np.ndarray:
    """A column of 0 and 1 for each name    [runs, names]."""
    return (names[:, None] == np.unique(names)).astype(float)


def row_draws(run: np.ndarray, score: ScoreOfSums) -> np.ndarray:
    """Scores of a run on `ROW_DRAWS` draws of its test rows, the same ones for all runs    [draws].

    Args:
        run: statistics of its rows [rows, columns].
        score: of sums over rows.
    """
    sums = (_row_weights(len(run)).astype(float) @ run.astype(float)).astype(run.dtype)
    return np.array([score(row) for row in sums])


@lru_cache(maxsize=2)
def _row_weights(rows: int) -> np.ndarray:
    """How often each draw takes each row, the same whenever it is asked for    uint8 [draws, rows]."""
    random = np.random.default_rng(0)
    shares = np.full(rows, 1 / rows)
    return np.stack([random.multinomial(rows, shares).astype(np.uint8) for _ in range(ROW_DRAWS)])


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that may be held against one level although they are many (Holm 1979)."""
    order = np.argsort(p_values)
    adjusted = np.array(p_values)
    adjusted[order] = np.maximum.accumulate(np.arange(len(order), 0, -1) * adjusted[order]).clip(max=1.0)
    return adjusted.tolist()
