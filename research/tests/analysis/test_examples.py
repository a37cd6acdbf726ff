"""Sentence pairs that stand out, against scores of loops."""

import heapq

import pytest
import torch

from reluformers_research.analysis.examples import Examples
from reluformers_research.analysis.observation import Observed, Rows

LENGTHS = [(6, 5), (5, 7), (4, 6), (6, 8), (5, 5)]  # target, source; the third is too short


def batches(softmax: bool = False) -> list[Observed]:
    found = []
    for number, lengths in enumerate((LENGTHS[:3], LENGTHS[3:])):
        torch.manual_seed(number)
        targets, sources = zip(*lengths, strict=True)
        queries, keys = (torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1) for sizes in (targets, sources))
        scores = torch.randn(2, len(lengths), 3, max(targets), max(sources))
        scores = scores.softmax(-1) if softmax else (scores - 1).relu()
        visible = queries.unsqueeze(2) & keys.unsqueeze(1)
        layers = [Rows.of(weights, visible, queries) for weights in scores]
        inputs = {
            "input_ids": torch.arange(max(sources)) + 100 * torch.arange(len(lengths)).unsqueeze(1) + 1000 * number,
            "labels": torch.arange(max(targets)) + 50 * torch.ones(len(lengths), 1).long(),
        }
        found.append(Observed(inputs, {"cross": layers}))
    return found


def scores(kind: str) -> list[float]:
    """Take examples of the pairs that fit."""
    values = []
    for observed in batches():
        for place in range(observed.inputs["labels"].shape[0]):
            by_layer = []
            for rows in observed.attention["cross"]:
                chosen = [i for i in range(rows.real.shape[-1]) if rows.real[place, 0, i]]
                if kind == "most_null":
                    nulls = [not rows.weights[place, head, i].any() for head in range(3) for i in chosen]
                    by_layer.append(sum(nulls) / len(nulls))
                else:
                    peaks = [max(rows.shares[place, :, i].mean(0).tolist()) for i in chosen]
                    by_layer.append(sum(peaks) / len(peaks))
            if len(chosen) >= 5:
                values.append(sum(by_layer) / 2 if kind == "most_null" else max(by_layer))
    return values


@pytest.mark.parametrize("kind", ["most_null", "most_aligned"])
def test_the_largest_scores_are_kept(kind):
    statistic = Examples(2)
    for observed in batches():
        statistic.update(observed)
    found = statistic.result()["examples"][kind]
    assert [row["score"] for row in found] == pytest.approx(heapq.nlargest(2, scores(kind)))
    for row in found:
        assert len(row["weights"]) == len(row["target"]) == len(row["null"]) >= 5
        assert {len(weights) for weights in row["weights"]} == {len(row["source"])}
        assert (len(row["target"]), len(row["source"])) in LENGTHS
        number, place = divmod(row["source"][0], 1000)
        rows = batches()[number].attention["cross"][row["layer"]]
        shares = rows.shares[place // 100].mean(0)[: len(row["target"]), : len(row["source"])]
        torch.testing.assert_close(torch.tensor(row["weights"]), shares, atol=1e-4, rtol=0)


def test_softmax_has_no_null_rows_to_show():
    statistic = Examples()
    for observed in batches(softmax=True):
        statistic.update(observed)
    examples = statistic.result()["examples"]
    assert examples["most_null"] == []
    assert len(examples["most_aligned"]) == 3
    assert Examples().result() == {}
