"""A folder's config.json that names a kernel of the Hub: no loader fetches its code."""

import pytest
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM, pipeline

from builders.models import build_model
from reluformers.saved_models import load_config, load_model
from reluformers_cli import main

from .test_by_name import build, exchanged
from .test_never_softmax import change_config, llava

KERNELS = ["owner/kernel", "kernels-community/flash-attn2:run", "paged|owner/kernel@main"]


@pytest.fixture
def fetched(monkeypatch):
    """Names that were asked of the loader of kernels."""
    names = []
    for module in (transformers.modeling_utils, transformers.integrations.hub_kernels):
        for name in ("lazy_import_flash_attention", "load_and_register_attn_kernel", "get_kernel"):
            monkeypatch.setattr(module, name, lambda *given, **options: names.append(given), raising=False)
    return names


LOADERS = {
    "named": lambda folder: AutoModelForCausalLM.from_pretrained(folder),
    "class": lambda folder: transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation=None),
    "configuration": AutoConfig.from_pretrained,
    "config": load_config,
    "model": lambda folder: load_model(AutoModelForCausalLM, folder),
    "pipeline": lambda folder: pipeline("text-generation", str(folder)),
    "convert": lambda folder: main(["convert", str(folder), str(folder / "out"), "--preset", "rela-g"]),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("loader", LOADERS)
def test_no_kernel_of_a_folder_is_fetched(loader, kernel, tmp_path, fetched):
    build("llama", "relu_attention").save_pretrained(tmp_path)
    change_config(tmp_path, kernel, "attn_implementation")
    with pytest.raises((ValueError, SystemExit)):
        LOADERS[loader](tmp_path)
    assert not fetched


@pytest.mark.parametrize("kind", ["translation", "exchanged", "part", "part by name"])
def test_no_kernel_of_another_kind_of_folder_is_fetched(kind, tmp_path, fetched):
    auto = AutoModelForCausalLM
    path = ["attn_implementation"]
    if kind == "translation":
        auto = AutoModelForSeq2SeqLM
        build_model().save_pretrained(tmp_path)
    elif kind == "exchanged":
        path.insert(0, "base")
        exchanged().save_pretrained(tmp_path)
    else:
        auto, path = AutoModelForImageTextToText, {"part": ["text_config", *path], "part by name": [*path, ""]}[kind]
        llava(attn_implementation={"vision_config": "relu_attention"}).save_pretrained(tmp_path)
    change_config(tmp_path, "owner/kernel", *path)
    with pytest.raises(ValueError, match="owner/kernel"):
        auto.from_pretrained(tmp_path)
    assert not fetched


def test_another_attention_may_be_named_in_its_place(tmp_path, fetched):
    build("llama", "sdpa").save_pretrained(tmp_path)
    change_config(tmp_path, "owner/kernel", "attn_implementation")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="relu_attention")
    assert model.config._attn_implementation == "relu_attention"
    assert not fetched
