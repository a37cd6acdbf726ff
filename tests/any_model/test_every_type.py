"""`relu_attention` in every model type of transformers: exact, or refused by name; none is wrong."""

import pytest
import torch
from torch import nn

from reluformers import attentions

from .every_type import SoftmaxSpy, examine, examine_all, files_left_out, kept_by, reached_files
from .tiny import model_types

# of every kind: decoders, windows, mixtures, encoders, encoder–decoders, images, audio, refusals
SOME = [
    "llama",
    "gemma3_text",
    "mixtral",
    "gpt_neox",
    "roberta",
    "modernbert",
    "pegasus",
    "vit",
    "clip_vision_model",
    "hubert",
    "deberta",
    # heads without groups, a mask longer than the queries, features of an audio, a backbone of timm
    "esmc",
    "muse_glimmer_assistant",
    "fun_asr_nano_encoder",
    "pe_video",
    # a model that hides further keys in the mask it made
    "dots3_note_text",
    # and of parts, or attention modules, by themselves
    "detr",
    "decision_transformer",
]


def test_some_types_are_exact_or_refused():
    found = examine_all([name for name in SOME if name in model_types()])  # older versions have fewer
    outcomes = {name: one.outcome for name, one in found.items() if "requires the timm library" not in one.why}
    assert outcomes == {
        name: {"deberta": "refused", "decision_transformer": "in parts"}.get(name, "exact") for name in outcomes
    }
    assert len(outcomes) >= len(SOME) - 4


class OfOneRouter(nn.Module):
    def forward(self, states):
        return states.softmax(-1)


class OfOneAttention(OfOneRouter):
    pass


class OfTorch(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2)

    def forward(self, states):
        return self.inner(states, states, states)[0]


@pytest.mark.parametrize("sees_gradients", [True, False])
def test_an_attention_that_is_not_ours_is_seen_and_a_router_is_not(sees_gradients):
    with torch.set_grad_enabled(sees_gradients), SoftmaxSpy() as spy:
        for module in (OfOneRouter(), OfOneAttention(), OfTorch().eval()):
            module(torch.randn(3, 2, 8))
    assert spy.classes == {"OfOneAttention", "OfTorch"}
    assert {kept_by(one) for one in spy.classes} == {None}


def test_an_attention_that_keeps_softmax_is_refused_and_a_pooling_head_is_named(monkeypatch):
    found = examine_all(["pegasus_x", "siglip_vision_model"])
    assert found["pegasus_x"].outcome == "refused"
    assert "PegasusXGlobalLocalAttention" in found["pegasus_x"].why
    assert found["siglip_vision_model"].outcome == "exact"
    assert {kept_by(one) for one in found["siglip_vision_model"].softmax} == {attentions.KEEPS_SOFTMAX["Pool"]}
    monkeypatch.setattr(attentions, "check_modules", lambda *_: None)
    assert examine("pegasus_x").outcome == "wrong"


@pytest.mark.slow
def test_no_type_is_wrong():
    found = examine_all()
    assert {name: one.why for name, one in found.items() if one.outcome == "wrong"} == {}
    assert files_left_out(found) == set()
    assert len(reached_files(found)) >= 330
