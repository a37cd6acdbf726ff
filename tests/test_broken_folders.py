"""Folders that carelessness or malice has broken are not opened in silence, whatever opens them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from builders.commands import ON_A_FOLDER, command_on, lay_out, refusal_of
from builders.saved_models import save_translator
from reluformers import saved_models
from reluformers.conversion.convert import open_source
from reluformers.saved_models import check_finite, load_model
from reluformers.translation.decoding import load_translation_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("whole") / "model", separate=True)


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "folder"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_broken_files_end_in_one_line(folder, capsys, name):
    content = (folder / name).read_bytes()
    for broken in (content[: len(content) // 2], b"[]", b"\xff" * 8 + content[8:]):
        (folder / name).write_bytes(broken)
        assert refusal_of(capsys, "translate", "--model", folder, "--", "a text")


@pytest.mark.parametrize("command", [name for name in ON_A_FOLDER if name not in ("push", "app --compare")])
def test_every_command_refuses_an_adapter(folder, tmp_path, capsys, command):
    """The model that it names may be anybody's."""
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    folder = Path(shutil.copytree(folder, tmp_path / "run" / "checkpoint-5"))
    lay_out(tmp_path)
    assert "adapter_config.json" in refusal_of(capsys, *command_on(folder, command, tmp_path))


def test_an_adapter_of_the_hub_is_not_opened(monkeypatch):
    found = []
    monkeypatch.setattr(saved_models, "find_adapter_config_file", lambda *_, **options: found.append(options) or "x")
    with pytest.raises(ValueError, match="adapter"):
        load_model(AutoModelForSeq2SeqLM, "ORG/NAME", revision="v1")
    assert found[-1]["revision"] == "v1"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("side", "is_sharded"), [("encoder", False), ("decoder", True)])
def test_more_layers_than_weights_are_refused_before_they_are_built(folder, capsys, side, is_sharded):
    if is_sharded:
        model, _ = load_translation_model(folder)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="20KB")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {f"{side}_layers": 10**7}))
    for open_folder in (load_translation_model, open_source):
        with pytest.raises(ValueError, match=f"{side}_layers is {10**7}"):
            open_folder(folder)
    for command in ("check", "app", "serve"):
        refusal_of(capsys, command, folder)


@pytest.mark.filterwarnings("ignore")
def test_parts_beside_a_whole_file_are_not_passed_over(folder, capsys):
    """Parts that are saved over a whole file leave it, and transformers would read that."""
    model, _ = load_translation_model(folder)
    model.save_pretrained(folder, max_shard_size="20KB")
    for open_folder in (load_translation_model, open_source):
        with pytest.raises(ValueError, match="twice"):
            open_folder(folder)
    for command in ("check", "app", "serve"):
        assert "twice" in refusal_of(capsys, command, folder)


@pytest.mark.parametrize("command", ["evaluate", "analyse", "convert", "average", "check", "train"])
def test_weights_that_are_not_finite_are_refused(folder, tmp_path, capsys, command):
    """A model with them translates everything to nothing, without an error."""
    folder = Path(shutil.copytree(folder, tmp_path / "run" / "checkpoint-5"))
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[-1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    lay_out(tmp_path)
    assert "not finite" in refusal_of(capsys, *command_on(folder, command, tmp_path))


class Quantized(torch.Tensor):
    """A weight of two tensors that knows no function, as those of torchao know few."""

    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape)

    def __init__(self, numbers, scale):
        self.numbers = numbers
        self.scale = scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(**parts)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


def test_quantized_weights_are_read_by_their_parts():
    scale = torch.ones(3)
    weights = {"weight": Quantized(torch.ones(3, 2, dtype=torch.int8), scale), "empty": torch.empty(0)}
    check_finite(weights, "folder")
    scale[1] = float("inf")
    with pytest.raises(ValueError, match="weight holds"):
        check_finite(weights, "folder")
