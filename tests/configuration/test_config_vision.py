"""Configurations of the vision families: defaults, sizes, checks, JSON."""

import pytest
import torch
from transformers import AutoModelForImageClassification

from reluformers import (
    QKNormViTConfig,
    vision_config,
)


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


def test_cosine_scale_starts_from_the_number_of_tokens():
    config = QKNormViTConfig(image_size=[32, 64], patch_size=8, pooling="cls")
    assert config.num_tokens == 33
    assert config.attention_for("encoder").scale_length == 33
    assert config.to_dict()["attention"]["scale_length"] == 33  # the file says all
    given = QKNormViTConfig(attention={"preset": "qknorm", "scale_length": 50})
    assert given.attention_for("encoder").scale_length == 50
    assert QKNormViTConfig(image_size=4, patch_size=4).attention_for("encoder").scale_length == 2
