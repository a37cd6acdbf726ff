"""Folders that carelessness or malice has broken are refused in one line by whatever opens them."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

from builders.broken_files import INDEX, SHARD, break_folder, split_weights
from builders.commands import refusal_of
from builders.saved_models import save_classifier, save_translator
from reluformers import saved_models
from reluformers.conversion.convert import open_processor, open_source
from reluformers.images.scoring import load_image_model
from reluformers.saved_models import load_config, load_model
from reluformers.translation.decoding import load_translation_model

HUGE = 10**9
SIZES = {
    "translation": [
        *("vocab_size", "d_model", "encoder_layers", "max_position_embeddings", "num_labels"),
    ],
    "images": [
        *("image_size", "num_hidden_layers", "num_register_tokens"),
    ],
}
RECIPE = """
task: translation
model: {model}
data: {{source_lang: source, target_lang: target, path: {data}}}
training: {{max_steps: 3, max_tokens: 100}}
"""


def _open_processor(folder):
    open_processor(open_source(folder))


COMMON = [load_config, _open_processor]
DOORS = {
    "translation": [*COMMON, load_translation_model],
    "images": [*COMMON, load_image_model],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    saved = {
        "translation": save_translator(folder / "translation", separate=True),
        "images": save_classifier(folder / "images"),
    }
    return saved


@pytest.fixture
def copy_of(whole, tmp_path):
    return {kind: Path(shutil.copytree(path, tmp_path / kind)) for kind, path in whole.items()}


def change_json(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_config(folder, **fields):
    content = json.loads((folder / "config.json").read_text()) | fields
    if "num_labels" in fields:
        content = {name: value for name, value in content.items() if name not in ("id2label", "label2id")}
    (folder / "config.json").write_text(json.dumps(content))


def outcomes_of(whole, place, kind, seeds):
    """How many doors opened broken folders, how many refused them in one line, and what else came through."""
    opened, refused, failures = 0, 0, []
    for seed in seeds:
        folder = place / f"{kind}-{seed}"
        shutil.copytree(whole[kind], folder)
        what = break_folder(folder, random.Random(seed))
        for door in DOORS[kind]:
            try:
                door(folder)
                opened += 1
            except ValueError as error:
                refused += 1
                if "\n" in str(error):
                    failures.append(f"{seed} {what}: {door.__name__}: several lines: {error}")
            except BaseException as error:  # that of Rust is no Exception
                failures.append(f"{seed} {what}: {door.__name__}: {type(error).__name__}: {error!s:.150}")
        shutil.rmtree(folder)
    return opened, refused, failures


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.filterwarnings("ignore")
def test_broken_files_are_refused_in_one_line(whole, tmp_path, kind):
    opened, refused, failures = outcomes_of(whole, tmp_path, kind, range(25))
    assert not failures
    assert opened > 8  # what a door does not read does not matter to it
    assert refused > 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.filterwarnings("ignore")
def test_many_broken_files_are_refused_in_one_line(whole, tmp_path, kind):
    assert not outcomes_of(whole, tmp_path, kind, range(25, 400))[2]


@pytest.fixture
def no_weights_are_made(copy_of, monkeypatch):
    make = PreTrainedModel.__init__

    def make_on_meta(*arguments, **options):
        assert torch.get_default_device().type == "meta"
        make(*arguments, **options)

    monkeypatch.setattr(PreTrainedModel, "__init__", make_on_meta)


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in SIZES.items() for field in fields])
def test_a_huge_size_is_refused_at_once_wherever_a_folder_is_opened(copy_of, kind, field, no_weights_are_made):
    change_config(copy_of[kind], **{field: HUGE})
    for door in DOORS[kind]:
        with pytest.raises(ValueError, match=field):
            door(copy_of[kind])


@pytest.mark.parametrize(
    ("kind", "auto_class", "fields"),
    [
        ("translation", AutoModelForSeq2SeqLM, {"encoder_layers": 9000}),
        ("translation", AutoModelForSeq2SeqLM, {"vocab_size": 10**7}),
        ("translation", AutoModelForSeq2SeqLM, {"d_model": 2**15}),
        ("images", AutoModelForImageClassification, {"num_hidden_layers": 9000}),
        ("images", AutoModelForImageClassification, {"hidden_size": 2**14}),
    ],
)
def test_a_size_that_the_weights_do_not_have_is_refused_before_it_takes_memory(
    copy_of, kind, auto_class, fields, no_weights_are_made
):
    change_config(copy_of[kind], **fields)
    for split in (False, True):
        if split:
            split_weights(copy_of[kind])
        with pytest.raises(ValueError, match=r"config\.json"):
            load_model(auto_class, copy_of[kind])


def command_lines(folder, place):
    """Every command that opens a folder, but push, which wants the Hub first and then does what check does."""
    data = place / "data.jsonl"
    data.write_text('{"source": "a", "target": "b"}\n')
    recipe = place / "recipe.yaml"
    recipe.write_text(RECIPE.format(model=f"{{start: {folder}}}", data=data))
    checkpoint = place / "run" / "checkpoint-5"
    if not checkpoint.exists():
        shutil.copytree(folder, checkpoint, symlinks=True)
    return {
        "evaluate": ["evaluate", folder, "--data", data, "--source_lang", "source", "--target_lang", "target"],
        "analyse": ["analyse", folder, data, "--output", place / "analysis.json"],
        "align": ["align", folder, data, "--output", place / "links"],
        "filter": ["filter", folder, data, "--output", place / "kept.jsonl"],
        "convert": ["convert", folder, place / "converted"],
        "convert back": ["convert", folder, place / "converted", "--back"],
        "average": ["average", place / "run", "--last", "1", "--output", place / "averaged"],
        "card": ["card", folder, "--repo_id", "acme/tiny", "--output", place / "card"],
        "check": ["check", folder],
        "app": ["app", folder],
        "train": ["train", recipe, "--output_dir", place / "trained"],
    }


COMMANDS = [
    *("evaluate", "analyse", "align", "filter", "convert", "convert back", "average", "card", "check", "app"),
    "train",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_an_adapter(copy_of, tmp_path, capsys, command):
    folder = copy_of["translation"]
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    assert "adapter_config.json" in refusal_of(capsys, *command_lines(folder, tmp_path)[command])


def test_an_adapter_of_the_hub_is_not_opened(monkeypatch):
    found = []
    monkeypatch.setattr(saved_models, "find_adapter_config_file", lambda *_, **options: found.append(options) or "x")
    with pytest.raises(ValueError, match="adapter"):
        load_model(AutoModelForSeq2SeqLM, "ORG/NAME", revision="v1")
    assert found[-1]["revision"] == "v1"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["beside", "absolute"])
def test_every_command_refuses_an_index_that_leaves_its_folder(copy_of, tmp_path, capsys, command, kind):
    folder = copy_of["translation"]
    outside = tmp_path / "x.safetensors"
    name = {"beside": "../x.safetensors", "absolute": str(outside)}[kind]
    split_weights(folder, name)
    (folder / SHARD).rename(outside)  # all that is wrong is its place
    line = refusal_of(capsys, *command_lines(folder, tmp_path)[command])
    assert INDEX in line
    assert name in line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_parts_beside_a_whole_file(copy_of, tmp_path, capsys, command):
    folder = copy_of["translation"]
    split_weights(folder)
    shutil.copy(folder / SHARD, folder / "model.safetensors")
    line = refusal_of(capsys, *command_lines(folder, tmp_path)[command])
    assert INDEX in line or "model.safetensors" in line


def test_an_index_whose_parts_are_gone_is_left_alone(copy_of):
    split_weights(copy_of["translation"])
    (copy_of["translation"] / SHARD).rename(copy_of["translation"] / "model.safetensors")
    load_translation_model(copy_of["translation"])


@pytest.mark.filterwarnings("ignore")
def test_parts_saved_over_a_whole_file_are_not_passed_over(copy_of):
    folder = copy_of["translation"]
    model, _ = load_translation_model(folder)
    model.save_pretrained(folder, max_shard_size="20KB")
    with pytest.raises(ValueError, match="twice"):
        load_translation_model(folder)


def test_an_index_of_the_hubs_cache_is_read_through_its_links(copy_of, tmp_path):
    split_weights(copy_of["translation"])
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "123", tmp_path / "models--a--b" / "blobs"
    shutil.copytree(copy_of["translation"], blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    load_translation_model(snapshot)
