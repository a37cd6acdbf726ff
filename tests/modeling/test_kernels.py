"""The one door between a model and the library's kernels: found or not, the results are the same."""

import sys

import pytest
import torch
from torch.testing import assert_close
from transformers.dynamic_module_utils import get_class_from_dynamic_module

import reluformers_kernels
from builders.clean_processes import run_clean
from builders.models import FAMILY_MODELS, KINDS, build_model, draw_pairs
from reluformers.modeling import attention
from reluformers.modeling import kernels as door
from reluformers.modeling.attention import MultiHeadAttention
from reluformers.modeling.masks import AttentionMask

from .test_attention_matrix import compute_by
from .test_fused_attention import LargestTensor

QUERIES = 7
KEYS = 9
WIDTH = 8
REAL = torch.arange(KEYS) < torch.tensor([[KEYS], [5]])
PADDED = AttentionMask(QUERIES, KEYS, torch.device("cpu"), REAL, 2)


@pytest.fixture
def no_library(monkeypatch):
    compute_by("no library", monkeypatch)


@pytest.mark.usefixtures("no_library")
def test_the_backward_pass_drops_the_weights_that_the_forward_pass_dropped():
    module = MultiHeadAttention(WIDTH, 2, "relu", dropout=0.5)
    states = torch.randn(2, QUERIES, WIDTH), torch.randn(2, KEYS, WIDTH, requires_grad=True)
    torch.manual_seed(3)
    output, *_ = module(*states, PADDED, attn_implementation="fused")
    (gradient,) = torch.autograd.grad(output.sum(), module.v_proj.weight)
    torch.manual_seed(3)
    with torch.no_grad():
        module.v_proj.weight += 0.1
    changed, *_ = module(*states, PADDED, attn_implementation="fused")
    assert_close(changed.sum() - output.sum(), 0.1 * gradient.sum(), rtol=1e-3, atol=1e-4)  # linear in the values


@pytest.mark.parametrize("activation", ["relu", "entmax15", "softpick"])
@pytest.mark.usefixtures("no_library")
def test_memory_is_bounded(activation, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_WEIGHTS", 2**13)
    module = MultiHeadAttention(WIDTH, 2, {"activation": activation})
    states = torch.randn(1, 512, WIDTH)
    with LargestTensor() as largest:
        module(states, attn_implementation="fused")[0].sum().backward()
    assert largest.elements <= 2 * 2**13


def folder_class(folder, name: str, *, has_library: bool) -> type:
    """A class of the code in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        if not has_library:
            patch.setitem(sys.modules, "reluformers_kernels", None)
        found = get_class_from_dynamic_module(name, str(folder))
    code = sys.modules[found.__module__].MultiHeadAttention.forward.__globals__
    assert (code["kernels"] is None) != has_library
    return found


@pytest.mark.parametrize(("kind", "preset"), FAMILY_MODELS[1::2])
def test_a_folder_answers_the_same_with_the_library_and_without(kind, preset, tmp_path):
    model = build_model(preset, kind, **KINDS[kind].still)
    batch = KINDS[kind].draw()
    name = f"modeling_{kind}.{type(model).__name__}"
    outputs = []
    for has_library in (True, False):
        folder = tmp_path / f"{kind}_{has_library}"
        model.save_pretrained(folder)
        opened = folder_class(folder, name, has_library=has_library).from_pretrained(folder)
        assert opened.state_dict().keys() == model.state_dict().keys()
        eager = model(**batch, output_attentions=True).logits
        assert torch.equal(opened.eval()(**batch, output_attentions=True).logits, eager)
        result = opened.train()(**batch, output_null_rate=True)
        result.loss.backward()
        opened.eval()
        outputs.append([result.loss, result.logits, *(part.grad for part in opened.parameters())])
        if kind == "seq2seq":
            inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
            for beams in (1, 4):
                outputs[-1].append(opened.generate(**inputs, num_beams=beams, max_new_tokens=9))
    for found, expected in zip(*outputs, strict=True):
        if found is not None and expected is not None:
            assert_close(found, expected, rtol=1e-2, atol=1e-3)  # the regulariser's gradient is not exacter in eager


@pytest.mark.slow
def test_compiled_as_one_graph_without_the_library(no_library):
    torch.compiler.reset()
    model = build_model("reluformer", encoder_layers=1, decoder_layers=1)
    batch = draw_pairs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(**batch).logits, model(**batch).logits)


def test_kernels_of_another_interface_are_left_alone(monkeypatch):
    assert door._find_kernels() is reluformers_kernels
    monkeypatch.setattr(reluformers_kernels, "INTERFACE", door.INTERFACE + 1)
    assert door._find_kernels() is None


REGISTERING = """
    from transformers import AutoModelForSeq2SeqLM

    sys.meta_path[:] = [getattr(hiding, "finder", hiding) for hiding in sys.meta_path]  # the library is there
    model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
    assert "reluformers_kernels" in sys.modules and "reluformers" not in sys.modules
    assert type(AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)) is type(model)
"""


def test_opening_a_folder_registers_nothing_of_the_library(tmp_path):
    """Else the next folder would be opened by the classes of the library; its kernels import nothing of it."""
    build_model("relu").save_pretrained(tmp_path)
    run_clean(REGISTERING, tmp_path, str(tmp_path))
