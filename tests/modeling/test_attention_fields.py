"""Every field of AttentionConfig is read: changing it alone changes the module."""

import dataclasses
import itertools

import pytest
import torch
from transformers import DynamicCache

from reluformers.configuration.configuration_attention import ACTIVATIONS, AttentionConfig
from reluformers.modeling.attention import MultiHeadAttention

# field → a setting in which it matters, and the value it is changed to from its default
CHANGES = {
    "score": ({}, "cosine"),
    "scale": ({}, 2.0),
    "learned_scale": ({}, True),
    "scale_form": ({"scale": 2.0}, "log_length"),
    "scale_length": ({"score": "cosine"}, 20),
    "query_key_norm": ({}, "layer_norm"),
    "value_norm": ({}, "l2"),
    "activation": ({}, "relu"),
    "length_coefficient": ({}, 2.0),
    "length_exponent": ({}, 0.5),
    "learned_length_exponent": ({}, True),
    "threshold": ({"activation": "relu"}, 0.1),
    "learned_threshold": ({"activation": "relu"}, True),
    "threshold_form": ({"activation": "relu", "threshold": 0.1}, "log_length"),
    "threshold_per_head": ({"activation": "softmax1", "learned_threshold": True}, True),
    "normalizer": ({"activation": "relu"}, "sum"),
    "exclusive_output": ({}, True),
    "output_norm": ({}, "rms_norm"),
    "output_norm_init": ({"output_norm": "gated_rms_norm"}, "uniform"),
    "output_norm_eps": ({"output_norm": "rms_norm"}, 1.0),
    "output_gate": ({}, "silu"),
}
LEARNED = {"learned_scale": "scale", "learned_length_exponent": "length_exponent", "learned_threshold": "threshold"}


def outcome(fields):
    """Parameters and output of a module that is always drawn from the same seed, θ of each head too."""
    torch.manual_seed(0)
    hidden = torch.randn(2, 7, 10)
    module = MultiHeadAttention(10, 2, fields)
    if fields.get("threshold_per_head"):
        module.threshold.data = torch.tensor([0.5, -0.5])
    output, _, _ = module(hidden, attention_mask=torch.ones(7, 7).tril().bool()[None, None])
    return {name: parameter.detach() for name, parameter in module.named_parameters()}, output


def differ(first, second):
    names_differ = first[0].keys() != second[0].keys()
    return names_differ or not torch.allclose(first[1], second[1], rtol=1e-3, atol=1e-3)


def test_every_field_is_listed():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(AttentionConfig)}


@pytest.mark.parametrize("name", CHANGES)
def test_field_matters(name):
    setting, value = CHANGES[name]
    assert getattr(AttentionConfig(**setting), name) != value
    assert not differ(outcome(setting), outcome(dict(setting)))
    assert differ(outcome(setting), outcome({**setting, name: value}))


@pytest.mark.parametrize("pair", list(itertools.combinations(ACTIVATIONS, 2)), ids="-".join)
def test_activations_differ(pair):
    first, second = (outcome({"activation": name, "scale": 3.0, "score": "dot"})[1] for name in pair)
    assert not torch.allclose(first, second, atol=1e-4)


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_output_norms_differ(score):
    norms = ("none", "rms_norm", "gated_rms_norm", "layer_norm", "gated_layer_norm")
    outputs = [outcome({"score": score, "output_norm": norm})[1] for norm in norms]
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in itertools.combinations(outputs, 2))


def test_output_gates_differ():
    outputs = [outcome({"output_gate": gate})[1] for gate in ("none", "linear", "silu", "sigmoid")]
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in itertools.combinations(outputs, 2))


@pytest.mark.parametrize("activation", ["relu", "softplus", "sigmoid"])
@pytest.mark.parametrize(("field", "name"), LEARNED.items(), ids=LEARNED)
def test_learned_scalar_starts_where_the_fixed_one_is_and_is_trained(field, name, activation):
    setting = {"activation": activation, "scale": 2, "length_exponent": 1, "threshold": 1}  # integers, as in a recipe
    fixed, learned = outcome(setting), outcome({**setting, field: True})
    torch.testing.assert_close(learned[1], fixed[1])
    assert learned[0].keys() - fixed[0].keys() == {name}
    assert learned[0][name].shape == (1,)
    module = MultiHeadAttention(10, 2, {**setting, field: True})
    module(torch.randn(2, 7, 10))[0].square().sum().backward()
    assert getattr(module, name).grad.abs() > 1e-6


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ({}, set()),
        ({"query_key_norm": "layer_norm"}, {"query_norm.weight", "key_norm.weight"}),
        ({"output_norm": "rms_norm"}, {"output_norm.weight"}),
        ({"output_norm": "gated_rms_norm"}, {"output_norm.weight", "output_norm.gate"}),
        ({"output_norm": "layer_norm"}, {"output_norm.weight"}),
        ({"output_norm": "gated_layer_norm"}, {"output_norm.weight", "output_norm.gate"}),
        ({"value_norm": "l2", "score": "cosine"}, set()),
        ({"learned_scale": True}, {"scale"}),
        ({"output_gate": "linear"}, {"gate_proj.weight", "gate_proj.bias"}),
    ],
    # sorted, as the processes of pytest-xdist must agree on the names of the tests
    ids=lambda value: str(value if isinstance(value, dict) else sorted(value)),
)
def test_parameter_names_are_the_public_ones(setting, names):
    projections = {f"{p}_proj.{kind}" for p in ("q", "k", "v", "out") for kind in ("weight", "bias")}
    parameters = outcome(setting)[0]
    assert set(parameters) == projections | names
    shapes = {"query_norm.weight": (5,), "key_norm.weight": (5,), "scale": (1,), "gate_proj.weight": (10, 10)}
    assert all(parameters[name].shape == shapes.get(name, (10,)) for name in names)


def test_a_cache_of_self_attention_is_none_of_cross_attention():
    attention = MultiHeadAttention(8, 2, layer_idx=0)
    with pytest.raises(ValueError, match="the cache is a DynamicCache, but must be an EncoderDecoderCache"):
        attention(torch.randn(1, 3, 8), torch.randn(1, 5, 8), past_key_values=DynamicCache())


@pytest.mark.parametrize("activation", ["softmax", "softmax1", "relu", "sparsemax"])
def test_a_mask_of_one_column_is_that_of_all_keys(activation):
    attention = MultiHeadAttention(8, 2, {"activation": activation}).eval()
    states = torch.randn(1, 4, 8)
    mask = torch.tensor([True, True, False, True])[None, None, :, None]
    outputs = [
        attention(states, attention_mask=one, attn_implementation=backend)[0]
        for one in (mask, mask.expand(1, 1, 4, 4))
        for backend in ("eager", "fused")
    ]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0])
