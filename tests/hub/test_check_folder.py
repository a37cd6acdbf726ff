"""A folder is opened as strangers will, before it is pushed."""

import json

import pytest
from transformers import ViTImageProcessorPil

from builders.hub_folders import CARD
from builders.models import build_model
from reluformers.clean_process import answer_in_clean_process
from reluformers.errors import UserError
from reluformers.hub.check import check_folder


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        check_folder(tmp_path / "none")
    with pytest.raises(UserError, match=r"holds no model, it has no config\.json"):
        check_folder(tmp_path)


def test_images_are_checked_too(tmp_path):
    build_model("relu-vit", "vision").save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 8, "width": 12}).save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text(CARD.replace("translation", "image-classification").partition("![")[0])
    check = check_folder(tmp_path)
    assert (check.task, check.difference < 1e-6) == ("image-classification", True)
    assert check.model_class.endswith("ReLUViTForImageClassification")


def test_code_that_computes_something_else_is_refused(folder):
    path = folder / "modeling_seq2seq.py"
    path.write_text(path.read_text().replace("math.sqrt(config.d_model)", "config.d_model"))
    with pytest.raises(UserError, match="computes other logits than reluformers"):
        check_folder(folder)


def test_code_of_a_folder_gets_no_token(folder, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text("hf_secret")
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "NVIDIA_API_KEY",
        "MY_OWN",
        "TORCH_home",
    ):
        monkeypatch.setenv(name, "hf_secret")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "home/token"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path / "home")
    cells = [
        "import json, os; print(json.dumps(dict(os.environ)))",
        "from pathlib import Path; print(Path('token').exists(), Path('~/token').expanduser().exists())",
        "from huggingface_hub import get_token; print(get_token())",
    ]
    environment, places, token = answer_in_clean_process("cells", folder, json.dumps(cells).encode())["outputs"]
    assert "hf_secret" not in environment
    assert str(tmp_path / "home") not in environment
    assert json.loads(environment)["OMP_NUM_THREADS"] == "1"
    assert (places, token) == ("False False\n", "None\n")


def test_code_may_print(folder):
    path = folder / "modeling_seq2seq.py"
    path.write_text(path.read_text() + "\nimport os\nprint('loaded')\nos.write(1, b'loaded')\n")
    assert check_folder(folder).task == "translation"


@pytest.mark.slow
def test_code_that_does_not_open_is_refused(folder):
    (folder / "attention.py").write_text("raise RuntimeError('two\\nlines')\n")
    with pytest.raises(UserError, match="does not open where reluformers is not installed: ") as error:
        check_folder(folder)
    assert "\n" not in str(error.value)
