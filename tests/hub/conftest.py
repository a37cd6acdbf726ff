"""A Hub, and folders to push to it."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.utils import _http

from builders.hub_folders import CHECKED, save_translation_run
from builders.hub_server import serve_hub
from reluformers.publish import push


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Path:
    """A translation model as a training run leaves it."""
    return save_translation_run(tmp_path_factory.mktemp("saved") / "run")


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture
def hub(monkeypatch):
    """A Hub that this process may talk to, without waiting between retries."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(_http.time), "sleep": lambda seconds: None}))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "nowhere")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve_hub() as server:
        yield server


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves the clean process out, which takes seconds and has tests of its own."""
    monkeypatch.setattr(push, "check_folder", lambda folder, store: CHECKED)
