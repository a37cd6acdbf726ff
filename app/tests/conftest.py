"""Models that the tests of the app share."""

import os
import sys

import pytest

from builders.pictures import picture
from builders.saved_models import save_classifier, save_translator
from reluformers.publish.space import SPACE

sys.path.insert(0, str(SPACE))  # as Python does for `python app.py`
import models


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> models.Translator:
    return models.load_model(str(save_translator(tmp_path_factory.mktemp("translator"))))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> models.Classifier:
    return models.load_model(str(save_classifier(tmp_path_factory.mktemp("classifier"), pooling="attention")))


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """The page takes from the environment what may be a token."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.fixture
def image_file(tmp_path) -> str:
    picture(16, 24).save(tmp_path / "image.png")
    return str(tmp_path / "image.png")
