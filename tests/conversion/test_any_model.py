"""`reluformers convert` of models that keep their class: whole, as an adapter, refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from builders.commands import refusal_of, run_command
from reluformers import load_adapter

SIZES = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)).save_pretrained(folder)
    return folder


def logits(model):
    return model.eval()(torch.arange(3, 12)[None]).logits.detach()


def test_a_model_and_its_adapter_compute_the_same(source, tmp_path):
    torch.manual_seed(0)  # gates are drawn
    run_command("convert", source, tmp_path / "whole", "--preset", "rela-g")
    torch.manual_seed(0)
    run_command("convert", source, tmp_path / "adapter", "--preset", "rela-g", "--adapter")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    base = AutoModelForCausalLM.from_pretrained(source)
    assert not torch.allclose(logits(base), logits(whole), atol=1e-4)
    assert torch.equal(logits(load_adapter(base, tmp_path / "adapter")), logits(whole))
    assert sum(file.stat().st_size for file in (tmp_path / "adapter").iterdir()) < 5000
    saved = json.loads((tmp_path / "adapter" / "exchanged_attention.json").read_text())
    assert saved["base_model"] == str(source)


def test_some_modules(source, tmp_path):
    run_command("convert", source, tmp_path / "some", "--preset", "reluformer", "--sites", "model.layers.1.*")
    config = json.loads((tmp_path / "some" / "config.json").read_text())
    assert list(config["modules"]) == ["model.layers.1.self_attn"]


def test_weights_that_are_missing_are_not_made_up(source, tmp_path, capsys):
    shutil.copytree(source, tmp_path / "cut")
    weights = load_file(source / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "cut" / "model.safetensors", {"format": "pt"})
    line = refusal_of(capsys, "convert", tmp_path / "cut", tmp_path / "out", "--preset", "rela-g")
    assert "lack model.layers.1.mlp.up_proj.weight" in line
