"""The Triton kernels against float64 in triton's interpreter.

`test_triton_attention.py` starts this file in a process of its own, as the interpreter must be chosen before triton is
imported (TRITON_INTERPRET=1). It cannot compute in bfloat16: that, real tiles and long sequences are left to
`test_triton_on_gpu.py`.
"""

import math

import pytest
import torch
from torch import Tensor

from builders.triton_inputs import (
    ACTIVATIONS,
    SHARE,
    assert_near,
    compare,
    draw,
    draw_options,
    pass_options,
)
from reluformers_kernels import fused_attention as fused
from reluformers_kernels import triton_attention
from reluformers_kernels.activations import PassOptions
from reluformers_kernels.triton_attention import triton_backward, triton_forward


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_everything_at_once(activation):
    query, key, *others = draw()
    compare((query, key, *others), activation=activation, **draw_options(query, key))


def test_float16_weights_are_divided_before_they_are_rounded():
    query, *others = draw(dtype=torch.float16)
    options = {"activation": "relu2", "scale": 100.0, "row_factors": torch.full((1, 20), 2.0**-12)}
    assert (100.0 * query.double() @ others[0].double().mT).square().max() > 2.0**17
    compare((query, *others), **options)


def test_hidden_keys_are_never_read():
    query, key, value, grad_output = draw(2, 1, 5, 40)
    options = draw_options(query, key, activation="softplus")
    hidden = ~options["key_padding_mask"][:, None, :, None]
    expected = compare((query, key, value, grad_output), **options)
    key, value = key.masked_fill(hidden, math.nan), value.masked_fill(hidden, math.inf)
    for part, right in zip(triton_forward(query, key, value, pass_options(**options)), expected, strict=True):
        assert torch.equal(part, right)
    gradients = triton_backward(grad_output, None, None, query, key, value, pass_options(**options))
    assert all(part.isfinite().all() for part in gradients)


def test_numbers_that_are_none_stay():
    query, key, value, _ = draw(1, 1, 4, 4)
    query[0, 0, 2, 0] = math.nan
    for activation in ACTIVATIONS:
        output = triton_forward(query, key, value, pass_options(activation=activation, scale=1.0))[0]
        assert output.isnan().all(-1).squeeze().tolist() == [False, False, True, False], activation


def test_faint_weights_of_softplus_count():
    query, key, value, _ = draw(1, 1, 4, 5, 2)
    options = {"activation": "softplus", "scale": 0.0, "threshold": 30.0, "needed_statistics": "all"}
    _, row_sums, _, nonzeros = triton_forward(query, key, value, pass_options(**options))
    assert (nonzeros == 5).all()
    torch.testing.assert_close(row_sums, torch.full_like(row_sums, 5 * math.exp(-30)))


def draw_kept(*seeds: int) -> list[Tensor]:
    """D of calls on 2 × 2 heads of 15 queries and 32 keys, read off the output with the unit matrix for values."""
    query, key, value, _ = draw(2, 2, 15, 32, 32)
    value = torch.eye(32).expand_as(value)
    options = {"activation": "sigmoid", "scale": 0.1}
    whole = triton_forward(query, key, value, pass_options(**options))[0]
    options["dropout"] = SHARE
    return [
        triton_forward(query, key, value, pass_options(seed=torch.tensor([seed]), **options))[0] / whole
        for seed in seeds
    ]


def test_dropout_leaves_its_share():
    kept, *others = draw_kept(1, 2, 1 + 2**32)
    is_kept = kept > 0
    torch.testing.assert_close(kept[is_kept], torch.full_like(kept[is_kept], 1 / (1 - SHARE)))
    assert abs(is_kept.double().mean() - (1 - SHARE)) < 0.05
    for other in (*others, *(kept.roll(1, axis) for axis in range(4))):  # two fair draws agree in 57 %
        assert abs((is_kept == (other > 0)).double().mean() - SHARE**2 - (1 - SHARE) ** 2) < 0.06


def test_dropout_is_the_same_in_every_tile(monkeypatch):
    (kept,) = draw_kept(5)
    for queries, keys in ((32, 16), (16, 32), (16, 64), (16, 128)):
        monkeypatch.setattr(triton_attention, "INTERPRETER_TILE", (queries, keys, 4, 1))
        torch.testing.assert_close(draw_kept(5)[0] > 0, kept > 0)


