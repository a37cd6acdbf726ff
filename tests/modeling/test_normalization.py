"""Norms by PyTorch, by compiled code and by Triton against their formulas, and which calls are whose.

`test_triton_attention.py` runs this file in triton's interpreter as well.
"""

import math
import os
from unittest import mock

import pytest
import torch

import reference
from builders.attention_calls import near
from builders.covering import covering
from builders.models import build_model
from reluformers.configuration.configuration_vision import VisionTransformerConfig
from reluformers.modeling.normalization import OUTPUT_NORMS, GatedRMSNorm, RMSNorm, build_norm, unit_length
from reluformers_kernels import norms, triton_norms
from reluformers_kernels.compiled import native

BUILT = native.usable_instruction_sets() if native is not None and native.is_available() else []
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_code = pytest.mark.skipif(not BUILT or IS_INTERPRETED, reason="needs compiled code for this processor")
WIDE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
FORMULAS = {
    "unit_length": lambda x, p, eps: reference.unit(x),
    "scaled": lambda x, p, eps: p["weight"] * reference.unit(x),
    "rms_norm": lambda x, p, eps: reference.rms_norm(x, p["weight"], eps),
    "gated_rms_norm": lambda x, p, eps: reference.gated_rms_norm(x, p["weight"], p["gate"], eps),
    "scale_norm": lambda x, p, eps: reference.scale_norm(x, p["weight"], eps),
    "layer_norm": lambda x, p, eps: reference.layer_norm(x, p["weight"], p["bias"], eps),
    "output_layer_norm": lambda x, p, eps: reference.layer_norm(x, p["weight"], 0.0, eps),
    "gated_layer_norm": lambda x, p, eps: (
        reference.sigmoid(p["gate"] * x) * reference.layer_norm(x, p["weight"], 0.0, eps)
    ),
}
TAKEN = ("unit_length", "scaled", "rms_norm", "gated_rms_norm", "scale_norm")  # by compiled code and Triton


class Scaled(torch.nn.Module):
    """Unit length with one gain for all columns, as a learned scale is, or with none."""

    def __init__(self, has_gain: bool):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1)) if has_gain else None

    def forward(self, states):
        return unit_length(states, gain=self.weight)


