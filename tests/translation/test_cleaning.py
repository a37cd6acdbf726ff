"""Cleaning: which pairs go, under which heading, and what stays."""

import numpy as np
import pytest
from datasets import Dataset

from reluformers.translation.tokenized_rows import clean


def dataset_of(rows):
    """Make pairs from (source text, target text, source tokens, target tokens)."""
    return Dataset.from_dict(
        {
            "source": [row[0] for row in rows],
            "target": [row[1] for row in rows],
            "input_ids": [list(range(row[2])) for row in rows],
            "labels": [list(range(row[3])) for row in rows],
        }
    )


ROWS = [
    ("a", "b", 5, 5),
    ("", "b", 1, 5),
    ("a", " \t\u00a0\n", 5, 1),
    ("a", "b", 11, 10),
    ("a", "b", 10, 11),
    ("a", "b", 10, 10),
    ("a", "b", 3, 7),
    ("a", "b", 7, 3),
    ("a", "b", 3, 6),
    ("", "b", 99, 1),
    ("a", "b", 99, 1),
]


def test_each_reason_is_counted_once():
    kept, report = clean(dataset_of(ROWS), max_tokens=10, max_length_ratio=2)
    dropped = "3 with an empty side, 3 over 10 tokens, 2 over length ratio 2"
    assert report == f"kept 3 of 11 pairs; dropped {dropped}"
    assert [len(ids) for ids in kept["input_ids"]] == [5, 10, 3]
    assert clean(dataset_of(ROWS))[1] == "kept 8 of 11 pairs; dropped 3 with an empty side"


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_a_loop_over_rows(seed):
    random = np.random.default_rng(seed)
    rows = [(random.choice(["a", " "], p=[0.9, 0.1]), "b", *random.integers(1, 30, 2)) for _ in range(500)]
    dataset = dataset_of(rows).shuffle(seed=seed)
    kept, _ = clean(dataset, max_tokens=25, max_length_ratio=1.5)
    expected = [
        row
        for row in dataset
        if row["source"].strip()
        and max(len(row["input_ids"]), len(row["labels"])) <= 25
        and max(len(row["input_ids"]), len(row["labels"])) <= 1.5 * min(len(row["input_ids"]), len(row["labels"]))
    ]
    assert list(kept) == expected
