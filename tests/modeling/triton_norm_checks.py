"""Norms in triton's interpreter, or on a GPU, against float64: run by `test_triton_attention.py`.

On a GPU: pytest tests/modeling/triton_norm_checks.py
"""

import pytest
import torch

from reluformers.modeling.normalization import _plain_norm
from reluformers_kernels import triton_norms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = {"unit": (False, False, False), "scaled": (True, False, False), "rms": (True, False, True)}
KINDS |= {"gated": (True, True, True), "one scale": (True, False, False)}


@pytest.mark.parametrize("shape", [(3, 4, 2, 16), (2, 5, 3), (7, 1), (1, 130), (40, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_gradients(kind, dtype, shape, monkeypatch):
    monkeypatch.setattr(triton_norms, "PROGRAMS", 3)  # so that a program walks over several blocks of rows
    monkeypatch.setattr(triton_norms, "NUMBERS", 64)
    has_gain, has_gate, is_mean = KINDS[kind]
    states = (3 * torch.randn(shape, device=DEVICE)).to(dtype)
    if not is_mean:
        states[..., 0, :] = 0
    gain, gate = (torch.randn(shape[-1], device=DEVICE) if there else None for there in (has_gain, has_gate))
    if kind == "one scale":
        gain = gain[:1]
    grad_output = torch.randn(shape, device=DEVICE).to(dtype)
    vectors = (None if gain is None else gain.expand(shape[-1]), gate)
    output = triton_norms.norm_forward(states, *vectors, 1e-6, is_mean)
    grads = triton_norms.norm_backward(grad_output, states, *vectors, 1e-6, is_mean)
    wide = [None if part is None else part.double().requires_grad_() for part in (states, gain, gate)]
    expected = _plain_norm(*wide, 1e-6, is_mean)
    wanted = torch.autograd.grad(expected, [part for part in wide if part is not None], grad_output.double())
    tolerance = 2e-6 if dtype == torch.float32 else 2**-6
    found = [output, *(grad for grad in grads if grad is not None)]
    for actual, right in zip(found, (expected, *wanted), strict=True):
        limit = tolerance * max(1.0, right.abs().max().item())
        torch.testing.assert_close(actual.double(), right, rtol=tolerance, atol=limit)
