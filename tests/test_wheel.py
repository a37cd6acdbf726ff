"""The wheel as somebody installs it who has torch and transformers and no copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]

USE = """
import json, sys
from pathlib import Path

import reluformers
from reluformers import ReLAViTForImageClassification, seq2seq_config, vision_config
from reluformers.publish.space import space_files
from reluformers.publish.card import write_card

place = Path(reluformers.__file__).parent
assert place.parent == Path(sys.argv[1]), place
sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
model = ReLAViTForImageClassification(vision_config("rela-g", **sizes, intermediate_size=8))
model.save_pretrained("model")
assert "modeling_vision.py" in {path.name for path in Path("model").iterdir()}
assert "app.py" in space_files("someone/model", "v1")
card = write_card("model", "someone/model").read_text()
assert "tells images of 2 classes apart" in card
seq2seq_config("reluformer").save_pretrained("translator")
assert "translates" in write_card("translator", "someone/translator").read_text()
"""


@pytest.fixture
def source(tmp_path_factory) -> Path:
    """A copy of what a wheel is made of: a build writes into its folder, and takes what an earlier one left there."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (
        "app",
        "configuration",
        "modeling",
        "model_cards",
        "native",
        "reluformers",
        "reluformers_cli",
        "reluformers_kernels",
    ):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.dll"))
    return source


def build(kind: str, source: Path, folder: Path, **environment: str) -> Path:
    """Build a "wheel" or "sdist" into a folder."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=source, env={**os.environ, **environment})
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture
def installed(source, tmp_path_factory) -> Path:
    """An environment with the wheel, and with the libraries of this one but not its reluformers."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(build("sdist", source, folder), folder)
    wheel = build("wheel", folder / "reluformers-0.1.0", folder)
    assert wheel.name.startswith("reluformers-0.1.0-py3-none-")
    assert wheel.stat().st_size < 3e6
    pip = [sys.executable, "-m", "pip"]
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    # the files of an editable installation are found by a .pth file, which counts in a site's own folder alone
    (packages / "libraries.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    subprocess.run([*pip, "--python", environment, "install", "--quiet", "--no-deps", wheel], check=True, cwd=folder)
    return packages


@pytest.mark.slow
def test_the_wheel_is_whole(installed, tmp_path):
    (environment,) = installed.parents[2:3]
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    used = subprocess.run([environment / "bin" / "python", "-c", USE, installed], **run)
    assert used.returncode == 0, used.stderr
    command = subprocess.run([environment / "bin" / "reluformers", "--version"], **run)
    assert command.stdout.startswith("reluformers 0."), command.stderr
    if shutil.which("cc"):
        without_compiler = {**run, "env": {"PATH": str(environment / "bin"), "HOME": str(tmp_path)}}
        shown = subprocess.run([environment / "bin" / "reluformers", "env"], **without_compiler)
        assert re.search(r"native +compiled: \w+ \(wheel\)", shown.stdout), shown
    # what stays at home
    assert not list(installed.glob("tests")) + list(installed.glob("modeling")) + list(installed.glob("scripts"))