def build(name, width, eps=1e-6) -> torch.nn.Module:
    if name in ("unit_length", "scaled"):
        module = Scaled(name == "scaled")
    elif name in ("gated_rms_norm", "gated_layer_norm", "output_layer_norm"):
        module = OUTPUT_NORMS[name.removeprefix("output_")](width, eps)
    else:
        sizes = {"hidden_size": width, "num_attention_heads": 1, "intermediate_size": 4, "num_hidden_layers": 1}
        module = build_norm(VisionTransformerConfig(**sizes, norm_type=name, layer_norm_eps=eps))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def compute_by(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch (`plain`), compiled code of an instruction set or Triton take every norm that it can."""
    if name == "plain":
        monkeypatch.setattr(norms, "native", None)
    elif name == "triton":
        monkeypatch.setattr(norms, "_is_taken", lambda *tensors: True)
        monkeypatch.setattr(norms, "_code_for", lambda states: triton_norms)
        monkeypatch.setattr(triton_norms, "PROGRAMS", 3)  # so that a program walks over several blocks of rows
        monkeypatch.setattr(triton_norms, "NUMBERS", 64)
    else:
        monkeypatch.setattr(norms, "FEWEST_NUMBERS", 1)
        monkeypatch.setattr(native, "instruction_set", lambda: name)


SHAPES = ((3, 4, 2, 16), (2, 5, 3), (7, 1), (1, 130), (5, 3, 0, 8), (11, 64))
FACTORS = {"shape": SHAPES, "eps": (1e-5, 1.0), "threads": (1, 3), "has_wide_parameters": (False, True)}
FACTORS["default"] = (torch.float32, torch.bfloat16)  # type of new tensors, which scratch memory is not
TAKEN_TYPES = (torch.float32, torch.bfloat16)
CASES = []
if not IS_INTERPRETED:
    CASES += covering(
        computed_by=("plain",), name=tuple(FORMULAS), dtype=WIDE, **FACTORS | {"has_wide_parameters": (False,)}
    )
    CASES += covering(computed_by=BUILT, name=TAKEN, dtype=TAKEN_TYPES, **FACTORS) if BUILT else []
if IS_INTERPRETED or torch.cuda.is_available():
    with_numbers = {**FACTORS, "shape": SHAPES[:4] + SHAPES[5:]}
    CASES += covering(computed_by=("triton",), name=TAKEN, dtype=TAKEN_TYPES, **with_numbers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_values_and_gradients(case, monkeypatch, threads):
    compute_by(case["computed_by"], monkeypatch)
    threads(case["threads"])
    name = case["name"]
    dtype = case["dtype"]
    shape = case["shape"]
    device = "cuda" if case["computed_by"] == "triton" and torch.cuda.is_available() else "cpu"
    module = build(name, shape[-1], case["eps"]).to(device, None if case["has_wide_parameters"] else dtype)
    states = 3 * torch.randn(shape, device=device)
    states[:1] *= 0.1  # shorter than the larger ε
    inputs = (states.to(dtype).requires_grad_(), *module.parameters())
    exact = [part.detach().double().requires_grad_() for part in inputs]
    parameters = dict(zip((key for key, _ in module.named_parameters()), exact[1:], strict=True))
    # neither the input nor the gradient need be contiguous
    output = module(inputs[0].expand(2, *shape))
    expected = FORMULAS[name](exact[0].expand(2, *shape), parameters, case["eps"])
    assert output.dtype == dtype or case["has_wide_parameters"]
    direction = torch.randn(2, *shape[:-1], 2 * shape[-1], device=device)[..., ::2].to(dtype)
    torch.set_default_dtype(case["default"])
    try:
        gradients = torch.autograd.grad(output, inputs, direction)
    finally:
        torch.set_default_dtype(torch.float32)
    wanted = torch.autograd.grad(expected, exact, direction.double())
    tolerance = (4 if dtype.itemsize == 2 else 32) * max(torch.finfo(dtype).eps, 1e-12)
    for found, right in zip((output, *gradients), (expected, *wanted), strict=True):
        near(found, right, tolerance, name)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("name", ["gated_rms_norm", "gated_layer_norm", "rms_norm", "scale_norm"])
def test_zero_vector_stays_zero_with_finite_gradients(name, dtype):
    # the gradient at 0 is g/√ε, or g/ε with ScaleNorm: ε is large enough for it to fit into fp16
    module = build(name, 5, 1e-3 if name == "scale_norm" else 1e-8).to(dtype)
    hidden = torch.zeros(1, 5, dtype=dtype, requires_grad=True)
    output = module(hidden)
    assert not output.any()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in (hidden, *module.parameters()))


@pytest.mark.parametrize("dtype", TAKEN_TYPES if IS_INTERPRETED else WIDE)
@pytest.mark.parametrize("computed_by", ["triton"] if IS_INTERPRETED else ["plain", *BUILT])
def test_lengths_of_extreme_rows(computed_by, dtype, monkeypatch):
    compute_by(computed_by, monkeypatch)
    large = 1.5e5 if dtype == torch.float16 else torch.finfo(dtype).max ** 0.48  # float16 has no such length
    rows = torch.tensor([[0.3, 0.4], [-0.3 * large, 0.4 * large], [3e-4, 4e-4], [0.0, 0.0]], dtype=torch.float64)
    states = rows.to(dtype).requires_grad_()
    output = unit_length(states)
    expected = torch.tensor([[0.6, 0.8], [-0.6, 0.8], [0.6, 0.8], [0.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(output, expected, rtol=2e-2 if dtype.itemsize == 2 else 1e-6, atol=0)
    gradient = torch.autograd.grad(output.sum(), states)[0]
    assert gradient.isfinite().all()
    assert gradient[3].tolist() == [1, 1]


@pytest.fixture
def calls(monkeypatch) -> list:
    """What compiled code is called with, for as few numbers as there are."""
    forward = mock.Mock(wraps=native.norm_forward)
    monkeypatch.setattr(norms, "FEWEST_NUMBERS", 1)
    monkeypatch.setattr(native, "norm_forward", forward)
    return forward.call_args_list


@needs_code
@pytest.mark.parametrize(("gain", "gate"), [(8, 16), (16, 8), (32, 16)])
def test_parameters_that_do_not_fit_never_reach_compiled_code(gain, gate, calls):
    module = GatedRMSNorm(16)
    module.weight, module.gate = (torch.nn.Parameter(torch.ones(width)) for width in (gain, gate))
    with pytest.raises(RuntimeError):
        module(torch.randn(4, 16))
    with pytest.raises(RuntimeError):
        RMSNorm(16).to("meta")(torch.randn(4, 16))
    assert not calls


@needs_code
def test_a_gate_of_large_numbers_by_compiled_code(calls):
    module = GatedRMSNorm(3)
    with torch.no_grad():
        module.gate.fill_(1.0)
    large = torch.tensor([[300.0, -300.0, 0.0]], requires_grad=True)
    gated = module(large)
    assert gated.tolist()[0] == pytest.approx([math.sqrt(1.5), 0, 0], abs=1e-6)
    gated.sum().backward()
    assert large.grad.isfinite().all()
    assert module(torch.full((1, 3), math.nan)).isnan().all()
    assert len(calls) == 2


@needs_code
@pytest.mark.parametrize("name", ["unit_length", "scaled", "rms_norm", "gated_rms_norm"])
def test_compiled_norms_can_be_transformed(name, calls):
    module = build(name, 8)
    states = torch.randn(4, 8, requires_grad=True)

    def loss(states):
        return module(states).square().sin().sum()

    def derivatives(states):
        """First and second ones, of the state and of parameters."""
        inputs = (states, *module.parameters())
        gradients = torch.autograd.grad(loss(states), inputs, create_graph=True)
        return *gradients, *torch.autograd.grad(gradients[0].cos().sum(), inputs)

    found = derivatives(states)
    assert len(calls) == 1
    torch.testing.assert_close(torch.func.grad(loss)(states.detach()), found[0], rtol=1e-4, atol=1e-4)
    assert torch.func.vmap(torch.func.grad(loss))(states.detach()).shape == states.shape
    assert len(calls) == 1
    module.double()
    expected = derivatives(states.detach().double().requires_grad_())
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-3, atol=1e-4)


@needs_code
def test_few_numbers_and_graphs_are_left_to_pytorch(calls, monkeypatch):
    module = build("gated_rms_norm", 8)
    states = torch.randn(4, 8)
    exported = torch.export.export(module, (states,)).module()
    assert not calls
    torch.testing.assert_close(exported(2 * states), module(2 * states))
    assert len(calls) == 1
    monkeypatch.setattr(norms, "FEWEST_NUMBERS", states.numel() + 1)
    module(states)
    assert len(calls) == 1


def test_fix_norm_is_in_the_output_layer_too():
    model = build_model("qknorm").double()
    hidden = torch.randn(2, 3, 16, dtype=torch.float64, requires_grad=True)
    inputs = (hidden, model.model.decoder.embed_tokens.weight)
    logits = model.lm_head(hidden)
    expected = hidden @ reference.fix_norm(inputs[1]).T + model.lm_head.bias
    torch.testing.assert_close(logits, expected)
    direction = torch.randn_like(logits)
    torch.testing.assert_close(*(torch.autograd.grad(out, inputs, direction) for out in (logits, expected)))