def test_dropout_is_rounded_to_what_a_byte_can_say():
    query, key, _, _ = draw(1, 1, 100, 128, 128)
    options = {"activation": "sigmoid", "scale": 0.1}
    unit = torch.eye(128).expand(1, 1, -1, -1)
    whole = triton_forward(query, key, unit, pass_options(**options))[0]
    kept = triton_forward(query, key, unit, pass_options(dropout=0.1, seed=torch.tensor(3), **options))[0] / whole
    torch.testing.assert_close(kept[kept > 0], torch.full_like(kept[kept > 0], 256 / 230))
    assert abs((kept > 0).double().mean() - 230 / 256) < 0.01
    # every bit of a byte is drawn, of every place in a word: no key and no row is dropped more often than others
    assert ((kept == 0).double().mean(-2) < 0.25).all()
    for dropped in (0.001, 0.9999):  # none at all, and all but a 256th
        part = triton_forward(query, key, unit, pass_options(dropout=dropped, seed=torch.tensor(3), **options))[0]
        assert (part != 0).double().mean() == pytest.approx(1 - min(round(dropped * 256), 255) / 256, abs=0.002)


@pytest.mark.parametrize("everything", [False, True])
def test_gradients_drop_what_the_output_dropped(everything):
    query, key, *others = draw(2, 2, 15, 32)
    kept = (draw_kept(7)[0] > 0).double() / (1 - SHARE)
    options = draw_options(query, key) if everything else {"scale": 0.5}
    compare((query, key, *others), kept, activation="relu", dropout=SHARE, seed=torch.tensor([7]), **options)


@pytest.mark.parametrize("has_statistics", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 15, 1), (1, 6, 1, 1), (2, 6, 15, 1)], ids=str)
@pytest.mark.parametrize("heads", [6, 2])
def test_thresholds_of_rows(heads, shape, has_statistics, monkeypatch):
    query, key, value = (part.requires_grad_() for part in draw(2, 6, 15, 32, 24)[:3])
    key, value = key[:, :heads], value[:, :heads]
    threshold = torch.rand(shape).requires_grad_()
    divisor = torch.rand(2, 1, 15, 1) + 0.5

    def attend(query, key, value, threshold):
        found = fused.attention(
            query,
            key,
            value,
            activation="relu2",
            scale=0.4,
            threshold=threshold,
            divisor=divisor.to(query.dtype),
            key_padding_mask=None,
            causal_offset=5,
            needed_statistics="sums" if has_statistics else "none",
        )
        return [part for part in found if part is not None]

    leaves = (query, key, value, threshold)
    expected = with_gradients(attend, [part.detach().double().requires_grad_() for part in leaves])  # by blocks
    monkeypatch.setattr(fused, "choose_computation", lambda *call, **options: "triton")
    for part, right in zip(with_gradients(attend, leaves), expected, strict=True):
        assert_near(part, right, 1e-5)


def with_gradients(attend, inputs):
    """Call a function; what it gives, and the gradients of its inputs for fixed directions."""
    outputs = attend(*inputs)
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(part.shape, generator=generator).to(part) for part in outputs]
    return [part.detach() for part in (*outputs, *torch.autograd.grad(outputs, inputs, directions))]


@pytest.mark.parametrize("computation", ["triton", "blocks"])
@pytest.mark.parametrize("needed", ["all", "sums", "none"])
def test_fake_tensors_are_laid_out_like_the_true_ones(computation, needed):
    query, key, value, grad_output = draw(2, 3, 5, 7, 8)
    tensors = (torch.tensor([0.1]), torch.rand(2, 5), torch.rand(2, 7) < 0.8, torch.tensor(3))
    options = PassOptions(*tensors, scale=0.3, causal_offset=1, dropout=0.25, needed_statistics=needed)
    inputs = (query, key, value, computation, *options)
    torch.library.opcheck(fused._operator, inputs, test_utils=("test_schema", "test_faketensor"))
    sums = torch.rand(2, 3, 5) if needed == "all" else None
    inputs = (grad_output, sums, None, *inputs)
    torch.library.opcheck(fused._backward_operator, inputs, test_utils=("test_schema", "test_faketensor"))
    if computation == "triton":
        of_rows = (*inputs[:7], torch.rand(2, 3, 5), *inputs[8:])
        torch.library.opcheck(fused._backward_operator, of_rows, test_utils=("test_schema", "test_faketensor"))
