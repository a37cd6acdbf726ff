"""Names of classes in a configuration, and what it keeps when a saved model is opened with fewer layers or heads."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from builders.models import build_config, build_model, logits_of
from reluformers import vision_config

NAMES = ["cat", "dog", "eel"]
NUMBERED = dict(enumerate(NAMES))
INVERSE = {name: number for number, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    "names", [{0: "cat", 2: "dog"}, {-1: "cat", 0: "dog"}, {0: "cat", 1: "cat"}, {}, {"one": "cat"}], ids=str
)
def test_labels_that_number_no_classes_are_refused(names, tmp_path):
    with pytest.raises(ValueError):
        vision_config("relu-vit", id2label=names)
    vision_config("relu-vit", id2label=NUMBERED).save_pretrained(tmp_path)
    with pytest.raises(ValueError):
        AutoConfig.from_pretrained(tmp_path, id2label=names).validate()


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"decoder_layers": 1}, (None, None, False)),
        ({"decoder_layers": 2}, (1, 3, True)),
        ({"decoder_attention_heads": 2}, (1, None, True)),
        ({"alignment_layer": 0, "decoder_layers": 1}, (0, None, False)),
    ],
)
def test_fewer_layers_and_heads_open_without_what_was_measured_of_the_others(changes, kept, tmp_path):
    measured = {"alignment_layer": 1, "alignment_head": 3, "alignment_shifted": True}
    build_model("reluformer", **measured).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **changes)
    config = model.config
    assert (config.alignment_layer, config.alignment_head, config.alignment_shifted) == kept
    logits = logits_of(model.eval())
    model.save_pretrained(tmp_path / "fewer")
    torch.testing.assert_close(logits_of(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "fewer")), logits)


def test_a_layer_that_is_asked_for_and_missing_is_an_error(tmp_path):
    build_model("reluformer", alignment_layer=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="alignment_layer is 2"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, decoder_layers=1, alignment_layer=2)
    with pytest.raises(ValueError, match="alignment_layer is 2"):
        build_config("seq2seq", "reluformer", alignment_layer=2, decoder_layers=2)


def test_each_of_names_and_numbers_gives_the_other(tmp_path):
    for fields in (
        {"id2label": NUMBERED},
        {"id2label": NAMES},
        {"id2label": {"2": "eel", "0": "cat", "1": "dog"}},  # as JSON has them
        {"id2label": NUMBERED, "label2id": INVERSE},
        {"label2id": INVERSE, "id2label": NUMBERED},
    ):
        config = vision_config("relu-vit", id2label=["owl", "rat"])
        config.save_pretrained(tmp_path)
        opened = AutoConfig.from_pretrained(tmp_path, **fields)
        for name, value in fields.items():
            setattr(config, name, value)
        config.validate()
        for found in (config, opened, vision_config("relu-vit", **fields)):
            assert (found.num_labels, found.id2label, found.label2id) == (3, NUMBERED, INVERSE)
    assert vision_config("relu-vit", label2id=INVERSE).id2label == NUMBERED
    opened = AutoConfig.from_pretrained(tmp_path, num_labels=5)
    assert (opened.num_labels, opened.label2id["LABEL_4"]) == (5, 4)
