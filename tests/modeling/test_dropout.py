"""Dropout in compiled code and by sixteen random bits an element: share, scale, gradients, repeatability."""

import pytest
import torch

from reluformers.modeling.kernels import apply_dropout
from reluformers_kernels import dropout as find_dropped
from reluformers_kernels.dropout import keep_factors


def by_sixteen_bits(shape, probability, dtype=torch.float32):
    return keep_factors(torch.empty(shape, dtype=dtype), probability)


def of_ones(shape, probability, dtype=torch.float32):
    return apply_dropout(torch.ones(shape, dtype=dtype), probability)


BOTH = pytest.mark.parametrize("draw", [by_sixteen_bits, of_ones])


@BOTH
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_share_and_scale(draw, probability, dtype):
    torch.manual_seed(0)
    factors = draw((400, 501), probability, dtype)
    assert factors.dtype == dtype
    assert factors.shape == (400, 501)
    kept = factors != 0
    spread = (probability * (1 - probability) / factors.numel()) ** 0.5
    assert abs(kept.double().mean().item() - (1 - probability)) < 5 * spread
    torch.testing.assert_close(factors[kept].unique(), torch.tensor([1 / (1 - probability)], dtype=dtype))


@BOTH
def test_neighbours_are_independent(draw):
    torch.manual_seed(0)
    kept = (draw(1_000_003, 0.3) != 0).double()
    # elements share a random number, a vector or a row of compiled code
    for distance in (1, 2, 3, 4, 8, 16, 64, 4096):
        both = (kept[:-distance] * kept[distance:]).mean().item()
        assert abs(both - 0.7**2) < 5 * (0.49 * 0.51 / len(kept)) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(64, 64), (3, 4097), (5,), (0, 7), ()])
def test_gradient_is_that_of_the_kept(dtype, shape):
    torch.manual_seed(0)
    states = torch.rand(shape, dtype=dtype) + 0.5
    states = states.mT if len(shape) == 2 else states
    states.requires_grad_()
    output = apply_dropout(states, 0.25)
    assert output.shape == states.shape
    weights = torch.randn_like(output)
    (grad,) = torch.autograd.grad(output, states, weights, create_graph=True)
    kept = (output != 0).to(dtype)
    torch.testing.assert_close(output, states * kept / 0.75)
    torch.testing.assert_close(grad, weights * kept / 0.75)
    if states.numel() > 1000:
        assert 0 < kept.sum() < kept.numel()


def test_gradients_of_gradients_many_gradients_and_directions():
    states = torch.randn(40, 50, requires_grad=True)
    output = apply_dropout(states, 0.25).square()
    (grad,) = torch.autograd.grad(output.sum(), states, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), states)
    torch.testing.assert_close(second, 2 * (output != 0) / 0.75**2)
    output, directions = apply_dropout(states, 0.25), torch.randn(3, 40, 50)
    (grads,) = torch.autograd.grad(output, states, directions, is_grads_batched=True)
    torch.testing.assert_close(grads, directions * (output != 0) / 0.75)
    with torch.autograd.forward_ad.dual_level():
        dual = apply_dropout(torch.autograd.forward_ad.make_dual(states.detach(), directions[0]), 0.25)
        kept, tangent = torch.autograd.forward_ad.unpack_dual(dual)
        torch.testing.assert_close(tangent, directions[0] * (kept != 0) / 0.75)
    assert torch.func.vmap(lambda row: apply_dropout(row, 0.25), randomness="different")(states).shape == (40, 50)


def test_seed_repeats_it():
    states = torch.randn(33, 9)
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results += [apply_dropout(states, 0.4)]
    assert torch.equal(*results[:2])
    assert not torch.equal(*results[1:])
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    first, second, third = (keep_factors(states, 0.4, generator) for generator in generators)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_nothing_is_dropped_outside_of_training():
    states = torch.randn(5)
    assert apply_dropout(states, 0.5, training=False) is states
    assert apply_dropout(states, 0.0) is states


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_traced_code_drops_the_same_share(probability):
    torch.manual_seed(0)
    compiled = torch.compile(apply_dropout, backend="eager", fullgraph=True)
    output = compiled(torch.ones(400, 500), probability)
    assert abs((output == 0).double().mean().item() - probability) < 0.01


def test_other_threads_drop_the_same():
    states, threads, results = torch.ones(70, 500), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            torch.manual_seed(0)
            results.append(find_dropped(states, 0.5))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
