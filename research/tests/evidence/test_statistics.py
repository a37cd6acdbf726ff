"""Differences over seeds and rows: bootstrap, Holm's correction, paired test."""

from functools import partial

import numpy as np
import pytest
import scipy.stats
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from reluformers.translation.evaluation import score_of_sums, sentence_statistics
from reluformers_research import statistics
from reluformers_research.statistics import Difference, Mean, SeedVariance, holm, paired_p_value


def accuracy(sums):
    return 100 * sums[0] / sums[1]


def hits(share, seed, rows=400):
    """Hits and ones of a system that is right with probability `share`."""
    right = np.random.default_rng(seed).random(rows) < share
    return np.stack([right, np.ones(rows)], axis=1)


def difference(system, baseline, score):
    scores = [[score(run.sum(0)) for run in runs] for runs in (system, baseline)]
    variance = SeedVariance.of(scores)
    return Difference.of(Mean.of("system", system, score, variance), Mean.of("baseline", baseline, score, variance))


def test_a_clear_difference_is_found_and_its_sign_is_right():
    found = difference([hits(0.9, seed) for seed in (1, 2, 3)], [hits(0.6, seed) for seed in (4, 5, 6)], accuracy)
    low, high = found.interval
    assert 15 < low < found.value < high < 45
    assert found.chance_below(0) < 0.002 < 0.998 < found.chance_above(0)


def test_no_chance_is_ever_0():
    assert Difference(1.0, np.ones(9)).chance_below(0) == Difference(-1.0, -np.ones(9)).chance_above(0) == 0.1


def test_every_process_draws_the_same_rows():
    weights = statistics._row_weights(50)
    statistics._row_weights.cache_clear()
    np.testing.assert_array_equal(statistics._row_weights(50), weights)


def test_equal_systems_do_not_differ():
    found = difference([hits(0.7, seed) for seed in (1, 2, 3)], [hits(0.7, seed) for seed in (4, 5, 6)], accuracy)
    assert found.interval[0] < 0 < found.interval[1]


def test_the_spread_of_rows_alone_is_that_of_the_binomial_distribution():
    """Two systems whose seeds agree: the variance of the difference is that of its rows."""
    system, baseline = hits(0.8, 1), hits(0.5, 2)
    found = difference([system] * 3, [baseline] * 3, accuracy)
    differences = 100 * (system[:, 0] - baseline[:, 0])
    assert found.draws.std() == pytest.approx(differences.std() / 400**0.5, rel=0.08)
    assert found.smallest_effect == pytest.approx((1.96 + 0.84) * found.draws.std(), rel=0.05)


def alike(values):
    """Runs whose rows are all alike, so that only the seeds vary."""
    return [np.tile([value, 1.0], (50, 1)) for value in values]


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_interval_of_seeds_is_students(seeds):
    first, second = np.arange(seeds) ** 2.0, np.arange(seeds) * 3.0 + 40
    found = difference(alike(first), alike(second), lambda sums: sums[0] / sums[1])
    expected = scipy.stats.ttest_ind(first, second)
    assert found.value == pytest.approx(first.mean() - second.mean())
    assert found.interval == pytest.approx(expected.confidence_interval(), rel=0.05)
    one_sided = scipy.stats.ttest_ind(first, second, alternative="less").pvalue
    assert found.chance_above(0) == pytest.approx(one_sided, rel=0.15, abs=2e-4)


def test_two_seeds_keep_their_promise():
    """Where nothing differs, an interval misses that as often as it says."""
    random = np.random.default_rng(1)
    tables = [[alike(random.normal(size=2)) for _ in range(4)] for _ in range(150)]
    missed = 0
    for rows in tables:
        variance = SeedVariance.of([[run[0, 0] for run in runs] for runs in rows])
        means = [
            Mean.of(name, runs, lambda sums: sums[0] / sums[1], variance)
            for name, runs in zip("abcd", rows, strict=True)
        ]
        intervals = [Difference.of(*means[at : at + 2]).interval for at in (0, 2)]
        missed += sum(not low < 0 < high for low, high in intervals)
    assert 0.02 < missed / 300 < 0.09


def test_a_difference_is_the_same_from_either_side():
    runs = [[hits(share, seed) for seed in (1, 2)] for share in (0.6, 0.7)]
    there, back = difference(*runs, accuracy), difference(*runs[::-1], accuracy)
    means = [Mean.of(name, of_one, accuracy, SeedVariance(4.0, 2)) for name, of_one in zip("ab", runs, strict=True)]
    np.testing.assert_array_equal(Difference.of(*means).draws, -Difference.of(*means[::-1]).draws)
    assert there.value == pytest.approx(-back.value)


def test_the_variance_of_seeds_is_pooled():
    assert SeedVariance.of([[1, 3], [5], [2, 2, 5]]) == SeedVariance(pytest.approx((2 + 6) / 3), 3)
    with pytest.raises(ValueError, match="needs a system with two"):
        SeedVariance.of([[1], [2]])


def test_runs_on_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"scored on \[300, 400\] rows"):
        Mean.of("a", [hits(0.9, 1), hits(0.9, 2, 300)], accuracy, SeedVariance(1.0, 2))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


SENTENCES = [
    "A dog runs over the green grass .",
    "Two men sit on a bench .",
    "She reads .",
    "The cat sleeps here now .",
]


def test_bleu_of_sums_is_sacrebleus():
    outputs = ["A dog runs on the grass .", "Two men sit on a bench .", "She writes .", ""]
    counted = sentence_statistics(BLEU(), outputs, SENTENCES)
    assert counted.shape == (4, 10)
    assert score_of_sums(BLEU(), counted.sum(0)) == pytest.approx(BLEU().corpus_score(outputs, [SENTENCES]).score)


def test_chrf_of_sums_is_sacrebleus():
    outputs = ["A dog runs on the grass .", "Two men sit on a bench .", "She writes .", ""]
    counted = sentence_statistics(CHRF(), outputs, SENTENCES)
    assert counted.shape == (4, 18)
    for rows in ([0, 1, 2, 3], [0, 2], [1, 1, 3]):
        expected = CHRF().corpus_score([outputs[row] for row in rows], [[SENTENCES[row] for row in rows]]).score
        assert score_of_sums(CHRF(), counted[rows].sum(0)) == pytest.approx(expected)


def test_the_paired_test_is_sacrebleus():
    random = np.random.default_rng(0)
    words = [f"word{number}" for number in range(16)]
    references = [" ".join(random.choice(words, 9)) for _ in range(60)]

    def corrupt(share):
        return [" ".join(w if random.random() > share else "x" for w in line.split()) for line in references]

    systems = [corrupt(0.2), corrupt(0.25)]
    test = PairedTest([("a", systems[0]), ("b", systems[1])], {"BLEU": BLEU()}, [references], "ar")
    expected = test()[1]["BLEU"][1].p_value
    counted = [sentence_statistics(BLEU(), system, references) for system in systems]
    assert 0.001 < expected < 0.999
    assert paired_p_value(counted[1], counted[0], partial(score_of_sums, BLEU())) == pytest.approx(expected, abs=1e-9)
