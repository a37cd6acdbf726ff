"""`MultiHeadAttention` beside the matrix: caches, own values, fields, learned scalars, dropout, autocast, masks."""

import dataclasses
import math
from unittest import mock

import pytest
import torch
from transformers import DynamicCache

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from reluformers.modeling import attention as attention_code
from reluformers.modeling.attention import ATTENTION_BACKENDS, MultiHeadAttention
from reluformers.modeling.masks import AttentionMask
from reluformers_kernels import computation, fused_attention

from .test_attention_matrix import VARIANTS

WIDTH, HEADS, LENGTH = 10, 2, 7
CPU = torch.device("cpu")
few_presets = pytest.mark.parametrize("preset", ["softmax", "qknorm", "reluformer", "rela-g"])
all_backends = pytest.mark.parametrize("backend", ATTENTION_BACKENDS)
REAL = torch.arange(LENGTH) >= torch.tensor([[0], [2]])  # the second sequence is padded on the left
CAUSAL = torch.ones(LENGTH, LENGTH).tril().bool() & REAL[:, None, None]


def build(attention, **options) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS, attention, layer_idx=0, **options).double().eval()


def draw(*shape: int) -> torch.Tensor:
    return 2 * torch.randn(*(shape or (2, LENGTH, WIDTH)), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@few_presets
def test_a_query_of_its_own_token_alone_has_nothing_exclusive(preset, dtype):
    """Not the rounding, which an output norm would make as large as any output."""
    module = build({"preset": preset, "exclusive_output": True}, bias=False).to(dtype)
    mask = AttentionMask(LENGTH, LENGTH, CPU, causal_offset=0)
    found = module(draw().to(dtype), attention_mask=mask, attn_implementation="fused")[0]
    assert not found[:, 0].any()
    assert found[:, 1:].any()


def test_parameters_start_as_the_released_code_does():
    for length, printed in ((72, 12.320), (75, 12.438), (79, 12.589)):
        module = MultiHeadAttention(4, 2, {"preset": "qknorm", "scale_length": length})
        assert module.scale.tolist() == [pytest.approx(printed, abs=5e-4)]  # one for all heads
    bound = math.sqrt(3 / 300)
    norms = {name: MultiHeadAttention(300, 3, name).output_norm for name in ("rela", "rela-i", "rela-g")}
    assert torch.equal(norms["rela"].weight, torch.ones(300))
    assert torch.equal(norms["rela-g"].weight, torch.ones(300))
    for drawn in (norms["rela-i"].weight, norms["rela-g"].gate):
        assert drawn.abs().max() <= bound
        assert drawn.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_dropout_leaves_the_returned_weights_alone():
    module, hidden = build("reluformer", dropout=0.5), draw()
    (plain, weights, _), (dropped, same, _) = module(hidden), module.train()(hidden)
    torch.testing.assert_close(same, weights)
    assert not torch.allclose(dropped, plain)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # nn.RMSNorm, which then computes the same unfused
@all_backends
@pytest.mark.parametrize("preset", ATTENTION_PRESETS)
def test_autocast_is_finite_and_near(preset, backend):
    module, hidden = build(preset).float().train(), draw().float().requires_grad_()
    expected, _, _ = module(hidden, attention_mask=CAUSAL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _, rows = module(hidden, None, CAUSAL, statistics="all", attn_implementation=backend)
    error = (output - expected)[REAL].norm(dim=-1) / expected[REAL].norm(dim=-1)
    assert error.median() < 0.03
    total = output.float().square().sum() + rows.row_sums.sin().sum() + rows.weighted_logs.sin().sum()
    found = torch.autograd.grad(total, [hidden, *module.parameters()], materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("shape", [(7,), (7, 7), (2, 1, 7, 1), (2, 3, 1, 7), (2, 1, 1, 7)], ids=str)
def test_masks_broadcast(shape, monkeypatch):
    layer, states, mask = MultiHeadAttention(12, 3, "relu-vit"), torch.randn(2, 7, 12), torch.rand(shape) < 0.7
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
    fixed, learned, hidden = build(setting), build({**setting, f"learned_{name}": True}), draw()
    missing = learned.load_state_dict(fixed.state_dict(), strict=False).missing_keys
    assert missing == [name]
    output = learned(hidden)[0]
    torch.testing.assert_close(output, fixed(hidden)[0])
    output.square().sum().backward()
    assert getattr(learned, name).shape == (1,)
    assert getattr(learned, name).grad.abs() > 1e-6


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("num_heads", lambda: MultiHeadAttention(10, 3)),
        ("EncoderDecoderCache", lambda: build("relu")(draw(), draw(2, 5, WIDTH), past_key_values=DynamicCache())),
        ("mask", lambda: build("relu")(draw(), attention_mask=torch.ones(1, 1, 1, LENGTH))),
        # which of the values are the query's own?
        ("exclusive_output", lambda: attention_code.without_own_values(
            torch.zeros(2, 1, 2, 5), torch.zeros(2, 2, 4, 5), AttentionMask(1, 4, CPU))),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(field, call):
    with pytest.raises(ValueError, match=field):
        call()


@pytest.mark.parametrize(
    ("preset", "dtype", "written_out"),
    [("relu-vit", torch.float32, [9]), ("softmax", torch.float32, []), ("softmax", torch.bfloat16, [9])],
)
def test_few_keys_stay_eager_on_a_processor_without_compiled_code(preset, dtype, written_out, monkeypatch):
    monkeypatch.setattr(computation, "native", None)
    for module in (attention_code, computation):
        monkeypatch.setattr(module, "SHORT_KEYS", 9)
    layer = MultiHeadAttention(12, 3, preset).to(dtype)
    with mock.patch.object(attention_code, "eager_attention", wraps=attention_code.eager_attention) as eager:
        for length in (9, 10):
            layer(torch.randn(2, length, 12, dtype=dtype), attn_implementation="fused")
    assert [call.args[2].shape[2] for call in eager.call_args_list] == written_out


def test_a_learned_threshold_costs_no_channel(monkeypatch):
    seen, choose = [], fused_attention.choose_computation
    record = lambda query, *others, **options: seen.append(query.shape[-1]) or choose(query, *others, **options)  # noqa: E731
    monkeypatch.setattr(fused_attention, "choose_computation", record)
    module = MultiHeadAttention(16, 2, {"activation": "relu", "threshold": 0.1, "learned_threshold": True})
    module(torch.randn(1, 150, 16), attn_implementation="fused")
    assert set(seen) == {8}
