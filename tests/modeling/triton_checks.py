"""The Triton kernels against float64 in triton's interpreter.

`test_triton_attention.py` starts this file in a process of its own, as the interpreter must be chosen before triton is
imported (TRITON_INTERPRET=1). It cannot compute in bfloat16: that, real tiles and long sequences are left to
`test_triton_on_gpu.py`.
"""

import math

import pytest
import torch

from builders.triton_inputs import (
    assert_near,
    compare,
    draw,
    pass_options,
)
from reluformers_kernels import PassOptions, triton_attention
from reluformers_kernels import fused_attention as fused
from reluformers_kernels.triton_attention import triton_forward

from .test_attention_matrix import compute_by
from .test_every_computation import draw_kept, draw_weights


def test_float16_weights_are_divided_before_they_are_rounded():
    query, *others = draw(dtype=torch.float16)
    options = {"activation": "relu2", "scale": 100.0, "row_factors": torch.full((1, 20), 2.0**-12)}
    assert (100.0 * query.double() @ others[0].double().mT).square().max() > 2.0**17
    compare((query, *others), **options)


def test_faint_weights_of_softplus_count():
    query, key, value, _ = draw(1, 1, 4, 5, 2)
    options = {"activation": "softplus", "scale": 0.0, "threshold": 30.0, "needed_statistics": "all"}
    _, row_sums, _, nonzeros = triton_forward(query, key, value, pass_options(**options))
    assert (nonzeros == 5).all()
    torch.testing.assert_close(row_sums, torch.full_like(row_sums, 5 * math.exp(-30)))


def test_dropout_is_the_same_in_every_tile(monkeypatch):
    compute_by("triton", monkeypatch)
    states = draw_weights("triton")
    (kept,) = draw_kept(states, 5)
    for queries, keys in ((32, 16), (16, 128)):
        monkeypatch.setattr(triton_attention, "INTERPRETER_TILE", (queries, keys, 4, 1))
        torch.testing.assert_close(draw_kept(states, 5)[0] > 0, kept > 0)


def test_dropout_is_rounded_to_what_a_byte_can_say():
    query, key, _, _ = draw(1, 1, 64, 128, 128)
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
        assert (part != 0).double().mean() == pytest.approx(1 - min(round(dropped * 256), 255) / 256, abs=0.003)


@pytest.mark.parametrize(
    ("heads", "shape", "has_statistics"),
    [(6, (1, 1, 15, 1), False), (2, (1, 6, 1, 1), False), (6, (2, 6, 15, 1), True), (2, (2, 6, 15, 1), False)],
)
def test_thresholds_of_rows(heads, shape, has_statistics, monkeypatch):
    query, key, value = (part.requires_grad_() for part in draw(2, 6, 15, 32, 24)[:3])
    key, value = key[:, :heads], value[:, :heads]
    threshold = torch.rand(shape).requires_grad_()
    divisor = torch.rand(2, 1, 15, 1) + 0.5

    def attend(query, key, value, threshold):
        options = PassOptions(
            learned_threshold=threshold.squeeze(-1),
            activation="relu2",
            scale=0.4,
            causal_offset=5,
            needed_statistics="sums" if has_statistics else "none",
        )
        found = fused.fastest_attention(query, key, value, options, divisor.to(query.dtype), may_write_out=False)
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
