"""Which files of a folder make a release, and which folders are not fit to be one."""

import json
from itertools import pairwise

import pytest
from transformers import AutoModelForSeq2SeqLM

from builders.hub_folders import CARD, REPO, client, write_files
from builders.pictures import encode, picture
from reluformers.publish.push import push_to_hub
from reluformers.publish.release import is_ours, select_files, stage_files


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("my_eval.py", False),
        ("__init__.py", False),
        ("scripts/attention.py", False),
        ("notes.safetensors", False),
        ("attention.py", True),
        ("handler.py", True),
        ("configuration_vision.py", True),
        ("model-00001-of-00002.safetensors", True),
        ("target_tokenizer/tokenizer.json", True),
    ],
)
def test_a_release_removes_no_file_of_the_owner(name, ours):
    assert is_ours(name) == ours


@pytest.mark.parametrize("name", ["evaluation.json", "recipe.yaml", "notebook.ipynb"])
def test_a_release_removes_the_records_of_an_earlier_one(name):
    assert is_ours(name, is_released=True)
    assert not is_ours(name)


SPOILT = {
    "no weights": ("model.safetensors", None, "model.safetensors is missing"),
    "no tokenizer": ("tokenizer.json", None, "tokenizer.json is missing"),
    "no code": ("attention.py", None, r"attention\.py is missing"),
    "no handler": ("handler.py", None, r"handler\.py is missing"),
    "no model": ("config.json", None, "its training has not finished"),
    "a run that goes on": ("results.json", None, "its training has not finished"),
    "a checkpoint": ("optimizer.pt", "x", "is a checkpoint of a training run"),
    "another model": ("config.json", '{"model_type": "bert"}', "model_type 'bert' is none of"),
    "a config that is no JSON": ("config.json", "{", r"config\.json: cannot be read"),
    "a record that is no JSON": ("results.json", "{", r"results\.json: cannot be read"),
    "no code in the config": ("config.json", '{"model_type": "reluformer"}', "config.json names no code"),
    "a picture that is missing": ("attention.png", None, "shows attention.png"),
    "a gap in the card": ("README.md", f"{CARD}\n[More Information Needed]", "More Information Needed"),
    "no metadata": ("README.md", "# Tiny", "metadata"),
    "a licence of their own": ("README.md", CARD.replace("apache-2.0", "mine"), "license"),
    "a card of another task": ("README.md", CARD.replace("translation", "image-classification"), "pipeline_tag"),
    "a path": (
        "generation_config.json",
        '{"a": "/data/secret/x.json"}',
        "line 1: names a path of this machine, /data",
    ),
    "a token": ("tokenizer_config.json", f'{{"a": "hf_{"x" * 34}"}}', "line 1: holds a token of the Hub"),
    "text that is none": ("handler.py", b"\xff\xfe", "is no UTF-8 text"),
    "a picture that is none": ("attention.png", "a password", r"attention\.png: is no picture"),
    "half a picture": ("attention.png", encode(picture(8, 12))[:40], r"attention\.png: is no picture"),
    "weights that are none": ("model.safetensors", "a password", r"model\.safetensors: are no weights"),
    "a config that is a list": ("config.json", "[]", "holds a list"),
    "a model type that is a list": ("config.json", '{"model_type": []}', r"model_type \[\] is none of"),
}


@pytest.mark.parametrize(("name", "content", "message"), SPOILT.values(), ids=SPOILT)
def test_folders_that_are_not_fit(folder, hub, name, content, message):
    if content is None:
        (folder / name).unlink()
    else:
        write_files(folder, {name: content if isinstance(content, bytes) else content.encode()})
    with pytest.raises(ValueError, match=message) as error:
        push_to_hub(folder, REPO, api=client(hub))
    assert "\n" not in str(error.value)
    assert "xxxx" not in str(error.value)
    assert not hub.repos


@pytest.mark.parametrize("name", ["attention.png", "README.md", "model.safetensors", "results.json", "handler.py"])
def test_links_out_of_the_folder_are_refused(folder, hub, tmp_path, name):
    elsewhere = (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(ValueError, match=f"{name}: is a link to a place outside of the folder"):
        push_to_hub(folder, REPO, api=client(hub))
    assert not hub.repos


def test_links_within_the_folder_are_followed(folder, tmp_path):
    (folder / "attention.png").rename(folder / "kept.png")
    (folder / "attention.png").symlink_to("kept.png")
    stage_files(folder, tmp_path / "staging")
    assert (tmp_path / "staging/attention.png").read_bytes() == (folder / "kept.png").read_bytes()


INDICES = {
    "out of the folder": ({"weight_map": {"b": "../evil.txt"}}, r"names '\.\./evil\.txt'"),
    "weights elsewhere": ({"weight_map": {"b": "../evil.safetensors"}}, "which is no file of weights"),
    "absolute": ({"weight_map": {"b": "/tmp/evil.safetensors"}}, "which is no file of weights"),
    "no text": ({"weight_map": {"b": 5}}, "names 5, which is no file of weights"),
    "no map": ({}, "is no index of weights"),
    "a list": ([], "holds a list"),
}


@pytest.mark.parametrize(("index", "message"), INDICES.values(), ids=INDICES)
def test_an_index_names_weights_of_the_folder_only(folder, tmp_path, index, message):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "evil.txt").write_text("evil")
    with pytest.raises(ValueError, match=message):
        stage_files(folder, tmp_path / "deep/staging")
    assert not (tmp_path / "deep").exists()


CODE = {
    "auto_map is a list": ({"auto_map": ["a"]}, "is not as transformers writes it"),
    "a class is a number": ({"auto_map": {"AutoConfig": 5}}, "is not as transformers writes it"),
    "an empty pipeline": ({"custom_pipelines": {"translation": {}}}, "is not as transformers writes it"),
    "code elsewhere": ({"auto_map": {"AutoConfig": "/etc/evil.Config"}}, "which is no module in the folder"),
}


@pytest.mark.parametrize(("values", "message"), CODE.values(), ids=CODE)
def test_a_config_names_code_of_the_folder_only(folder, values, message):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(ValueError, match=message):
        select_files(folder)


def test_parts_of_the_weights_are_all_there(folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.save_pretrained(folder, max_shard_size="10KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    next(folder.glob("model-00002-of-*")).unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-\d+\.safetensors is missing"):
        select_files(folder)


@pytest.mark.parametrize("name", ["recipe.yaml", "README.md", "results.json", "log_history.json"])
def test_records_nested_without_end_are_refused(folder, tmp_path, name):
    nested = "[" * 100_000
    (folder / name).write_text(f"---\n{nested}\n---\n" if name == "README.md" else nested)
    with pytest.raises(ValueError, match=name) as caught:
        stage_files(folder, tmp_path / "staging")
    assert "\n" not in str(caught.value)


def test_a_record_that_aliases_blow_up_is_refused(folder, tmp_path):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in pairwise("abcdefghi")]
    (folder / "recipe.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"recipe\.yaml"):
        stage_files(folder, tmp_path / "staging")
