"""`relu_attention` in every model type of transformers: exact, or refused by name; none is wrong."""

import importlib
import inspect
import re

import pytest
import torch
from torch import nn

from reluformers import attentions
from reluformers.exchange import _scalings_of
from reluformers.modeling.modeling_exchanged import calls_interface

from .every_type import SoftmaxSpy, examine, examine_all, files_left_out, files_with_interface, kept_by, reached_files


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
    assert found["siglip_vision_model"].outcome == "exact"
    assert {kept_by(one) for one in found["siglip_vision_model"].softmax} == {attentions.KEEPS_SOFTMAX["Pool"]}
    monkeypatch.delitem(attentions.REFUSED, "pegasus_x")
    assert examine("pegasus_x").outcome == "wrong"


@pytest.mark.slow
def test_no_type_is_wrong():
    found = examine_all()
    assert {name: one.why for name, one in found.items() if one.outcome == "wrong"} == {}
    assert files_left_out(found) == set()
    assert len(reached_files(found)) >= 330


@pytest.mark.slow
def test_the_code_of_a_module_says_how_it_scales():
    """By its names and constants, as the text of its source says it."""
    for name in [name for name in files_with_interface() if "timesfm" not in name]:
        for module in vars(importlib.import_module(name)).values():
            if isinstance(module, type) and issubclass(module, nn.Module) and calls_interface(module):
                source = inspect.getsource(module.forward)
                one = torch.nn.Module.__new__(module)
                torch.nn.Module.__init__(one)
                one.scaling, one.scale = 0.3, 0.7
                one.exchanged_attention = torch.nn.Module()
                one.exchanged_attention.query_norm, one.exchanged_attention.scale = None, torch.tensor(0.5)
                given = re.search(r"\bscaling=self\.(scaling|scale)\b", source)
                wanted = (1.0, {"scaling": 0.3, "scale": 0.7}[given[1]] if given else 0.3)
                assert _scalings_of(one) == ((0.3, 1.0) if "scaling=1.0" in source else wanted), module
