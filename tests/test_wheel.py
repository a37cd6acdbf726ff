"""The wheel as somebody installs it who has torch and transformers and no copy of the repository."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

USE = """
import json, sys
from pathlib import Path

import reluformers
from reluformers import ReLAViTForImageClassification, seq2seq_config, vision_config
from reluformers.app import space_files
from reluformers.publish.card import write_card

place = Path(reluformers.__file__).parent
assert place.parent == Path(sys.argv[1]), place
assert (place / "py.typed").is_file()
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An environment with the wheel, and with the libraries of this one but not its reluformers."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # a build writes into its source folder, and takes what an earlier one has left there
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (
        "configuration",
        "modeling",
        "model_cards",
        "native",
        "reluformers",
        "reluformers_cli",
        "reluformers_kernels",
    ):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    pip = [sys.executable, "-m", "pip"]
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source],
        check=True,
        cwd=folder,
    )
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    # the files of an editable installation are found by a .pth file, which counts in a site's own folder alone
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
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
        assert list((installed / "reluformers_native").glob("_generic*"))
    # what stays at home
    assert not list(installed.glob("tests")) + list(installed.glob("modeling")) + list(installed.glob("scripts"))
