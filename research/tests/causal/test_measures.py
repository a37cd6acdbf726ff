"""Measures of causal models, against what is known beforehand."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reluformers_research.causal.measures import _sums, loss_at, recall_at
from reluformers_research.causal.run import regularization_loss


def config(**fields):
    return LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **fields,
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(config()).eval()


def written(weights):
    """What is measured of one layer [heads, length, length]."""
    return _sums((weights[None],))


def test_a_sink_is_seen_by_its_share():
    length = 8
    sink, even = torch.zeros(length, length), torch.ones(length, length).tril()
    sink[:, 0] = 0.2  # all that there is, but little
    sums = written(torch.stack([sink, even / even.sum(-1, keepdim=True)]))
    shares = (sums["share"] / sums["used"])[0]
    assert shares[0] == 1
    assert shares[1] == pytest.approx(sum(1 / n for n in range(2, 9)) / 7)


def test_zeros_null_rows_and_entropy_are_those_below_the_diagonal():
    weights = torch.zeros(1, 4, 4)
    weights[0, 1, :2] = 0.5
    weights[0, 2, 1] = 3.0  # the last row has none
    sums = written(weights)
    assert sums["pairs"] == 2 + 3 + 4
    assert sums["zeros"].item() == 9 - 3
    assert sums["used"].item() == 2
    assert sums["entropy"].item() == pytest.approx(math.log(2))


def test_the_loss_is_that_of_the_model(model):
    text = torch.randint(1, 50, (4, 31), generator=torch.Generator().manual_seed(1))
    rows = torch.cat([torch.zeros(4, 1, dtype=torch.long), text], dim=1)  # behind a start token
    assert loss_at(model, text.flatten(), 32) == pytest.approx(model(input_ids=rows, labels=rows).loss.item())


def test_recall_is_what_a_repeated_sentence_gains():
    class Copies(torch.nn.Module):
        """Knows a token for certain if what it follows stood before."""

        def forward(self, input_ids, use_cache):
            logits = torch.zeros(*input_ids.shape, 5000)
            for row, tokens in enumerate(input_ids.tolist()):
                seen = {}
                for position, token in enumerate(tokens):
                    if token in seen:
                        logits[row, position, seen[token]] = 100.0
                    if position:
                        seen[tokens[position - 1]] = token
            return type("Output", (), {"logits": logits})

    assert recall_at(Copies(), torch.arange(1, 1001), 64) == pytest.approx(math.log(5000), rel=1e-4)


def test_the_regulariser_is_the_formula():
    torch.manual_seed(0)
    weights = torch.rand(2, 2, 3, 5, 5, dtype=torch.double).tril()  # two layers
    weights[0, 0, 0, 3] = 0  # a null row
    expected = torch.zeros(())
    for row, position in ((row, position) for part in weights.flatten(0, 2) for position, row in enumerate(part)):
        if row.sum() == 0:
            continue
        shares = row[: position + 1] / row.sum()
        entropy = -(shares * shares.log()).sum()
        expected = expected + 0.1 * row.sum().log().abs() + 0.02 * max(entropy - 0.7 * math.log(position + 1), 0)
    loss = regularization_loss(tuple(weights), 0.1, 0.02, 0.7)
    assert loss.item() == pytest.approx(expected.item() / (2 * 2 * 3 * 5), rel=1e-9)
