"""Which files of a folder make a release, and which folders are not fit to be one."""

import json

import pytest
from huggingface_hub.utils import filter_repo_objects

from builders.hub_folders import CARD, REPO, client, write_files
from reluformers.publish.push import push_to_hub
from reluformers.publish.release import REMOVED, read_saved_model, refuse_tokens, stage_files


def test_a_release_removes_no_file_of_the_owner():
    owners = ["my_eval.py", "__init__.py", "scripts/attention.py", "notes.safetensors", "README.md", ".gitattributes"]
    ours = ["attention.py", "handler.py", "configuration_vision.py", "model-00001-of-00002.safetensors"]
    ours += ["target_tokenizer/tokenizer.json", "evaluation.json", "notebook.ipynb"]
    assert list(filter_repo_objects([*owners, *ours], allow_patterns=list(REMOVED))) == ours


TOKEN = "hf_" + "aB3d" * 9
SPOILT = {
    "no weights": ("model.safetensors", None),
    "no tokenizer": ("tokenizer.json", None),
    "no code": ("attention.py", None),
    "a run that goes on": ("results.json", None),
    "another model": ("config.json", '{"model_type": "bert"}'),
    "a record that is no JSON": ("results.json", "{"),
    "a token": ("tokenizer_config.json", json.dumps({"a": TOKEN})),
    "a token in the card": ("README.md", f"{CARD}\n{TOKEN}"),
    "a key in a record": ("results.json", json.dumps({"a": "-----BEGIN RSA PRIVATE KEY-----"})),
}


FOUND_BY_OPENING = ("no weights", "no tokenizer")


@pytest.mark.parametrize("fault", SPOILT)
def test_folders_that_are_not_fit(folder, hub, request, fault):
    name, content = SPOILT[fault]
    if fault not in FOUND_BY_OPENING:
        request.getfixturevalue("unchecked")
    if content is None:
        (folder / name).unlink()
    else:
        write_files(folder, {name: content.encode()})
    with pytest.raises((ValueError, OSError)) as error:
        push_to_hub(folder, REPO, api=client(hub))
    assert TOKEN not in str(error.value)
    assert not any(repo.tags or not repo.private for repo in hub.repos.values())


KEYS = [TOKEN, "ghp_" + "aB3d" * 9, "github_pat_" + "11ABCDE_" * 6, "sk-proj-" + "aB3_" * 12, "AKIA" + "ABCD2345" * 2]


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_found_and_ordinary_text_is_none(tmp_path, key):
    (tmp_path / "notes.json").write_text(f'{{"a": "{key}"}}')
    with pytest.raises(ValueError, match=r"notes\.json"):
        refuse_tokens(tmp_path)
    (tmp_path / "notes.json").write_text(f"task-{'aB3_' * 12} hf_hub_download sk-learn {'0a1b' * 10}")
    refuse_tokens(tmp_path)


@pytest.mark.parametrize("name", ["attention.png", "model.safetensors", "results.json"])
def test_links_out_of_the_folder_are_refused(folder, hub, tmp_path, name):
    elsewhere = (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(ValueError, match=name):
        push_to_hub(folder, REPO, api=client(hub))
    assert not hub.repos


def test_a_folder_names_code_of_its_own_only(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "/tmp/evil.X"}}))
    with pytest.raises(ValueError, match="outside of the folder"):
        stage_files(read_saved_model(folder), tmp_path / "staging")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("../corpora/my train.tsv", "my train.tsv"),
        ("C:\\runs\\x\\", "x"),
        ("file:///home/x/y.txt", "y.txt"),
        ("bentrevett/multi30k", "bentrevett/multi30k"),
        ("https://example.com/a/b", "https://example.com/a/b"),
        (["/a/b", {"c": "/d/e"}], ["b", {"c": "e"}]),
    ],
)
def test_paths_of_records_become_names(folder, tmp_path, value, written):
    results = {"place": value, "examples": [{"source": "/etc/fstab is a file"}]}
    (folder / "results.json").write_text(json.dumps(results))
    stage_files(read_saved_model(folder), tmp_path / "staging")
    assert json.loads((tmp_path / "staging/results.json").read_text()) == {**results, "place": written}
    assert "train: train.jsonl\n" in (tmp_path / "staging/recipe.yaml").read_text()
    assert "/data/secret" in (folder / "recipe.yaml").read_text()
