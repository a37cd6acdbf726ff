"""`relu_attention` in every model type of transformers: exact, or refused by name; none is wrong."""

import pytest

from .every_type import examine_all, files_with_interface

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
    # and of parts, or attention modules, by themselves
    "detr",
    "decision_transformer",
]


def test_some_types_are_exact_or_refused():
    found = examine_all(SOME)
    assert {name: one.outcome for name, one in found.items()} == {
        name: {"deberta": "refused", "decision_transformer": "in parts"}.get(name, "exact") for name in SOME
    }


@pytest.mark.slow
def test_no_type_is_wrong():
    found = examine_all()
    assert {name: one.why for name, one in found.items() if one.outcome == "wrong"} == {}
    exact = {file for one in found.values() if one.outcome in ("exact", "in parts") for file in one.files}
    assert len(exact & files_with_interface()) >= 300
