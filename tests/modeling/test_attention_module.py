"""`MultiHeadAttention` beside the matrix: caches, own values, fields, learned scalars, dropout, autocast, masks."""

import dataclasses
import math

import pytest
import torch
from transformers import DynamicCache

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from reluformers.modeling import attention as attention_code
from reluformers.modeling.attention import ATTENTION_BACKENDS, MultiHeadAttention
from reluformers.modeling.masks import AttentionMask

from .test_attention_matrix import VARIANTS

WIDTH = 10
HEADS = 2
LENGTH = 7
CPU = torch.device("cpu")
REAL = torch.arange(LENGTH) >= torch.tensor([[0], [2]])  # the second sequence is padded on the left
CAUSAL = torch.ones(LENGTH, LENGTH).tril().bool() & REAL[:, None, None]


def build(attention, **options) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS, attention, layer_idx=0, **options).double().eval()


def draw(*shape: int) -> torch.Tensor:
    return 2 * torch.randn(*(shape or (2, LENGTH, WIDTH)), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("preset", ["softmax", "qknorm", "reluformer", "rela-g"])
def test_a_query_of_its_own_token_alone_has_nothing_exclusive(preset, dtype):
    """Not the rounding, which an output norm would make as large as any output."""
    module = build({"preset": preset, "exclusive_output": True}, bias=False).to(dtype)
    mask = AttentionMask(LENGTH, LENGTH, CPU, causal_offset=0)
    found = module(draw().to(dtype), attention_mask=mask, attn_implementation="fused")[0]
    assert not found[:, 0].any()
    assert found[:, 1:].any()


def test_dropout_leaves_the_returned_weights_alone():
    module = build("reluformer", dropout=0.5)
    hidden = draw()
    (plain, weights, _), (dropped, same, _) = module(hidden), module.train()(hidden)
    torch.testing.assert_close(same, weights)
    assert not torch.allclose(dropped, plain)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # nn.RMSNorm, which then computes the same unfused
@pytest.mark.parametrize("backend", ATTENTION_BACKENDS)
@pytest.mark.parametrize("preset", ATTENTION_PRESETS)
def test_autocast_is_finite_and_near(preset, backend):
    module = build(preset).float().train()
    hidden = draw().float().requires_grad_()
    expected, _, _ = module(hidden, attention_mask=CAUSAL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _, rows = module(hidden, None, CAUSAL, statistics="all", attn_implementation=backend)
    error = (output - expected)[REAL].norm(dim=-1) / expected[REAL].norm(dim=-1)
    assert error.median() < 0.03
    outputs = (output.float(), rows.row_sums, rows.weighted_logs)
    sum(part.sin().sum() for part in outputs).backward()
    assert all(part.grad is None or part.grad.isfinite().all() for part in (hidden, *module.parameters()))


@pytest.mark.parametrize("shape", [(7,), (7, 7), (2, 1, 7, 1), (2, 3, 1, 7), (2, 1, 1, 7)])
def test_masks_broadcast(shape, monkeypatch):
    layer = MultiHeadAttention(12, 3, "relu-vit")
    states = torch.randn(2, 7, 12)
    mask = torch.rand(shape) < 0.7
    expected, _, _ = layer(states, attention_mask=mask.expand(2, 3, 7, 7))
    monkeypatch.setattr(attention_code, "BLOCK_WEIGHTS", 8)
    for backend in ATTENTION_BACKENDS:
        torch.testing.assert_close(layer(states, attention_mask=mask, attn_implementation=backend)[0], expected)


def test_the_matrix_has_every_field():
    configs = [MultiHeadAttention(WIDTH, HEADS, fields).attention for fields in VARIANTS.values()]
    for field in dataclasses.fields(AttentionConfig):
        assert len({getattr(config, field.name) for config in configs}) > 1, field.name


@pytest.mark.parametrize("name", ["scale", "length_exponent", "threshold"])
def test_learned_scalar_starts_where_the_fixed_one_is_and_is_trained(name):
    setting = {"activation": "softplus", "scale": 2, "length_exponent": 1, "threshold": 1}  # integers, as in a recipe
    fixed = build(setting)
    learned = build({**setting, f"learned_{name}": True})
    hidden = draw()
    missing = learned.load_state_dict(fixed.state_dict(), strict=False).missing_keys
    assert missing == [name]
    output = learned(hidden)[0]
    torch.testing.assert_close(output, fixed(hidden)[0])
    output.square().sum().backward()
    assert getattr(learned, name).shape == (1,)
    assert getattr(learned, name).grad.abs() > 1e-6


def test_parameters_start_as_the_released_code_does():
    for length, printed in ((72, 12.320), (75, 12.438), (79, 12.589)):
        module = MultiHeadAttention(4, 2, {"preset": "qknorm", "scale_length": length})
        assert module.scale.tolist() == [pytest.approx(printed, abs=5e-4)]  # one for all heads
    for preset, drawn in (("rela", ()), ("rela-i", ("weight",)), ("rela-g", ("gate",))):
        for name, parameter in MultiHeadAttention(300, 3, preset).output_norm.named_parameters():
            if name in drawn:  # uniform in ±√(3/d)
                assert parameter.abs().max() <= 0.1
                assert parameter.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.15)
            else:
                assert torch.equal(parameter, torch.ones(300))


@pytest.mark.parametrize(
    "call",
    [
        lambda: MultiHeadAttention(10, 3),
        lambda: build("relu")(draw(), draw(2, 5, WIDTH), past_key_values=DynamicCache()),
        lambda: build("relu")(draw(), attention_mask=torch.ones(1, 1, 1, LENGTH)),
        # Without causality nobody knows which of the values are the query's own.
        lambda: attention_code.without_own_values(draw(2, 1, 2, 5), draw(2, 2, 4, 5), AttentionMask(1, 4, CPU)),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(ValueError):
        call()
