"""Configurations of the vision families: defaults, sizes, checks, JSON."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageClassification

from builders.models import PRESETS, TINY_VISION
from reluformers import (
    VISION_SIZES,
    AttentionConfig,
    QKNormViTConfig,
    ReLAViTConfig,
    ReLUFormerConfig,
    ReLUFormerViTConfig,
    ReLUViTConfig,
    VisionTransformerConfig,
    vision_config,
)
from reluformers.configuration.configuration_base import TransformerConfig


@pytest.mark.parametrize("preset", PRESETS)
def test_json_round_trip_is_exact_and_complete(preset, tmp_path):
    config = vision_config(preset, **TINY_VISION, pooling_attention={"preset": "rela", "threshold": 0.1})
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(config)
    loaded = type(config).from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.attention_for("pooling").threshold == 0.1
    own = (TransformerConfig.__annotations__, VisionTransformerConfig.__annotations__)
    missing = {name for names in own for name, hint in names.items() if "ClassVar" not in str(hint)} - set(saved)
    assert missing == {"problem_type"}  # transformers' own, which it leaves out at its default


def test_presets_choose_their_family():
    families = {preset: type(vision_config(preset)) for preset in PRESETS}
    assert families["relu-vit"] is ReLUViTConfig
    assert {families[name] for name in ("rela", "rela-i", "rela-g")} == {ReLAViTConfig}
    assert families["qknorm"] is QKNormViTConfig
    assert families["softmax"] is families["entmax15"] is VisionTransformerConfig
    with pytest.raises(ValueError, match="preset is 'rele'"):
        vision_config("rele")


def test_families_are_those_of_the_papers():
    assert ReLUViTConfig().attention.preset_name == "relu-vit"
    assert (ReLUViTConfig().attention.activation, ReLUViTConfig().attention.length_exponent) == ("relu", 1.0)
    assert ReLAViTConfig().attention.preset_name == "rela-g"
    assert QKNormViTConfig().attention.preset_name == "qknorm"
    reluformer = ReLUFormerViTConfig()
    assert (reluformer.normalization_loss_weight, reluformer.entropy_loss_weight) == (0.1, 0.02)
    base = VisionTransformerConfig()
    assert (base.hidden_act, base.layer_norm_eps, base.norm_position) == ("gelu_pytorch_tanh", 1e-6, "pre")


# millions, with a head of 1,000 classes: Dosovitskiy et al. 2021, table 1; Beyer et al. 2022 for S/16
@pytest.mark.parametrize(
    ("size", "millions"), [("Ti/16", 5.7), ("S/16", 22.0), ("B/16", 86.6), ("B/32", 88.2), ("L/16", 304.3)]
)
def test_named_sizes_have_the_published_numbers_of_parameters(size, millions):
    config = vision_config("softmax", size, num_labels=1000)
    with torch.device("meta"):
        model = AutoModelForImageClassification.from_config(config)
    assert model.num_parameters() / 1e6 == pytest.approx(millions, abs=0.15)


def test_sizes_for_small_images_and_overrides():
    assert vision_config("relu-vit", "Ti/4").num_tokens == 64
    assert vision_config("relu-vit", "S/4", num_hidden_layers=2, pooling="cls").num_tokens == 65
    assert set(VISION_SIZES) >= {"S/32", "S/16", "B/32", "B/16", "L/16", "Ti/4"}
    with pytest.raises(ValueError, match="size is 'XL/1', but must be one of 'Ti/4'"):
        vision_config("relu-vit", "XL/1")


def test_cosine_scale_starts_from_the_number_of_tokens():
    config = QKNormViTConfig(image_size=[32, 64], patch_size=8, pooling="cls")
    assert config.num_tokens == 33
    assert config.attention_for("encoder").scale_length == 33
    assert config.to_dict()["attention"]["scale_length"] == 33  # the file says all
    given = QKNormViTConfig(attention={"preset": "qknorm", "scale_length": 50})
    assert given.attention_for("encoder").scale_length == 50
    assert QKNormViTConfig(image_size=4, patch_size=4).attention_for("encoder").scale_length == 2


def test_single_fields_change_the_attention_of_the_family(tmp_path):
    config = ReLUViTConfig(attention={"query_key_norm": "layer_norm"})
    assert config.attention == AttentionConfig.parse({"preset": "relu-vit", "query_key_norm": "layer_norm"})
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path, attention={"threshold": 0.1})
    assert (loaded.attention.activation, loaded.attention.threshold) == ("relu", 0.1)
    assert ReLUViTConfig(attention={"preset": "rela"}).attention == AttentionConfig.parse("rela")
    assert ReLUFormerConfig(cross_attention={"scale": 2.0}).attention_for("cross").activation == "relu"
