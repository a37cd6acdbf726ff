"""Calls of the fused passes, those of Triton unless others are named, and the same in float64."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from builders.attention_calls import naive
from reluformers_kernels.activations import PassOptions
from reluformers_kernels.triton_attention import triton_backward, triton_forward

ACTIVATIONS = ("relu", "relu2", "relu6", "leaky_relu", "gelu", "softplus", "sigmoid", "identity")
SHARE = 0.3125  # of dropout, in whole 256ths
TRITON = (triton_forward, triton_backward)
TOLERANCES = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}  # of the largest number


def draw(
    batch: int = 2,
    heads: int = 1,
    query_len: int = 20,
    key_len: int = 37,
    head_dim: int = 10,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and gradient of the output [batch, heads, length, head_dim], as they lie in a model."""
    lengths = (query_len, key_len, key_len, query_len)
    return tuple(torch.randn(batch, n, heads, head_dim, device=device).to(dtype).transpose(1, 2) for n in lengths)


def pass_options(threshold: float | Tensor = 0.0, **options) -> PassOptions:
    """Options of a pass; a threshold that is a tensor is a learned one."""
    name = "learned_threshold" if isinstance(threshold, Tensor) else "threshold"
    return PassOptions(**{name: threshold}, **options)


def draw_options(query: Tensor, key: Tensor, **options) -> dict[str, Any]:
    """Everything at once: a threshold, row factors, hidden keys of all kinds, a causal mask and statistics."""
    key_padding_mask = torch.rand(len(query), key.shape[2], device=query.device) < 0.8
    key_padding_mask[0, :17] = False  # a whole tile before the first key
    key_padding_mask[-1, 18:] = False  # and after the last one
    row_factors = torch.rand(len(query), query.shape[2], device=query.device) + 0.5
    threshold = torch.tensor([0.1], device=query.device)
    defaults = {
        "scale": 0.4,
        "threshold": threshold,
        "key_padding_mask": key_padding_mask,
        "row_factors": row_factors,
        "needed_statistics": "all",
    }
    return {**defaults, "causal_offset": 12, **options}


def assert_near(actual: Tensor, expected: Tensor, tolerance: float, name: str = "") -> None:
    assert actual.shape == expected.shape, name
    error = (actual.double() - expected).abs().max().item() if expected.numel() else 0.0
    assert error <= tolerance * max(expected.abs().max().item() if expected.numel() else 0.0, 1e-3), (name, error)


def compare(
    states: tuple[Tensor, ...],
    kept: Tensor | float = 1.0,
    tolerance: float | None = None,
    passes: tuple[Callable, Callable] = TRITON,
    **options,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Check values and gradients of a call; returns the values."""
    query, key, value, grad_output = states
    options = {"threshold": 0.0, "needed_statistics": "none", **options}
    needs_statistics = options["needed_statistics"] == "all"
    tolerance = tolerance or TOLERANCES[query.dtype]
    leaves = [part.double().requires_grad_() for part in (query, key, value)]
    threshold = torch.tensor(float(options["threshold"]), device=query.device, dtype=torch.float64).requires_grad_()
    offset = options.get("causal_offset")
    row_factors = options.get("row_factors")
    _, weights = naive(*leaves, {**options, "threshold": threshold, "is_causal": offset is not None})
    output = (kept * weights) @ leaves[2]
    if row_factors is not None:
        output = row_factors.double()[:, None, :, None] * output
    logs = weights.clamp_min(torch.finfo(torch.float32).tiny).log()
    expected = output, weights.sum(-1), (weights * logs).sum(-1), (weights != 0).sum(-1)
    actual = passes[0](query, key, value, pass_options(**options))
    assert actual[0].dtype == query.dtype
    assert actual[0].transpose(1, 2).is_contiguous()
    for name, part, right in zip(("output", "t", "u", "z"), actual, expected, strict=True):
        if name == "z" and needs_statistics and (query.is_cuda or passes is not TRITON):
            assert ((part - right).abs() <= 2).all()  # scores that are 0 but for the rounding of long sums
        elif name == "output" or needs_statistics:
            assert_near(part, right.detach(), tolerance, name)
        else:
            assert part is None
    grads = [grad_output, None, None]
    if needs_statistics:
        grads[1:] = (torch.randn_like(part) for part in actual[1:3])
    loss = sum((part * grad).sum() for part, grad in zip(expected, grads, strict=False) if grad is not None)
    right = torch.autograd.grad(loss, [*leaves, threshold])
    gradients = passes[1](*grads, query, key, value, pass_options(**options))
    for name, part, expected_part in zip(("query", "key", "value"), gradients, right, strict=False):
        assert_near(part, expected_part, tolerance, f"gradient of {name}")
    if isinstance(options["threshold"], Tensor):
        # one sum over all scores, large numbers of both signs
        torch.testing.assert_close(gradients[3].double(), right[3], rtol=20 * tolerance, atol=20 * tolerance)
    else:
        assert gradients[3] is None or gradients[3] == 0
    return actual
