"""Every statistic against numbers worked out by hand and against naive loops over single weights."""

import math

import pytest
import torch

from reluformers_research.analysis.observation import Rows
from reluformers_research.analysis.statistics import Sums, count_all


def random_rows(seed: int, activation=torch.relu) -> Rows:
    """Weights [3, 2, 6, 6] with null rows, padded queries and keys, a causal mask, and rubbish where it is masked."""
    generator = torch.Generator().manual_seed(seed)
    weights = activation(torch.randn(3, 2, 6, 6, generator=generator))
    weights[0, 1, 2] = 0.0
    weights[0, 0, 3] = 0.0
    weights[0, 1, 3] = 0.0
    real = torch.ones(3, 6, dtype=torch.bool)
    real[2, 4:] = False
    visible = real[:, :, None] & real[:, None, :] & torch.ones(6, 6, dtype=torch.bool).tril()
    weights = weights.masked_fill(~visible.unsqueeze(1), float("nan"))
    values = torch.randn(3, 2, 6, 4, generator=generator)
    return Rows.of(weights, visible, real, values=values)


def each_row(rows: Rows, head: int):
    """Sentence, query, visible keys, their weights, and their shares, None where there are none."""
    for b in range(rows.weights.shape[0]):
        for i in range(rows.weights.shape[2]):
            if rows.real[b, 0, i]:
                keys = [j for j in range(rows.weights.shape[3]) if rows.visible[b, 0, i, j]]
                weights = [rows.weights[b, head, i, j].item() for j in keys]
                has_shares = sum(weights) > 0 and min(weights) >= 0
                yield b, i, keys, weights, [w / sum(weights) for w in weights] if has_shares else None


def mean(values) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def entropy(shares) -> float:
    return -sum(p * math.log(p) for p in shares if p > 0)


def measured(*batches) -> dict:
    """Name → the only layer, of several batches."""
    sums = Sums()
    for rows in batches:
        sums.add({"encoder": [rows]}, count_all)
    return {name: sites["encoder"][0] for name, sites in sums.values().items()}


def check(naive) -> None:
    """`naive(rows, heads)` → name → value, for each head and for all of them over two batches."""
    batches = [random_rows(seed) for seed in (0, 1)]
    results = measured(*batches)
    for name, value in naive(batches, (0, 1)).items():
        assert results[name]["overall"] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        for head, of_head in enumerate(results[name]["heads"]):
            assert of_head == pytest.approx(naive(batches, (head,))[name], rel=1e-5, abs=1e-6), name


def over(batches, heads):
    for rows in batches:
        for head in heads:
            for row in each_row(rows, head):
                yield rows, head, *row


def test_rows():
    def naive(batches, heads):
        observed = list(over(batches, heads))
        return {
            "zeros": mean(w == 0 for *_, weights, _ in observed for w in weights),
            "null_rate": mean(not any(weights) for *_, weights, _ in observed),
            "sink": mean(shares[0] for *_, keys, _, shares in observed if shares and len(keys) > 1),
            "row_sum": mean(sum(weights) for *_, weights, _ in observed),
            "entropy": mean(entropy(shares) for *_, shares in observed if shares),
        }

    check(naive)


def test_output_variance():
    def naive(batches, heads):
        components = {}
        for rows, head, b, _, keys, weights, _ in over(batches, heads):
            output = sum(w * rows.values[b, head, j] for w, j in zip(weights, keys, strict=True))
            components.setdefault(2 ** int(math.log2(len(keys))), []).extend(output.tolist())
        return {
            f"output_variance.{length}": mean(x * x for x in values) - mean(values) ** 2
            for length, values in components.items()
        }

    check(naive)


def test_output_variance_beside_a_large_mean():
    """In float32 the difference of the two sums would be off by half of itself."""
    weights = torch.full((1, 1, 4, 4), 0.25)
    values = 3000 + torch.randn(1, 1, 4, 4096)
    visible = torch.ones(1, 4, 4, dtype=torch.bool)
    variance = measured(Rows.of(weights, visible, visible[..., 0], values=values))
    expected = values.double().mean(2).var(correction=0).item()
    assert variance["output_variance.4"]["overall"] == pytest.approx(expected, rel=1e-4)


def naive_divergence(distributions: list[list[float]]) -> float:
    mixed = [mean(column) for column in zip(*distributions, strict=True)]
    return entropy(mixed) - mean(map(entropy, distributions))


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.leaky_relu])
def test_head_diversity(activation):
    rows, expected = random_rows(3, activation), []
    for (_, _, _, first, shares), (_, _, _, second, others) in zip(each_row(rows, 0), each_row(rows, 1), strict=True):
        if min(first) < 0 or min(second) < 0:
            continue
        dummy = [0.0] * len(first) + [1.0]
        expected.append(naive_divergence([[*p, 0.0] if p else dummy for p in (shares, others)]))
    layer = measured(rows)["head_diversity"]
    assert layer == {"overall": pytest.approx(mean(expected), rel=1e-5), "heads": []}
