"""Gated RMSNorm, ScaleNorm, unit length and the table of residual norms against their naive forms."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import reference
from builders.covering import covering
from builders.models import build_model
from builders.operations import CountOperations
from reluformers.configuration.configuration_vision import VisionTransformerConfig
from reluformers.modeling.normalization import OUTPUT_NORMS, GatedRMSNorm, RMSNorm, ScaleNorm, build_norm, unit_length
from reluformers_kernels import norms
from reluformers_kernels.compiled import native

WIDTH = 5
NAIVE = {
    "gated_layer_norm": lambda x, p, eps: (
        reference.sigmoid(p["gate"] * x) * reference.layer_norm(x, p["weight"], 0.0, eps)
    ),
    "output_layer_norm": lambda x, p, eps: reference.layer_norm(x, p["weight"], 0.0, eps),
    "gated_rms_norm": lambda x, p, eps: reference.gated_rms_norm(x, p["weight"], p["gate"], eps),
    "rms_norm": lambda x, p, eps: reference.rms_norm(x, p["weight"], eps),
    "layer_norm": lambda x, p, eps: reference.layer_norm(x, p["weight"], p["bias"], eps),
    "scale_norm": lambda x, p, eps: reference.scale_norm(x, p["weight"], eps),
}


def residual(name, eps=1e-5, width=WIDTH, **fields) -> VisionTransformerConfig:
    """A configuration with these residual norms."""
    sizes = {"hidden_size": width, "num_attention_heads": 1, "intermediate_size": 4, "num_hidden_layers": 1}
    return VisionTransformerConfig(**sizes, norm_type=name, layer_norm_eps=eps, **fields)


def build(name, eps, dtype=torch.float64):
    if name in ("gated_rms_norm", "gated_layer_norm", "output_layer_norm"):
        module = OUTPUT_NORMS[name.removeprefix("output_")](WIDTH, eps)
    else:
        module = build_norm(residual(name, eps))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAIVE)
def test_values_and_gradients_are_those_of_the_formula(name, dtype):
    for eps in (1e-5, 1e-2):
        module = build(name, eps, dtype)
        hidden = torch.randn(2, 7, WIDTH)
        hidden[0, 0] *= 1e-3  # shorter than the larger ε
        hidden = hidden.to(dtype).requires_grad_()
        inputs = (hidden, *module.parameters())
        wide = [part.detach().double().requires_grad_() for part in inputs]
        parameters = dict(zip((key for key, _ in module.named_parameters()), wide[1:], strict=True))
        output, expected = module(hidden), NAIVE[name](wide[0], parameters, eps)
        assert output.dtype == dtype
        direction = torch.randn_like(output)
        gradients = torch.autograd.grad(output, inputs, direction)
        wanted = torch.autograd.grad(expected, wide, direction.double())
        tolerance = 32 * max(torch.finfo(dtype).eps, 1e-12)
        for one, other in zip((output, *gradients), (expected, *wanted), strict=True):
            assert (one.double() - other).norm() <= tolerance * max(1.0, other.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["gated_rms_norm", "gated_layer_norm", "rms_norm", "scale_norm"])
def test_zero_vector_stays_zero_with_finite_gradients(name, dtype):
    # the gradient at 0 is g/√ε, or g/ε with ScaleNorm: ε is large enough for it to fit into fp16
    module = build(name, 1e-3 if name == "scale_norm" else 1e-8, dtype)
    hidden = torch.zeros(1, WIDTH, dtype=dtype, requires_grad=True)
    output = module(hidden)
    assert not output.any()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in (hidden, *module.parameters()))


def test_scale_norm_starts_as_the_configuration_says():
    for initial, expected in (("sqrt_dim", 4.0), ("inverse_sqrt_dim", 0.25)):
        assert build_norm(residual("scale_norm", width=16, scale_norm_init=initial)).weight.item() == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_unit_length(dtype):
    states = torch.tensor([[3.0, 4.0], [-300.0, 400.0], [3e-4, 4e-4], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    output = unit_length(states)
    assert output.dtype == dtype
    expected = torch.tensor([[0.6, 0.8], [-0.6, 0.8], [0.6, 0.8], [0.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(output, expected, rtol=2e-2 if dtype.itemsize == 2 else 1e-6, atol=0)
    gradient = torch.autograd.grad(output.sum(), states)[0]
    assert gradient.isfinite().all()
    assert gradient[3].abs().max() <= 1


INSTRUCTION_SETS = native.usable_instruction_sets() if native is not None and native.is_available() else []
CASES = [
    tuple(case.values())
    for case in covering(
        instruction_set=INSTRUCTION_SETS or [None],
        shape=((3, 4, 2, 16), (2, 5, 3), (7, 1), (1, 130), (5, 3, 0, 8), (40, 64)),
        dtype=(torch.float32, torch.bfloat16),
        name=("unit_length", "scaled", "rms_norm", "gated_rms_norm", "scale_norm"),
        threads=(1, 3),
        default=(torch.float32, torch.bfloat16),  # scratch memory is float32 whatever it is
    )
]
needs_code = pytest.mark.skipif(not INSTRUCTION_SETS, reason="needs compiled code for this processor")


@pytest.fixture
def calls(monkeypatch) -> list:
    """What compiled code is called with, for as few numbers as there are."""
    seen, forward = [], native.norm_forward
    monkeypatch.setattr(norms, "FEWEST_NUMBERS", 1)
    monkeypatch.setattr(native, "norm_forward", lambda *arguments: seen.append(arguments) or forward(*arguments))
    return seen


class UnitLength(torch.nn.Module):
    def forward(self, states):
        return unit_length(states)


class Scaled(torch.nn.Module):
    """Unit length with one gain for all columns, as a learned scale is."""

    def __init__(self, *_, **__):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, states):
        return unit_length(states, gain=self.weight)


def build_compiled(name, width):
    """A module that compiled code can take, in float32."""
    made = {
        "unit_length": UnitLength,
        "scaled": Scaled,
        "rms_norm": RMSNorm,
        "gated_rms_norm": GatedRMSNorm,
        "scale_norm": ScaleNorm,
    }
    module = made[name]() if name == "unit_length" else made[name](width, eps=1e-6)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


@needs_code
@pytest.mark.parametrize(("instruction_set", "shape", "dtype", "name", "number", "default"), CASES, ids=str)
def test_compiled_norms_are_those_of_float64(
    name, dtype, shape, instruction_set, number, default, calls, threads, monkeypatch
):
    threads(number)
    monkeypatch.setattr(native, "instruction_set", lambda: instruction_set)
    module = build_compiled(name, shape[-1])
    states = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    # neither the input nor the gradient need be contiguous
    direction = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2].to(dtype)
    wide = states.detach().double().requires_grad_()
    output, before = module(states.expand(2, *shape)), len(calls)
    assert before == (1 if states.numel() else 0)
    module_64 = build_compiled(name, shape[-1]).double()
    module_64.load_state_dict(module.state_dict())
    expected = module_64(wide.expand(2, *shape))
    assert len(calls) == before, "float64 is PyTorch's"
    both = direction.expand_as(output)
    torch.set_default_dtype(default)
    try:
        actual = torch.autograd.grad(output, (states, *module.parameters()), both)
    finally:
        torch.set_default_dtype(torch.float32)
    wanted = torch.autograd.grad(expected, (wide, *module_64.parameters()), both.double())
    for one, other in zip((output, *actual), (expected, *wanted), strict=True):
        tolerance = 2**-6 if dtype == torch.bfloat16 else 2e-6
        scale = max(1.0, other.abs().max().item() if other.numel() else 0.0)
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * scale)


@needs_code
def test_what_does_not_fit_is_refused_by_pytorch(calls):
    states = torch.randn(4, 16)
    for gain, gate in ((8, 16), (16, 8), (32, 16)):
        module = GatedRMSNorm(16)
        module.weight, module.gate = (torch.nn.Parameter(torch.ones(width)) for width in (gain, gate))
        with pytest.raises(RuntimeError):
            module(states)
    with pytest.raises(RuntimeError):
        RMSNorm(16).to("meta")(states)
    assert not calls


@needs_code
def test_compiled_norms_of_extreme_rows(calls):
    rows = torch.tensor([[0.0, 0, 0], [1e-30, 0, 0], [3e18, 4e18, 0], [1e-13, 0, 0]], requires_grad=True)
    output = unit_length(rows)
    assert calls
    # 1e-30 is shorter than ε: divided by ε, if its square is not 0 already
    expected = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0.6, 0.8, 0], [0.1, 0, 0]])
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    gradient = torch.autograd.grad(output[0].sum(), rows)[0]
    assert gradient[0].tolist() == [1, 1, 1]
    module = build_compiled("gated_rms_norm", 3)
    large = torch.tensor([[300.0, -300.0, 0.0]], requires_grad=True)
    with torch.no_grad():
        module.gate.fill_(1.0)
        module.weight.fill_(1.0)
    gated = module(large)
    assert gated.tolist()[0] == pytest.approx([math.sqrt(1.5), 0, 0], abs=1e-6)
    gated.sum().backward()
    assert large.grad.isfinite().all()
    assert module(torch.full((1, 3), math.nan)).isnan().all()


@needs_code
@pytest.mark.parametrize("name", ["unit_length", "scaled", "rms_norm", "gated_rms_norm"])
def test_compiled_norms_can_be_transformed(name, calls):
    module, states = build_compiled(name, 8), torch.randn(4, 8, requires_grad=True)

    def loss(states):
        return module(states).square().sin().sum()

    inputs = (states, *module.parameters())
    with CountOperations() as counted:  # one each way
        torch.autograd.grad(module(states).sum(), inputs)
    assert sum("norm" in operation for operation in counted.names) == 2
    assert len(counted.names) <= 6  # with the sum, its gradient and sums over threads
    calls.clear()
    gradients = torch.autograd.grad(loss(states), inputs, create_graph=True)
    seconds = torch.autograd.grad(gradients[0].cos().sum(), inputs)
    assert len(calls) == 1
    torch.testing.assert_close(torch.func.grad(loss)(states.detach()), gradients[0], rtol=1e-4, atol=1e-4)
    assert torch.func.vmap(torch.func.grad(loss))(states.detach()).shape == states.shape
    assert len(calls) == 1
    module.double()
    wide = states.detach().double().requires_grad_()
    inputs = (wide, *module.parameters())
    expected = torch.autograd.grad(loss(wide), inputs, create_graph=True)
    expected_seconds = torch.autograd.grad(expected[0].cos().sum(), inputs)
    for one, wanted in zip((*gradients, *seconds), (*expected, *expected_seconds), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-3, atol=1e-4)


@needs_code
def test_few_numbers_and_compiled_graphs_are_left_to_pytorch(calls, monkeypatch):
    module, states = build_compiled("gated_rms_norm", 8), torch.randn(4, 8)
    exported = torch.export.export(module, (states,))
    torch.testing.assert_close(torch.compile(module, backend="aot_eager")(states), exported.module()(states))
    assert not calls
    traced = make_fx(module)(states)  # a dispatch mode takes the operator whole
    torch.testing.assert_close(traced(2 * states), exported.module()(2 * states))
    calls.clear()
    monkeypatch.setattr(norms, "FEWEST_NUMBERS", states.numel() + 1)
    module(states)
    assert not calls
    monkeypatch.setattr(norms, "FEWEST_NUMBERS", states.numel())
    module(states)
    assert len(calls) == 1


def test_fix_norm_is_in_the_output_layer_too():
    model = build_model("qknorm").double()
    hidden = torch.randn(2, 3, 16, dtype=torch.float64, requires_grad=True)
    weight = model.model.decoder.embed_tokens.weight
    logits, expected = model.lm_head(hidden), hidden @ reference.fix_norm(weight).T + model.lm_head.bias
    torch.testing.assert_close(logits, expected)
    direction = torch.randn_like(logits)
    gradients = (torch.autograd.grad(out, (hidden, weight), direction) for out in (logits, expected))
    torch.testing.assert_close(*gradients)
