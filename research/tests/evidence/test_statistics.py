"""Differences over seeds and rows: the two-way model, unequal variances, exact ranks, Holm's correction."""

import numpy as np
import pytest
import scipy.stats

from reluformers_research import statistics
from reluformers_research.statistics import RankDifference, Run, SeedModel, holm, row_draws


def model(machine="m", **systems):
    """Fit systems whose runs have the seeds 0, 1, …; None leaves one out."""
    return SeedModel(
        [
            Run(system, seed, machine, value)
            for system, values in systems.items()
            for seed, value in enumerate(values)
            if value is not None
        ]
    )


def test_two_systems_of_the_same_seeds_are_a_paired_t_test():
    first, second = [3.0, 4.5, 4.0, 7.0], [1.0, 3.5, 1.5, 6.5]
    difference = model(a=first, b=second).difference("a", "b")
    expected = scipy.stats.ttest_rel(first, second)
    assert difference.value == pytest.approx(np.mean(first) - np.mean(second))
    assert difference.degrees == pytest.approx(3)
    assert difference.interval == pytest.approx(tuple(expected.confidence_interval()))
    assert 2 * difference.chance_below(0) == pytest.approx(expected.pvalue)
    assert difference.chance_above(0) == pytest.approx(1 - expected.pvalue / 2)


def test_many_systems_are_a_block_design_of_two_ways():
    """s² = Σ (x_ik − x̄_i − x̄_k + x̄)² / ((I − 1)(K − 1)), and what is common to a seed is none of it."""
    values = np.random.default_rng(0).normal(size=(6, 4))
    rest = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    error = np.sqrt(2 / 4 * (rest**2).sum() / 15)
    for shift in (0.0, np.array([0.0, 50.0, -20.0, 7.0])):
        difference = model(**dict(zip("abcdef", values + shift, strict=True))).difference("b", "e")
        assert difference.value == pytest.approx(values[1].mean() - values[4].mean())
        assert (difference.error, difference.degrees) == pytest.approx((error, 15))


def test_a_machine_is_none_of_the_difference():
    """Machine n adds 5; it ran all seeds of one system and one seed of the others."""
    random = np.random.default_rng(2)
    runs = [
        Run(system, seed, machine, mean + seed + 5 * (machine == "n") + random.normal() * 0.01)
        for system, mean, machines in (("a", 1.0, "nnn"), ("b", 0.0, "mmn"), ("c", 2.0, "mmn"), ("d", 2.0, "mmm"))
        for seed, machine in enumerate(machines)
    ]
    assert SeedModel(runs).difference("a", "b").value == pytest.approx(1.0, abs=0.1)
    assert SeedModel(runs).difference("a", "d").value == pytest.approx(-1.0, abs=0.1)


def test_a_wide_system_has_a_variance_of_its_own():
    values = np.random.default_rng(4).normal(size=(8, 3)) * 0.1
    values[6:] += [[-9.0, 0.0, 9.0], [7.0, -8.0, 1.0]]
    systems = dict(zip("abcdefgh", values, strict=True))
    whole, steady = model(**systems), model(**{name: systems[name] for name in "abcdef"})
    assert whole.steady == steady.steady == set("abcdef")
    ours, theirs = whole.difference("a", "b"), steady.difference("a", "b")
    assert (ours.value, ours.error, ours.degrees) == pytest.approx(
        (theirs.value, theirs.error, theirs.degrees), rel=1e-3
    )
    expected = scipy.stats.ttest_ind(values[6], values[0], equal_var=False)
    assert whole.difference("g", "a").interval == pytest.approx(tuple(expected.confidence_interval()), rel=0.03)


def test_the_spread_of_rows_is_that_of_the_binomial_distribution():
    right = np.random.default_rng(1).random(400) < 0.8
    rows = np.stack([right, np.ones(400)], axis=1)
    draws = row_draws(rows, lambda sums: sums[0] / sums[1])
    assert draws.std() == pytest.approx(right.std() / 20, rel=0.08)
    statistics._row_weights.cache_clear()
    np.testing.assert_array_equal(row_draws(rows, lambda sums: sums[0] / sums[1]), draws)


def test_ranks_are_exact():
    """Five runs that are all below five others: one order of 252, and Holm's four times that is below 5 %."""
    low, high = (4.6, 23.0, 4.2, 2.2, 2.1), (26.3, 25.6, 24.9, 26.9, 25.8)
    difference = RankDifference(high, low)
    assert difference.chance_below(0) == pytest.approx(1 / 252)
    assert difference.chance_above(0) == pytest.approx(1)
    assert difference.chance_below(1.0) == pytest.approx(1 / 252)
    assert difference.chance_above(40.0) == pytest.approx(1 / 252)
    pairs = sorted(one - other for one in high for other in low)
    assert difference.interval == (pairs[2], pairs[-3]), "of 96.8 %, in tables of the test"
    assert difference.value == pairs[12]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
