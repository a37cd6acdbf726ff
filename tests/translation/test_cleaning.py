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


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_a_loop_over_rows(seed):
    random = np.random.default_rng(seed)
    sources = random.choice(["a", " \t\u00a0\n"], 500, p=[0.9, 0.1])
    rows = [(source, "b", *random.integers(1, 30, 2)) for source in sources]
    dataset = dataset_of(rows).shuffle(seed=seed)
    kept, report = clean(dataset, max_tokens=25, max_length_ratio=1.5)
    expected = [
        row
        for row in dataset
        if row["source"].strip()
        and max(len(row["input_ids"]), len(row["labels"])) <= 25
        and max(len(row["input_ids"]), len(row["labels"])) <= 1.5 * min(len(row["input_ids"]), len(row["labels"]))
    ]
    assert list(kept) == expected
    assert report.startswith(f"kept {len(expected)} of 500 pairs")
