"""The image demo's steps: the set, and a saved folder in the process without reluformers."""

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from transformers import AutoModelForImageClassification

from demo import digits
from demo.digits import classify_in_clean_process, first_digit, write_digits
from reluformers.images.loading import class_names, load_image_split
from reluformers.images.processing import build_image_processor
from reluformers.tasks import load_recipe

ROOT = Path(__file__).parents[2]
COPIES = 2  # of the demo's 15, which take seconds to draw


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "COPIES", COPIES)
        return write_digits(tmp_path_factory.mktemp("digits") / "data")


def test_every_digit_is_in_one_split(files):
    splits = {name: load_image_split({name: str(file)}, name) for name, file in files.items()}
    assert {name: len(split) for name, split in splits.items()} == {"train": 1437 * (1 + COPIES), "validation": 360}
    for split in splits.values():
        assert class_names(split) == [str(digit) for digit in range(10)]
    labels = [*splits["train"]["label"][:1437], *splits["validation"]["label"]]
    assert list(splits["train"]["label"]) == labels[:1437] * (1 + COPIES)
    assert sorted(labels) == sorted(load_digits().target)
    assert np.bincount(list(splits["validation"]["label"]), minlength=10).min() > 20


@pytest.mark.slow
def test_folder_opens_where_the_library_is_not(files, tmp_path):
    config = load_recipe(ROOT / "scripts" / "recipes" / "demo_digits.yaml").model_config(num_labels=10)
    model = AutoModelForImageClassification.from_config(config)
    model.save_pretrained(tmp_path)
    build_image_processor(model.config).save_pretrained(tmp_path)
    answer = classify_in_clean_process(tmp_path, first_digit(files["validation"])[0])
    assert re.fullmatch(r"transformers_modules\..*\.ReLUViTForImageClassification", answer["model_class"])
    assert answer["score"] == pytest.approx(0.1)  # an untrained head is 0
