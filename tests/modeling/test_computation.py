"""Which computation is taken for what, and that what layers share of a mask is made once."""

import dataclasses
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builders.models import build_model, draw_images, draw_pairs
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

QUERIES, KEYS = 5, 7


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
        ("blocks", "native", {"short_keys": 7, "activation": "sparsemax"}),
        (None, None, {"short_keys": 6, "activation": "sparsemax", "needed": "sums"}),
        ("blocks", "native", {"queries": 1, "dropout": 0.1}),
        ("blocks", "native", {"queries": 1, "needed": "sums"}),
        ("blocks", "native", {"short_keys": 7, "dtype": torch.float16}),  # no processor multiplies it
        ("blocks", "native", {"dtype": torch.bfloat16}),
        ("blocks", "blocks", {"activation": "gelu"}),
        (None, None, {"activation": "softmax"}),
    ],
    ids=str,
)
def test_compiled_code_goes_first(expected, compiled, options, monkeypatch):
    options = {"activation": "relu", **options}
    assert choose(**options) == expected
    monkeypatch.setattr(computation, "MULTIPLIES_TILES", False)
    monkeypatch.setattr(computation, "native", STAND_IN)
    assert choose(**options) == compiled


def test_softmax1_leaves_what_it_does_not_know_to_others():
    states = [torch.randn(1, 2, 4, 8) for _ in range(3)]
    assert softmax1(*states, threshold=0.0, scale=1.0, dropout=0.1) is None
    assert softmax1(*(part.half() for part in states), threshold=0.0, scale=1.0) is None
    assert softmax1(*states[:2], torch.randn(1, 2, 4, 6), threshold=0.0, scale=1.0) is None


def test_bfloat16_stays_where_the_processor_multiplies_tiles_of_it(monkeypatch):
    monkeypatch.setattr(computation, "native", STAND_IN)
    monkeypatch.setattr(computation, "MULTIPLIES_TILES", True)
    monkeypatch.setattr(computation, "SHORT_TILES", KEYS)
    assert choose("relu") == "native"
    assert choose("relu", dtype=torch.bfloat16) == "blocks"
    assert choose("relu", dtype=torch.bfloat16, causal_offset=0) == "native"
    monkeypatch.setattr(computation, "SHORT_TILES", KEYS - 1)
    assert choose("relu", dtype=torch.bfloat16, causal_offset=0) == "blocks"


class MaskOperations(TorchDispatchMode):
    """Counts what makes a mask dense, a comparison of places, and what counts its keys, a sum of booleans."""

    def __init__(self):
        super().__init__()
        self.comparisons = self.counts = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        operation = function.overloadpacket
        self.comparisons += operation is torch.ops.aten.le
        sums = (torch.ops.aten.sum, torch.ops.aten.cumsum)
        self.counts += operation in sums and args[0].dtype == torch.bool
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", attention.ATTENTION_BACKENDS)
@pytest.mark.parametrize("short_keys", [0, 128])
@pytest.mark.parametrize("preset", ["softmax", "reluformer"])
def test_mask_is_made_once_for_all_layers_of_a_site(preset, short_keys, backend, monkeypatch):
    """Two layers in the encoder and three in the decoder, but three sites of which one is causal."""
    monkeypatch.setattr(computation, "SHORT_KEYS", short_keys)
    model, batch = build_model(preset), draw_pairs()
    model.set_attn_implementation(backend)
    target = batch.pop("labels").clamp_min(0)
    with MaskOperations() as operations:
        model(**batch, decoder_input_ids=target, decoder_attention_mask=torch.ones_like(target))
    needs_no_dense_mask = preset == "reluformer" and backend == "fused" and short_keys == 0
    assert operations.comparisons == (0 if needs_no_dense_mask else 1)
    assert operations.counts == 3


@dataclasses.dataclass
class ConfigWithField(AttentionConfig):
    temperature: float = 2.0


@dataclasses.dataclass(frozen=True)
class FormulaWithField(attention.AttentionFormula):
    temperature: float = 2.0


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


def test_checkpointed_layers_compile_as_one_graph():
    """The compiler refuses a layer that changes an object from outside, such as a mask that keeps what it computed."""
    torch.compiler.reset()
    model, batch = build_model("relu-vit", "vision", num_hidden_layers=2).train(), draw_images()
    expected = model(**batch).loss
    model.gradient_checkpointing_enable()
    loss = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)


def test_choice_for_a_gpu_can_be_traced(monkeypatch):
    """The compiler may not look at the device: what it can do is a constant."""
    from reluformers_kernels import triton_attention

    runs_kernels = torch.compiler.assume_constant_result(lambda device: True)
    monkeypatch.setattr(triton_attention, "_runs_kernels", runs_kernels)
    query = torch.zeros(2, 3, 4, 8)

    def choose(query):
        return query + triton_attention.can_take(query, query, "relu")

    compiled = torch.compile(choose, fullgraph=True, backend="eager")
    assert torch.equal(compiled(query), query + 1)
