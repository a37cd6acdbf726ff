"""`relu_attention` in every model type of transformers: exact, or refused by name; none is wrong."""

import pytest

from .every_type import examine_all, files_left_out, reached_files
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
    assert {name: one.outcome for name, one in found.items()} == {
        name: {"deberta": "refused", "decision_transformer": "in parts"}.get(name, "exact") for name in found
    }


@pytest.mark.slow
def test_no_type_is_wrong():
    found = examine_all()
    assert {name: one.why for name, one in found.items() if one.outcome == "wrong"} == {}
    assert files_left_out(found) == set()
    assert len(reached_files(found)) >= 330
