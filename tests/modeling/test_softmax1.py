"""Softmax off by one from flash attention against its formula in float64, with gradients."""

import pytest
import torch

from reluformers_kernels import softmax1

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}


def written_out(query, key, value, threshold, visible):
    scores = (0.3 * query @ key.mT).masked_fill(~visible, -torch.inf)
    extra = threshold.expand(*scores.shape[:-1], 1)
    return torch.cat([scores, extra], -1).softmax(-1)[..., :-1] @ value


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
@pytest.mark.parametrize("threshold", [0.0, 1.5, (1, 3, 1, 1), (1, 1, 7, 1)], ids=str)
def test_output_and_gradients(dtype, kind, threshold):
    states = [torch.randn(2, 7, 3, 8).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    visible = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    if kind == "causal":
        visible = visible.tril()
    elif kind == "mask":
        visible = torch.rand(2, 1, 7, 7) < 0.6
        visible[0, :, 2] = False  # a query that sees nothing
    given = torch.randn(threshold).to(dtype).requires_grad_() if isinstance(threshold, tuple) else threshold
    options = {"threshold": given, "scale": 0.3, "is_causal": kind == "causal"}
    output = softmax1(*states, mask=visible if kind == "mask" else None, **options)
    leaves = [part for part in (*states, given) if isinstance(part, torch.Tensor)]
    wide = [part.detach().double().requires_grad_() for part in leaves]
    theta = wide[3] if len(wide) > 3 else torch.tensor(threshold, dtype=torch.float64)
    expected = written_out(*wide[:3], theta, visible)
    direction = torch.randn(output.shape).to(dtype)
    found = (output, *torch.autograd.grad(output, leaves, direction))
    right = (expected, *torch.autograd.grad(expected, wide, direction.double()))
    for one, other in zip(found, right, strict=True):
        limit = TOLERANCES[dtype] * max(1.0, other.abs().max().item())
        torch.testing.assert_close(one.double(), other, rtol=TOLERANCES[dtype], atol=limit)


def test_what_it_does_not_know_is_left_to_others():
    states = [torch.randn(1, 2, 4, 8) for _ in range(3)]
    assert softmax1(*states, threshold=0.0, scale=1.0, dropout=0.1) is None
    assert softmax1(*(part.half() for part in states), threshold=0.0, scale=1.0) is None
    assert softmax1(*states[:2], torch.randn(1, 2, 4, 6), threshold=0.0, scale=1.0) is None
