"""The Triton kernels against float64 on a GPU: real tiles, bfloat16, long sequences."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from builders.triton_inputs import (
    ACTIVATIONS,
    SHARE,
    TOLERANCES,
    assert_near,
    compare,
    draw,
    draw_options,
    pass_options,
)
from reluformers import rectified_attention
from reluformers_kernels import PassOptions, triton_attention
from reluformers_kernels.blockwise_attention import blockwise_thresholds
from reluformers_kernels.computation import choose_computation
from reluformers_kernels.triton_attention import TILES, triton_backward, triton_forward, triton_thresholds

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def draw_on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Tensors, and options with everything but an activation.

    Queries and keys are quarters, whose products float32 adds up without rounding: 1 + log w, the derivative of the
    statistic Σ w·log w, has no bound at w = 0, and where a score is rounded there, float32 is 1e-4 off in any code.
    The scale is a power of 2, so that float64 has no other sign of a score that is 0.
    """
    query, key, *others = draw(*shape, dtype=dtype, device="cuda")
    query, key = ((4 * part).round() / 4 for part in (query, key))
    return (query, key, *others), draw_options(query, key, scale=0.5 ** round(math.log2(4 * shape[-1]) / 2))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_on_gpu(activation, dtype):
    states, options = draw_on_gpu(2, 2, 333, 450, 64, dtype=dtype)
    compare(states, activation=activation, **options)
    compare(states, activation=activation, scale=options["scale"])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [8, 16, 40, 64, 80, 128, 192, 256])
def test_head_sizes_on_gpu(head_dim, dtype):
    states, options = draw_on_gpu(2, 2, 200, 300, head_dim, dtype=dtype)
    compare(states, activation="relu", **options)


@pytest.mark.parametrize("causal_offset", [None, 0, -40, 900])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3000), (17, 1000), (1024, 1024), (129, 65), (2047, 2049)])
def test_lengths_on_gpu(lengths, causal_offset):
    states, _ = draw_on_gpu(2, 3, *lengths, 64)
    row_factors = torch.rand(1, lengths[0], device="cuda")
    compare(states, activation="relu", scale=0.125, row_factors=row_factors, causal_offset=causal_offset)


def check_thresholds(query: Tensor, key: Tensor, **options) -> None:
    """θ of both distributions, beside those of blocks in float64."""
    for activation in ("relu", "relu2"):
        found = triton_thresholds(query, key, pass_options(activation=activation, **options))
        exact = blockwise_thresholds(query.double(), key.double(), pass_options(activation=activation, **options))
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)  # of rows that see nothing both are ∞


@pytest.mark.parametrize("lengths", [(1, 1), (1, 3000), (129, 65), (2047, 2049)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_thresholds_on_gpu(dtype, lengths):
    (query, key, *_), _ = draw_on_gpu(2, 3, *lengths, 64, dtype=dtype)
    check_thresholds(query, key, scale=0.125)
    key_padding_mask = torch.rand(2, lengths[1], device="cuda") < 0.8
    first_keys = torch.arange(lengths[0], device="cuda")[None] - 40
    check_thresholds(
        query, key, scale=0.125, causal_offset=3, key_padding_mask=key_padding_mask, first_keys=first_keys
    )


@pytest.mark.parametrize(
    ("name", "size", "tile"),
    [(name, size, tile) for name, sizes in TILES.items() for size, tiles in sizes.items() for tile in tiles],
)
def test_tiles_on_gpu(monkeypatch, name, size, tile):
    from triton.runtime.errors import OutOfResources

    chosen = triton_attention.tile_of
    monkeypatch.setattr(triton_attention, "tile_of", lambda kernel, *_: tile if kernel == name else chosen(kernel, *_))
    dtype, head_dim = (torch.float32, 64) if size == "float32" else (torch.bfloat16, size)
    states, options = draw_on_gpu(1, 2, 300, 400, head_dim, dtype=dtype)
    try:
        compare(states, activation="relu", scale=options["scale"], causal_offset=7)
        compare(states, activation="gelu", **options)
        check_thresholds(*states[:2], scale=options["scale"], causal_offset=7)
    except OutOfResources as error:
        pytest.skip(f"too large for this GPU: {error}")


def test_a_kept_kernel_gives_the_same_on_gpu():
    states, options = draw_on_gpu(1, 2, 300, 400, 64)
    first = compare(states, activation="relu", **options)
    for part, again in zip(first, compare(states, activation="relu", **options), strict=True):
        assert torch.equal(part, again)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_dropout_on_gpu(dtype):
    (query, key, value, grad_output), options = draw_on_gpu(2, 2, 500, 64, 64, dtype=dtype)
    seed = torch.tensor([2**40 + 7], device="cuda")
    unit = torch.eye(64, device="cuda", dtype=dtype).expand_as(value)
    output = triton_forward(query, key, unit, pass_options(activation="sigmoid", scale=0.1, dropout=SHARE, seed=seed))[
        0
    ]
    kept = (output > 0).double() / (1 - SHARE)
    assert abs(kept.mean() - 1) < 0.02
    compare((query, key, value, grad_output), kept, activation="relu", dropout=SHARE, seed=seed, **options)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_rectified_attention_on_gpu(is_compiled):
    """float64, which blocks compute, is what the kernels are held against."""
    *states, grad_output = draw(2, 4, 300, 300, 64, torch.bfloat16, "cuda")
    leaves = [part.requires_grad_() for part in states]
    exact = [part.detach().double().requires_grad_() for part in states]
    computations = [choose_computation(*states, PassOptions(activation="relu")) for states in (leaves, exact)]
    assert computations == ["triton", "blocks"]
    options = {"is_causal": True, "length_exponent": 1.0, "threshold": torch.tensor([0.1], device="cuda")}
    function = torch.compile(rectified_attention, fullgraph=True) if is_compiled else rectified_attention
    output = function(*leaves, **options)
    expected = rectified_attention(*exact, **options)
    assert_near(output, expected, TOLERANCES[torch.bfloat16])
    gradients = torch.autograd.grad(output, leaves, grad_output)
    for part, right in zip(gradients, torch.autograd.grad(expected, exact, grad_output.double()), strict=True):
        assert_near(part, right, TOLERANCES[torch.bfloat16])


def test_more_than_two_billion_numbers():
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB")
    states = draw(2**14 + 1, 16, 128, 128, 64, torch.bfloat16, "cuda")
    assert states[0].numel() > 2**31
    options = {"activation": "relu", "scale": 0.125, "causal_offset": 0}
    output = triton_forward(*states[:3], pass_options(**options))[0]
    gradients = triton_backward(states[3], None, None, *states[:3], pass_options(**options))
    last = tuple(part[-1:].contiguous() for part in states)
    assert torch.equal(output[-1:], triton_forward(*last[:3], pass_options(**options))[0])
    of_last = triton_backward(last[3], None, None, *last[:3], pass_options(**options))
    for part, right in zip(gradients[:3], of_last[:3], strict=True):
        assert torch.equal(part[-1:], right)
