"""Bad pairs in a known share, and the measures of a score, by hand and against scikit-learn."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from builders.saved_models import TEXTS, save_translator
from reluformers_research.analysis.filter_quality import (
    CORRUPTIONS,
    corrupt,
    length_ratio,
    precision_at_share,
    roc_auc,
)

PAIRS = [(f"source {number}", f"a{number} b{number} c{number} d{number}") for number in range(20)]
OTHERS = [f"other {number}" for number in range(20)]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "corpus_filter.py"


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_share_is_bad_and_the_others_are_as_they_were(kind):
    mixed, is_bad = corrupt(PAIRS, kind, 0.25, others=OTHERS, seed=3)
    assert is_bad.sum() == 5
    for number, ((source, target), before) in enumerate(zip(mixed, PAIRS, strict=True)):
        assert source == before[0]
        assert (target != before[1]) == is_bad[number]
        if kind == "wrong language" and is_bad[number]:
            assert target == OTHERS[number]
        if kind == "inserted words" and is_bad[number]:
            words, own = target.split(), before[1].split()
            assert len(words) == 6
            assert [word for word in words if word in own] == own
    if kind == "shuffled":
        assert sorted(target for _, target in mixed) == sorted(target for _, target in PAIRS)
    again, _ = corrupt(PAIRS, kind, 0.25, others=OTHERS, seed=3)
    other, _ = corrupt(PAIRS, kind, 0.25, others=OTHERS, seed=4)
    assert again == mixed != other


def test_targets_without_words_can_be_inserted_into():
    pairs = [("a", ""), ("b", "x"), ("c", "y z")]
    mixed, is_bad = corrupt(pairs, "inserted words", 0.9, others=["", "", ""], seed=0)
    assert [now != before for now, before in zip(mixed, pairs, strict=True)] == is_bad.tolist()
    assert is_bad.sum() == 1  # two are drawn, and there is nothing to insert of an empty target
    with pytest.raises(ValueError, match="shuffled changes none of the pairs"):
        corrupt([("a", "x"), ("b", "x"), ("c", "x")], "shuffled", 0.5, others=["", "", ""], seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PAIRS, "typos", 0.5), "kind is 'typos', but must be one of shuffled"),
        ((PAIRS, "shuffled", 1.0), "share must be between 0 and 1"),
        ((PAIRS[:2], "shuffled", 0.5), "pairs at least 3, got 0.5 and 2"),
    ],
)
def test_what_cannot_be_mixed(arguments, message):
    with pytest.raises(ValueError, match=message):
        corrupt(*arguments, others=OTHERS, seed=0)


@pytest.mark.parametrize("levels", [3, 1000])
def test_area_under_the_curve_is_that_of_scikit_learn(levels):
    rng = np.random.default_rng(0)
    is_bad = rng.random(200) < 0.3
    scores = rng.integers(levels, size=200) + is_bad * levels // 4
    assert roc_auc(scores, is_bad) == pytest.approx(roc_auc_score(is_bad, scores))


def test_measures_by_hand():
    is_bad = np.array([True, False, True, False])
    assert roc_auc([4, 1, 3, 2], is_bad) == 1
    assert roc_auc([1, 1, 1, 1], is_bad) == 0.5
    assert precision_at_share([4, 1, 3, 2], is_bad) == 1
    assert precision_at_share([4, 3, 1, 2], is_bad) == 0.5
    # one is above the border, and of the two at it, one of them bad, there is room for one
    assert precision_at_share([4, 3, 3, 2], is_bad) == 0.75
    assert length_ratio([("ab", "ab"), ("ab", "ab"), ("ab", "abcde")]).tolist() == pytest.approx([0, 0, np.log(2)])


def test_the_benchmark_on_a_small_model(tmp_path, monkeypatch, capsys):
    folder = save_translator(tmp_path / "model")
    data, output = tmp_path / "rows.jsonl", tmp_path / "numbers.json"
    rows = [{"en": TEXTS[number % 2], "de": f"{TEXTS[2]} {number}", "fr": f"un {number}"} for number in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    specification = importlib.util.spec_from_file_location("corpus_filter", SCRIPT)
    benchmark = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(benchmark)
    arguments = [folder, "--data", data, "--source_lang", "en", "--target_lang", "de", "--wrong_lang", "fr"]
    monkeypatch.setattr(sys, "argv", ["corpus_filter.py", *map(str, arguments), "--output", str(output)])
    benchmark.main()
    numbers = json.loads(output.read_text())
    assert [(row["bad pairs"], row["score"]) for row in numbers] == [
        (kind, score) for kind in CORRUPTIONS for score in ("length ratio", "null_rate", "loss")
    ]
    assert all(0 <= row["auc"] <= 1 and 0 <= row["precision"] <= 1 for row in numbers)
    assert next(row["auc"] for row in numbers if row["bad pairs"] == "wrong language") == 1
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) == 10
