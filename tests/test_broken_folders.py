"""Folders that carelessness or malice has broken end in one of `FAULTS`, whatever opens them."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from builders.commands import ON_A_FOLDER, command_on, lay_out, refusal_of
from builders.saved_models import save_classifier, save_translator
from reluformers import saved_models
from reluformers.conversion.convert import open_processor, open_source
from reluformers.errors import FAULTS
from reluformers.images.scoring import load_image_model
from reluformers.saved_models import load_config, load_model
from reluformers.translation.decoding import load_translation_model


def _open_processor(folder):
    open_processor(open_source(folder))


DOORS = {
    "translation": [load_config, _open_processor, load_translation_model],
    "images": [load_config, _open_processor, load_image_model],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return {
        "translation": save_translator(folder / "translation", separate=True),
        "images": save_classifier(folder / "images"),
    }


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole["translation"], tmp_path / "folder"))


BROKEN = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "a list": lambda data: b"[]",
    "nested": lambda data: b"[" * 100_000,
    "no text": lambda data: b"\xff\xfe" + data,
    "a header without an end": lambda data: b"\xff" * 8 + data[8:],
}
FIELDS = ("model_type", "attention", "dtype", "auto_map", "architectures", "attn_implementation", "num_labels")
JUNK = (-1, 10**400, math.nan, "\ud800", [None])
QUANTIZATIONS = (3, [], {"quant_method": "gptq", "bits": "x"}, {"load_in_8bit": True, "config_groups": []})


def broken_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a folder by name, and what carelessness or malice may leave in them."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"):
        if (folder / name).exists():
            yield from ((name, spoil((folder / name).read_bytes())) for spoil in BROKEN.values())
    config = json.loads((folder / "config.json").read_text())
    changes = [{name: junk} for name in FIELDS for junk in JUNK]
    for change in [*changes, *({"quantization_config": junk} for junk in QUANTIZATIONS)]:
        yield "config.json", json.dumps({**config, **change}).encode()


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.filterwarnings("ignore")
def test_broken_files_are_refused(whole, tmp_path, kind):
    opened, refused, failures = 0, 0, []
    for number, (name, content) in enumerate(broken_files(whole[kind])):
        folder = Path(shutil.copytree(whole[kind], tmp_path / f"{kind}-{number}"))
        (folder / name).write_bytes(content)
        for door in DOORS[kind]:
            try:
                door(folder)
                opened += 1
            except FAULTS:  # which a command prints as one line
                refused += 1
            except BaseException as error:  # that of Rust is no Exception
                failures.append(f"{name} {content[:60]!r}: {door.__name__}: {type(error).__name__}: {error!s:.150}")
        shutil.rmtree(folder)
    assert not failures
    assert min(opened, refused) > 3  # what a door does not read does not matter to it


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
def test_parts_beside_a_whole_file_are_not_passed_over(folder, capsys):
    """Parts that are saved over a whole file leave it, and transformers would read that."""
    model, _ = load_translation_model(folder)
    model.save_pretrained(folder, max_shard_size="20KB")
    for open_folder in (load_translation_model, open_source):
        with pytest.raises(ValueError, match="twice"):
            open_folder(folder)
    for command in ("check", "app", "serve"):
        assert "twice" in refusal_of(capsys, command, folder)


SHARD = "model-00001-of-00001.safetensors"


def split_weights(folder: Path) -> None:
    """Give a folder an index in place of its one file of weights."""
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / SHARD)
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, SHARD)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_an_index_whose_parts_are_gone_is_left_alone(folder):
    split_weights(folder)
    (folder / SHARD).rename(folder / "model.safetensors")
    load_translation_model(folder)


def test_an_index_of_the_hubs_cache_is_read_through_its_links(folder, tmp_path):
    split_weights(folder)
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "123", tmp_path / "models--a--b" / "blobs"
    shutil.copytree(folder, blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    load_translation_model(snapshot)
