"""What each computation of `rectified_attention` does beside the formula: dropout, hidden keys, NaN, sums, layouts.

`test_triton_attention.py` runs this file in triton's interpreter as well.
"""

from unittest import mock

import pytest
import torch
from torch import Tensor

from builders.attention_calls import naive, near
from builders.triton_inputs import SHARE, TOLERANCES, compare, draw, draw_options, pass_options
from reluformers import rectified_attention
from reluformers_kernels import ACTIVATIONS, SPARSE_DISTRIBUTIONS, fused_attention
from reluformers_kernels.activations import PassOptions
from reluformers_kernels.compiled import native

from .test_attention_matrix import BUILT, COMPUTATIONS, compute_by

# queries and keys, so many that several tasks or tiles share a head
LENGTHS = {"triton": (15, 32), "blocks": (40, 48)}


@pytest.fixture(params=COMPUTATIONS)
def computed_by(request, monkeypatch, threads) -> str:
    """Blocks in PyTorch, compiled code of each instruction set, or triton's interpreter."""
    threads(1)
    compute_by(request.param, monkeypatch)
    return request.param


def draw_weights(computed_by: str, heads: int = 2, batch: int = 2) -> list[Tensor]:
    """Query and key, as wide as there are keys, and unit vectors for values: the output is the weights."""
    query_len, key_len = LENGTHS.get(computed_by, (300, 250))
    query = torch.randn(batch, 2, query_len, key_len)
    key = torch.randn(batch, heads, key_len, key_len)
    return [query, key, torch.eye(key_len).expand_as(key)]


def draw_kept(states: list[Tensor], *seeds: int, **options) -> list[Tensor]:
    """D of calls with these seeds."""
    options = {**options, "activation": "sigmoid", "scale": 0.01}
    whole = rectified_attention(*states, **options)
    kept = []
    for seed in seeds:
        with mock.patch.object(torch, "randint", return_value=torch.tensor(seed)):
            kept.append(rectified_attention(*states, **options, dropout=SHARE) / whole)
    return kept


def test_dropout_leaves_its_share(computed_by):
    seeds = (1, 2) if computed_by == "blocks" else (1, 2, 1 + 2**32)  # torch's generator has 32 bits
    kept, *others = draw_kept(draw_weights(computed_by), *seeds)
    is_kept = kept > 0
    torch.testing.assert_close(kept[is_kept], torch.full_like(kept[is_kept], 1 / (1 - SHARE)))
    spread = 5 * (0.25 / kept.numel()) ** 0.5
    assert abs(is_kept.double().mean() - (1 - SHARE)) < spread
    for other in (*others, *(kept.roll(1, axis) for axis in range(4))):  # two fair draws agree in 57 %
        assert abs((is_kept == (other > 0)).double().mean() - SHARE**2 - (1 - SHARE) ** 2) < 2 * spread


