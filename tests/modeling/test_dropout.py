"""Dropout by sixteen random bits an element: share, scale, gradients, repeatability."""

import pytest
import torch

from reluformers.modeling.kernels import apply_dropout
from reluformers_kernels.dropout import keep_factors


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_share_and_scale(probability, dtype):
    torch.manual_seed(0)
    factors = keep_factors(torch.empty(400, 501, dtype=dtype), probability)
    assert factors.dtype == dtype
    assert factors.shape == (400, 501)
    kept = factors != 0
    spread = (probability * (1 - probability) / factors.numel()) ** 0.5
    assert abs(kept.double().mean().item() - (1 - probability)) < 5 * spread
    torch.testing.assert_close(factors[kept].unique(), torch.tensor([1 / (1 - probability)], dtype=dtype))


def test_neighbours_are_independent():
    torch.manual_seed(0)
    kept = (keep_factors(torch.empty(1_000_003), 0.3) != 0).double()
    for distance in (1, 2, 3, 4, 8, 64):  # four elements come from one random number
        both = (kept[:-distance] * kept[distance:]).mean().item()
        assert abs(both - 0.7**2) < 5 * (0.49 * 0.51 / len(kept)) ** 0.5


def test_gradient_is_that_of_the_kept():
    torch.manual_seed(0)
    states = torch.randn(64, 64, dtype=torch.float64, requires_grad=True)
    output = apply_dropout(states, 0.25)
    output.sum().backward()
    factors = output.detach() / states.detach()
    torch.testing.assert_close(states.grad, factors)
    assert 0 < (states.grad == 0).sum() < states.numel()


def test_seed_repeats_it():
    states = torch.randn(33, 9)
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(apply_dropout(states, 0.4))
    assert torch.equal(*results)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    first, second, third = (keep_factors(states, 0.4, generator) for generator in generators)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_nothing_is_dropped_outside_of_training():
    states = torch.randn(5)
    assert apply_dropout(states, 0.5, training=False) is states
    assert apply_dropout(states, 0.0) is states


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_compiled_code_drops_the_same_share(probability):
    torch.manual_seed(0)
    compiled = torch.compile(apply_dropout, backend="eager", fullgraph=True)
    output = compiled(torch.ones(400, 500), probability)
    assert abs((output == 0).double().mean().item() - probability) < 0.01
