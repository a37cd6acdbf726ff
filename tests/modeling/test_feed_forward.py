"""The feed-forward network: activations, memory and gated forms against their naive forms."""

from types import SimpleNamespace
from typing import get_args

import pytest
import torch

import reference
from reluformers.configuration.configuration_base import FeedForwardActivation
from reluformers.modeling.feed_forward import FeedForward

WIDTH = 5
INNER = 9
FEED_FORWARD_ACTIVATIONS = get_args(FeedForwardActivation)


def build(activation, inner=INNER, **options):
    fields = {"ffn_bias": True, "activation_dropout": 0.0, "feed_forward_norm": "none", "norm_eps": 1e-5}
    fields |= {"feed_forward_temperature": 1.0, "swish_beta": 1.0, "learned_swish_beta": False, **options}
    module = FeedForward(SimpleNamespace(hidden_size=WIDTH, activation_function=activation, **fields), inner)
    for name, parameter in module.named_parameters():
        if name != "swish_beta":
            torch.nn.init.normal_(parameter)
    return module.double()


@pytest.mark.parametrize(
    "options",
    [
        {"ffn_bias": False, "swish_beta": 1.7},
        {"feed_forward_norm": "layer_norm", "norm_eps": 1e-3, "feed_forward_temperature": 2.5},
        {"swish_beta": 1.7, "learned_swish_beta": True},
    ],
)
@pytest.mark.parametrize("activation", FEED_FORWARD_ACTIVATIONS)
def test_values_and_gradients_are_those_of_the_formula(activation, options):
    module = build(activation, **options)
    hidden = torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    parameters = dict(module.named_parameters())
    settings = {name: options[name] for name in ("norm_eps", "swish_beta") if name in options}
    settings["temperature"] = options.get("feed_forward_temperature", 1.0)
    output = module(hidden)
    expected = reference.feed_forward(parameters, activation, hidden, **settings)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(output)
    inputs = (hidden, *parameters.values())
    for actual, wanted in zip(
        torch.autograd.grad(output, inputs, direction), torch.autograd.grad(expected, inputs, direction), strict=True
    ):
        torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-8)


def test_gated_forms_have_two_thirds_of_the_width():
    for activation in FEED_FORWARD_ACTIVATIONS:
        width = 171 if activation in reference.GATES else 256  # 256 · 2/3 = 170.7
        assert build(activation, 256).fc1.out_features == width


def test_dropout_acts_on_inner_states_in_training_alone():
    module = build("relu", activation_dropout=0.999999)
    hidden = torch.randn(7, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(hidden), module.fc2.bias.expand(7, WIDTH))
    expected = reference.feed_forward(dict(module.named_parameters()), "relu", hidden)
    torch.testing.assert_close(module.eval()(hidden), expected)
