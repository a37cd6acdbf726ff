"""Dropout in compiled code and by sixteen random bits an element: share, scale, gradients, repeatability."""

import pytest
import torch
from torch.autograd import forward_ad

from reluformers.modeling.kernels import apply_dropout
from reluformers_kernels import dropout as find_dropped
from reluformers_kernels.dropout import keep_factors


def test_nothing_is_dropped_outside_of_training():
    states = torch.randn(5)
    assert apply_dropout(states, 0.5, training=False) is states
    assert apply_dropout(states, 0.0) is states


@pytest.mark.parametrize("draw", [apply_dropout, keep_factors])
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_share_scale_and_independence(draw, probability, dtype):
    factors = draw(torch.ones(1000, 501, dtype=dtype), probability)
    assert factors.dtype == dtype
    assert factors.shape == (1000, 501)
    is_kept = factors != 0
    torch.testing.assert_close(factors[is_kept].unique(), torch.tensor([1 / (1 - probability)], dtype=dtype))
    kept = is_kept.flatten().double()
    share = 1 - probability
    spread = 5 / len(kept) ** 0.5
    assert abs(kept.mean() - share) < spread * (share * probability) ** 0.5
    for distance in (1, 2, 3, 4, 8, 16, 64, 4096):  # of elements that share a random number, a vector or a row
        both = (kept[:-distance] * kept[distance:]).mean()
        assert abs(both - share**2) < spread * share * (1 - share**2) ** 0.5


def test_gradients_of_gradients_many_gradients_and_directions():
    states = torch.randn(40, 50, requires_grad=True)
    directions = torch.randn(3, 40, 50)
    output = apply_dropout(states, 0.25)
    kept = (output != 0) / 0.75
    (grad,) = torch.autograd.grad(output.square().sum(), states, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(grad.sum(), states, retain_graph=True)[0], 2 * kept**2)
    (grads,) = torch.autograd.grad(output, states, directions, is_grads_batched=True)
    torch.testing.assert_close(grads, directions * kept)
    with forward_ad.dual_level():
        dual = apply_dropout(forward_ad.make_dual(states.detach(), directions[0]), 0.25)
        output, tangent = forward_ad.unpack_dual(dual)
        torch.testing.assert_close(tangent, directions[0] * (output != 0) / 0.75)
    assert torch.func.vmap(lambda row: apply_dropout(row, 0.25), randomness="different")(states).shape == (40, 50)


def test_traced_code_drops_the_same_share():
    torch.manual_seed(0)
    compiled = torch.compile(apply_dropout, backend="eager", fullgraph=True)
    output = compiled(torch.ones(400, 500), 0.1)
    assert abs((output == 0).double().mean().item() - 0.1) < 0.01


@pytest.mark.parametrize("draw", [apply_dropout, find_dropped, keep_factors])
def test_a_seed_repeats_it_on_any_number_of_threads(draw, threads):
    results = []
    for seed, number in ((7, 1), (7, 2), (7, 3), (8, 1)):
        threads(number)
        torch.manual_seed(seed)
        results.append(draw(torch.ones(70, 500), 0.5))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(64, 64), (3, 4097), (5,), (0, 7), ()])
def test_gradient_is_that_of_the_kept(dtype, shape):
    states = torch.rand(shape, dtype=dtype) + 0.5
    states = (states.mT if len(shape) == 2 else states).requires_grad_()
    output = apply_dropout(states, 0.25)
    direction = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, states, direction, create_graph=True)
    factors = (output != 0) / torch.tensor(0.75, dtype=dtype)
    torch.testing.assert_close(output, states * factors)
    torch.testing.assert_close(gradient, direction * factors)