@pytest.mark.parametrize("causal_offset", [None, 3])
@pytest.mark.parametrize("heads", [2, 1])
def test_every_task_and_pass_drops_the_same(heads, causal_offset, computed_by, threads):
    query, key, unit = draw_weights(computed_by, heads, batch=1)
    options = {"scale": 0.1, "is_causal": causal_offset is not None, "causal_offset": causal_offset}
    (kept,) = draw_kept([query, key, unit], 7, **options)
    value = torch.randn_like(unit)
    leaves = [part.requires_grad_() for part in (query, key, value)]
    exact = [part.detach().double().requires_grad_() for part in leaves]
    threads(1 if computed_by == "triton" else 5)
    with mock.patch.object(torch, "randint", return_value=torch.tensor(7)):
        output = rectified_attention(*leaves, **options, dropout=SHARE)
    threads(1)
    _, weights = naive(*exact, {**options, "activation": "relu"})
    values = exact[2].repeat_interleave(query.shape[1] // heads, 1)
    expected = ((kept > 0) / (1 - SHARE) * weights) @ values
    near(output, expected, 1e-5, "output")
    direction = torch.randn_like(output)
    gradients = torch.autograd.grad(output, leaves, direction)
    for found, right in zip(gradients, torch.autograd.grad(expected, exact, direction.double()), strict=True):
        near(found, right, 1e-5, "gradient")


@pytest.mark.parametrize("computed_by", [name for name in COMPUTATIONS if name != "blocks"], indirect=True)
def test_hidden_keys_are_never_read(computed_by):
    query, key, value, direction = (torch.randn(2, 2, length, 10) for length in (5, 40, 40, 5))
    visible = torch.rand(2, 40) < 0.8
    visible[0, :17] = False  # a whole tile before the first key
    visible[1, 18:] = False  # and after the last one
    hidden = ~visible[:, None, :, None]
    results = []
    for number in (1.0, torch.nan):
        states = [query, key.masked_fill(hidden, number), value.masked_fill(hidden, number)]
        states = [part.clone().requires_grad_() for part in states]
        options = {"activation": "softplus", "key_padding_mask": visible, "is_causal": True}
        output, statistics = rectified_attention(*states, **options, return_stats=True)
        gradients = torch.autograd.grad(output, states, direction)
        assert not gradients[1].masked_select(hidden).any()
        results.append([output, statistics.row_sums, statistics.weighted_logs, *gradients])
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_numbers_that_are_none_stay(computed_by):
    query, key, value = torch.randn(3, 1, 1, 4, 8)
    query[0, 0, 2, 0] = torch.nan
    for activation in ACTIVATIONS:
        output = rectified_attention(query, key, value, activation=activation)
        assert output.isnan().all(-1).squeeze().tolist() == [False, False, True, False], activation


@pytest.mark.parametrize("activation", native.ACTIVATIONS if BUILT else ACTIVATIONS)
@pytest.mark.parametrize("dtype", native.DTYPES if BUILT else [torch.float32])
def test_statistics_and_their_gradients(activation, dtype, computed_by):
    """Tolerances are above those of outputs: a logarithm's gradient is as inexact as a weight near 0."""
    if computed_by in LENGTHS and dtype == torch.bfloat16:  # in which triton's interpreter cannot compute
        return
    passes = fused_attention._passes(computed_by if computed_by in LENGTHS else "native")
    states = draw(2, 1, 20, 37, 10, dtype) if computed_by == "triton" else draw(2, 2, 40, 37, 10, dtype)
    options = draw_options(*states[:2], activation=activation)
    row_sums = compare(states, tolerance=max(1e-4, TOLERANCES[dtype]), passes=passes, **options)[1]
    sums, *others = passes[0](*states[:3], pass_options(**{**options, "needed_statistics": "sums"}))[1:]
    assert torch.equal(sums, row_sums)
    assert others == [None, None]


@pytest.mark.parametrize("activation", SPARSE_DISTRIBUTIONS)
@pytest.mark.parametrize("size", [0.0, 100.0])
def test_sparse_rows_sum_to_1(activation, size, computed_by):
    """Weights of a row add up, of uniform rows too, and of large scores; a threshold cancels."""
    length = {"blocks": 97, "triton": 20}.get(computed_by, 520)
    query, key, value = (torch.randn(2, 2, length, 16) for _ in range(3))
    ones = torch.ones_like(value)
    options = {"activation": activation, "is_causal": True, "key_padding_mask": torch.rand(2, length) > 0.3}
    output, statistics = rectified_attention(query * size, key, ones, **options, threshold=0.5, return_stats=True)
    is_seen = options["key_padding_mask"].cumsum(-1)[:, None] > 0
    torch.testing.assert_close(output[..., 0], is_seen.expand(2, 2, -1).float(), atol=1e-4, rtol=0)
    torch.testing.assert_close(statistics.row_sums, output[..., 0])


@pytest.mark.parametrize("needed", ["all", "sums", "none"])
def test_fake_tensors_are_laid_out_like_the_true_ones(needed, computed_by, threads):
    computation = computed_by if computed_by in LENGTHS else "native"
    if computation == "triton" and needed != "all":  # which take seconds there
        return
    threads(1 if computation == "triton" else 2)
    key_len = 600 if computation == "native" else 7  # of which several tasks share a head
    query, key, value, grad_output = (
        torch.randn(2, length, 3, 8).transpose(1, 2) for length in (5, key_len, key_len, 5)
    )
    tensors = (torch.tensor([0.1]), torch.rand(2, 5), torch.rand(2, key_len) < 0.8, torch.tensor(3))
    options = PassOptions(*tensors, scale=0.3, causal_offset=1, dropout=0.25, needed_statistics=needed)
    inputs = (query, key, value, computation, *options)
    tests = {"test_utils": ("test_schema", "test_faketensor")}
    torch.library.opcheck(fused_attention._operator, inputs, **tests)
    sums = torch.rand(2, 3, 5) if needed == "all" else None
    torch.library.opcheck(fused_attention._backward_operator, (grad_output, sums, None, *inputs), **tests)
