"""Which computation is taken for what, and that what layers share of a mask is made once."""

import dataclasses
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from builders.models import build_model, draw_images
from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers.modeling import attention
from reluformers.modeling.attention_functions import ATTENTION_ACTIVATIONS
from reluformers_kernels import (
    ACTIVATIONS,
    SPARSE_DISTRIBUTIONS,
    PassOptions,
    computation,
    softmax1,
)
from reluformers_kernels.computation import choose_computation

QUERIES = 5
KEYS = 7


# as if compiled code were installed: what it takes is for test_native_attention.py to say
STAND_IN = SimpleNamespace(can_take=lambda query, value, activation: activation in ("relu", "identity"))


@pytest.fixture(autouse=True)
def no_compiled_code(monkeypatch):
    monkeypatch.setattr(computation, "native", None)


def choose(activation: str, *, queries=QUERIES, needed="none", short_keys=None, dtype=torch.float32, **options):
    query, key = (torch.empty(2, 3, length, 4, dtype=dtype) for length in (queries, KEYS))
    options = PassOptions(activation=activation, needed_statistics=needed, **options)
    with mock.patch.object(computation, "SHORT_KEYS", short_keys or 0):
        return choose_computation(query, key, key, options, may_write_out=short_keys is not None)


@pytest.mark.parametrize("activation", ATTENTION_ACTIVATIONS)
def test_every_activation_has_a_computation(activation):
    """A φ that is in no table of the kernels is left to the reference, and with it each new one at first."""
    is_known = activation in (*ACTIVATIONS, *SPARSE_DISTRIBUTIONS)
    assert choose(activation) == ("blocks" if is_known else None)
    assert not is_known or activation not in ("softmax", "softmax1", "softpick")


@pytest.mark.parametrize(
    ("expected", "compiled", "options"),
    [
        ("blocks", "native", {"needed": "all", "dropout": 0.1}),
        (None, "native", {"short_keys": 7}),
        ("blocks", "native", {"short_keys": 6}),
        ("single_query", "single_query", {"queries": 1}),
        ("blocks", "native", {"queries": 1, "activation": "sparsemax"}),
        (None, None, {"short_keys": 6, "activation": "sparsemax", "needed": "sums"}),
        ("blocks", "native", {"short_keys": 7, "dtype": torch.float16}),  # no processor multiplies it
        ("blocks", "native", {"dtype": torch.bfloat16}),
        ("blocks", "blocks", {"activation": "gelu"}),
        (None, None, {"activation": "softmax"}),
    ],
)
def test_compiled_code_goes_first(expected, compiled, options, monkeypatch):
    options = {"activation": "relu", **options}
    assert choose(**options) == expected
    monkeypatch.setattr(computation, "MULTIPLIES_TILES", False)
    monkeypatch.setattr(computation, "native", STAND_IN)
    assert choose(**options) == compiled


@dataclasses.dataclass
class ConfigWithField(AttentionConfig):
    temperature: float = 2.0


@dataclasses.dataclass(frozen=True)
class FormulaWithField(attention.AttentionFormula):
    temperature: float = 2.0


def test_softmax1_leaves_what_it_does_not_know_to_others():
    states = torch.randn(3, 1, 2, 4, 8)
    assert softmax1(*states, threshold=0.0, scale=1.0, dropout=0.1) is None
    assert softmax1(*states.half(), threshold=0.0, scale=1.0) is None
    assert softmax1(*states[:2], states[2, ..., :6], threshold=0.0, scale=1.0) is None


@pytest.mark.parametrize("name", ["softmax", "softmax1", "relu", "entmax15"])
@pytest.mark.parametrize("is_formula", [True, False])
def test_a_field_that_fast_paths_do_not_read_is_left_to_the_reference(name, is_formula, monkeypatch):
    assert all(attention.KNOWS_FIELDS.values())
    config = AttentionConfig(activation=name)
    if is_formula:
        formula = FormulaWithField(config, scaling=0.5)
    else:
        formula = attention.AttentionFormula(ConfigWithField(**config.to_dict()), scaling=0.5)
    monkeypatch.setattr(attention, "eager_attention", lambda *arguments: ("reference", None, None))
    states = torch.randn(2, 3, 5, 4)
    mask = attention.AttentionMask.of(None, 5, 5, states.device)
    assert attention.fused_attention(formula, states, states, states, mask, "none")[0] == "reference"


@pytest.mark.slow
def test_checkpointed_layers_compile_as_one_graph():
    """The compiler refuses a layer that changes an object from outside, such as a mask that keeps what it computed."""
    torch.compiler.reset()
    model = build_model("relu-vit", "vision", num_hidden_layers=2).train()
    batch = draw_images()
    expected = model(**batch).loss
    model.gradient_checkpointing_enable()
    loss = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
