"""Pushing to a Hub: what goes up and what stays at home, releases, interruptions, refusals."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import _http
from transformers import AutoModelForSeq2SeqLM, ViTImageProcessorPil

from builders.hub_server import Hub, serve_hub
from builders.models import build_model
from builders.pictures import encode, picture
from reluformers import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformers.errors import UserError
from reluformers.hub import push
from reluformers.hub.check import check_folder
from reluformers.hub.files import is_ours, select_files, stage_files
from reluformers.hub.push import check_names, push_to_hub
from reluformers.hub.repository import UNFINISHED
from reluformers.hub.space import push_space
from reluformers.translation.tokenization import train_tokenizer

ROOT = Path(__file__).parents[2]
REPO = "acme/tiny"
CARD = """---
library_name: transformers
pipeline_tag: translation
license: apache-2.0
---

# Tiny

![Attention](attention.png)
"""
# what training leaves and nobody else should see
PRIVATE = {
    "training_args.bin": b"pickle",
    "scheduler.pt": b"pickle",
    "pytorch_model.bin": b"pickle",
    "checkpoint-5/optimizer.pt": b"pickle",
    "checkpoint-5/trainer_state.json": b"{}",
    "__pycache__/attention.cpython-311.pyc": b"cache",
    ".env": b"HF_TOKEN=hf_secret",
    "notes.txt": b"call her back",
    "train.py": b"import reluformers",
    "curves.png": b"not shown by the card",
}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A translation model as a training run leaves it."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    tokenizer = train_tokenizer(["in 5 days", "two dogs play in the snow", "a man rides a red bicycle"] * 3, 60)
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32}
    torch.manual_seed(0)
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = "data:\n  train: /data/secret/train.jsonl\n  path: bentrevett/multi30k\n"
    results = {"model": "C:\\runs\\x", "data": "../corpora/test.tsv", "bleu": 1.5}
    records = {"recipe.yaml": recipe.encode(), "results.json": json.dumps(results).encode()}
    write_files(folder, {**records, **PRIVATE, "README.md": CARD.encode(), "attention.png": encode(picture(8, 12))})
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture
def hub(monkeypatch):
    """A Hub that this process may talk to, without waiting between retries."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(_http.time), "sleep": lambda seconds: None}))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "nowhere")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve_hub() as server:
        yield server


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves the clean process out, which takes seconds and has tests of its own."""
    monkeypatch.setattr(push, "check_folder", lambda folder: None)


def client(hub: Hub, token: str | None = "hf_writer") -> HfApi:
    return HfApi(hub.endpoint, token=token)


def environment(hub: Hub, home: Path) -> dict[str, str]:
    """Of a process that uses the Hub."""
    values = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_writer", "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    return {**os.environ, **values, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def run_script(hub: Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "reluformers", "push", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(hub, home), check=False)


def test_a_stranger_uses_what_the_command_has_pushed(saved, hub, tmp_path):
    result = run_script(hub, tmp_path, str(saved), REPO, "--space")
    assert result.returncode == 0, result.stderr
    assert f"{hub.endpoint}/{REPO}: v1 is pushed (public" in result.stdout
    code = """
        import sys
        sys.modules["reluformers"] = None
    """ + result.stdout[result.stdout.index("from transformers") :]
    stranger = subprocess.run(
        [sys.executable, "-I", "-c", "\n".join(line.strip() for line in code.splitlines())],
        capture_output=True,
        text=True,
        env={**environment(hub, tmp_path / "stranger"), "HF_TOKEN": ""},
        check=False,
    )
    assert stranger.returncode == 0, stranger.stderr
    assert "translation_text" in stranger.stdout


def test_release_is_one_commit_of_what_belongs_to_the_model(saved, hub, unchecked):
    lines = []
    release = push_to_hub(saved, REPO, api=client(hub), report=lines.append)
    repo = hub.repos["models", REPO]
    files = repo.commits[repo.branches["main"]]
    assert set(files) == {*select_files(saved), ".gitattributes"}
    assert not {Path(name).name for name in PRIVATE} & {Path(name).name for name in files}
    code = {"handler.py", "modeling_seq2seq.py", "attention.py"}
    assert code | {"model.safetensors", "tokenizer.json", "generation_config.json", "README.md"} <= set(files)
    assert hub.large[files["model.safetensors"]] == (saved / "model.safetensors").read_bytes()
    assert repo.titles == ["initial commit", "Release v1"]
    assert repo.tags == {"v1": repo.branches["main"]}
    assert not repo.private
    assert UNFINISHED not in repo.branches
    assert (release.revision, release.is_new, release.commit) == ("v1", True, repo.tags["v1"])
    assert len(lines) == 2


def test_records_are_published_with_names_for_paths(saved, hub, unchecked):
    push_to_hub(saved, REPO, api=client(hub))
    repo = hub.repos["models", REPO]
    files = repo.commits[repo.tags["v1"]]
    assert files["recipe.yaml"].decode() == "data:\n  train: train.jsonl\n  path: bentrevett/multi30k\n"
    assert json.loads(files["results.json"]) == {"model": "x", "data": "test.tsv", "bleu": 1.5}
    assert "/data/secret" in (saved / "recipe.yaml").read_text()


def test_second_call_changes_nothing_and_new_weights_are_a_new_revision(folder, hub, unchecked):
    api, repo_id = client(hub), REPO
    first = push_to_hub(folder, repo_id, api=api)
    again = push_to_hub(folder, repo_id, api=api)
    assert (again.revision, again.commit, again.is_new) == ("v1", first.commit, False)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.lm_head.weight.data += 1
    model.save_pretrained(folder, max_shard_size="10KB")
    (folder / "model.safetensors").unlink()
    second = push_to_hub(folder, repo_id, api=api)
    repo = hub.repos["models", repo_id]
    assert second.revision == "v2"
    assert repo.tags == {"v1": first.commit, "v2": second.commit}
    assert "model.safetensors" in repo.commits[first.commit]
    assert "model.safetensors" not in repo.commits[second.commit]
    assert "model-00001-of-" in " ".join(repo.commits[second.commit])
    named = push_to_hub(folder, repo_id, api=api, revision="paper")
    assert (repo.tags["paper"], named.is_new) == (second.commit, False)
    with pytest.raises(UserError, match="revision v1 is taken by another release"):
        push_to_hub(folder, repo_id, api=api, revision="v1")


def test_a_card_is_written_where_there_is_none_and_stays_the_same(folder, hub, unchecked):
    (folder / "README.md").unlink()
    release = push_to_hub(folder, REPO, api=client(hub))
    repo = hub.repos["models", REPO]
    assert 'revision="v1"' in repo.commits[release.commit]["README.md"].decode()
    assert not (folder / "README.md").exists()
    assert not push_to_hub(folder, REPO, api=client(hub)).is_new


def test_revision_is_the_one_that_the_card_loads(folder, hub, unchecked):
    (folder / "README.md").write_text(f'{CARD}\nfrom_pretrained("{REPO}", revision="v7")\n')
    with pytest.raises(UserError, match=r"README\.md: loads revision v7, but v1 is pushed"):
        push_to_hub(folder, REPO, api=client(hub), revision="v1")
    assert push_to_hub(folder, REPO, api=client(hub)).revision == "v7"
    (folder / "generation_config.json").write_text('{"num_beams": 3}')
    with pytest.raises(UserError, match=r"revision v7, which .*README\.md loads, is taken"):
        push_to_hub(folder, REPO, api=client(hub))


@pytest.mark.parametrize("answers", [False, True], ids=["request lost", "answer lost"])
def test_a_second_call_finishes_what_was_cut_off(saved, hub, unchecked, answers):
    api = client(hub)
    for after in range(50):
        repo_id = f"acme/cut-{after}"
        hub.cut(after, answers=answers)
        try:
            push_to_hub(saved, repo_id, api=api)
            break
        except UserError as error:
            message = str(error)
        assert "no connection" in message
        assert "\n" not in message
        repo = hub.repos.get(("models", repo_id))
        begun = repo and UNFINISHED not in repo.branches and not repo.tags
        assert repo is None or repo.private or "v1" in repo.tags
        hub.mend()
        push_to_hub(saved, repo_id, api=api)
        repo = hub.repos["models", repo_id]
        assert repo.tags == {"v1": repo.branches["main"]}
        assert repo.titles == ["initial commit", "Release v1"]
        # between creation and mark nothing tells it from a repository that somebody wants to keep private
        assert repo.private == bool(begun)
        assert UNFINISHED not in repo.branches
    assert 10 < after < 49


def test_private_stays_private(saved, hub, unchecked):
    assert push_to_hub(saved, REPO, private=True, api=client(hub)).private
    assert push_to_hub(saved, REPO, api=client(hub)).private
    assert hub.repos["models", REPO].private
    push_to_hub(saved, "acme/open", api=client(hub))
    with pytest.raises(UserError, match="is public already"):
        push_to_hub(saved, "acme/open", private=True, api=client(hub))


REFUSALS = {
    "wrong token": ("hf_nonsense", REPO, "does not know this token"),
    "no token": (None, REPO, "there is no token"),
    "read-only token": ("hf_reader", REPO, "the token of tester is read-only"),
    "somebody else's name": (
        "hf_other",
        REPO,
        r"acme is neither your account nor one of your organisations \(other\)",
    ),
    "not allowed to a fine-grained token": ("hf_fine", REPO, "this token may not write there"),
}


@pytest.mark.parametrize(("token", "repo_id", "message"), REFUSALS.values(), ids=REFUSALS)
def test_tokens_that_may_not(saved, hub, unchecked, token, repo_id, message):
    with pytest.raises(UserError, match=message) as error:
        push_to_hub(saved, repo_id, api=client(hub, token))
    assert "\n" not in str(error.value)
    assert not hub.repos


def test_no_network(saved, hub, unchecked, monkeypatch):
    with pytest.raises(UserError, match=r"no connection to http://127\.0\.0\.1:9 .*check the network"):
        push_to_hub(saved, REPO, api=HfApi("http://127.0.0.1:9", token="hf_writer"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        push_to_hub(saved, REPO, api=client(hub))


def test_names_that_are_taken(saved, hub, unchecked):
    api = client(hub)
    api.create_repo("acme/bert", private=False)
    api.upload_file(repo_id="acme/bert", path_in_repo="config.json", path_or_fileobj=b'{"model_type": "bert"}')
    with pytest.raises(UserError, match="acme/bert: the name is taken, it already holds a model of type bert"):
        push_to_hub(saved, "acme/bert", api=api)
    api.create_repo("acme/tiny-demo", repo_type="space", space_sdk="gradio", private=False)
    with pytest.raises(UserError, match="acme/tiny-demo: the name is taken"):
        push_space(REPO, "v1", api=api)


SPACES = {
    "no metadata": "# Mine",
    "no mark": f"---\nmodels:\n- {REPO}\n---\n",
    "another model": "---\nmodels:\n- acme/bert\ntags:\n- reluformers-demo\n---\n",
    "no lists": f"---\nmodels: {REPO}\ntags: reluformers-demo\n---\n",
}


@pytest.mark.parametrize("card", SPACES.values(), ids=SPACES)
def test_a_space_of_somebody_is_not_overwritten(hub, card):
    api, space = client(hub), {"repo_id": f"{REPO}-demo", "repo_type": "space"}
    api.create_repo(**space, space_sdk="gradio", private=False)
    for name, text in (("app.py", "mine"), ("README.md", card)):
        api.upload_file(**space, path_in_repo=name, path_or_fileobj=text.encode())
    with pytest.raises(UserError, match="acme/tiny-demo: the name is taken by a Space that is no demo of acme/tiny"):
        push_space(REPO, "v1", api=api)
    repo = hub.repos["spaces", f"{REPO}-demo"]
    assert repo.commits[repo.branches["main"]]["app.py"] == b"mine"


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


def test_somebody_else_commits_meanwhile(saved, hub, monkeypatch):
    def commit_meanwhile(folder):
        client(hub).upload_file(repo_id=REPO, path_in_repo="LICENSE", path_or_fileobj=b"text")

    client(hub).create_repo(REPO, private=False)
    monkeypatch.setattr(push, "check_folder", commit_meanwhile)
    with pytest.raises(UserError, match="somebody else has changed it at the same time"):
        push_to_hub(saved, REPO, api=client(hub))
    assert not hub.repos["models", REPO].tags


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "acme/tiny model", "acme/..", ""])
def test_names_of_repositories(name):
    with pytest.raises(UserError, match="is no name for a repository"):
        check_names(name, None)


@pytest.mark.parametrize("revision", ["main", "0123abc", "v 1", "-v1", "", "v1..2", "v1.", "v1.lock"])
def test_names_of_revisions(revision):
    with pytest.raises(UserError, match="is no name for a tag"):
        check_names(REPO, revision)


def test_space_shows_this_release(hub):
    url = push_space(REPO, "v3", api=client(hub))
    repo = hub.repos["spaces", f"{REPO}-demo"]
    files = repo.commits[repo.branches["main"]]
    assert url == f"{hub.endpoint}/spaces/{REPO}-demo"
    assert f'MODEL_ID = "{REPO}"\nMODEL_REVISION = "v3"' in files["app.py"].decode()
    assert f"- {REPO}" in files["README.md"].decode()
    assert {"app.py", "README.md", "requirements.txt"} <= set(files)
    assert (repo.private, repo.titles[1:]) == (False, [f"Show {REPO} v3"])
    push_space(REPO, "v3", api=client(hub))
    assert len(repo.titles) == 2
    push_space(REPO, "v4", api=client(hub))
    assert repo.titles[2:] == [f"Show {REPO} v4"]


SPOILT = {
    "no weights": ("model.safetensors", None, "model.safetensors is missing"),
    "no tokenizer": ("tokenizer.json", None, "tokenizer.json is missing"),
    "no code": ("attention.py", None, r"attention\.py is missing"),
    "no handler": ("handler.py", None, r"handler\.py is missing"),
    "no model": ("config.json", None, "its training has not finished"),
    "a run that goes on": ("results.json", None, "its training has not finished"),
    "a checkpoint": ("optimizer.pt", "x", "is a checkpoint of a training run"),
    "another model": ("config.json", '{"model_type": "bert"}', "model_type 'bert' is none of"),
    "a config that is no JSON": ("config.json", "{", "is no JSON"),
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
    "a config that is a list": ("config.json", "[]", "holds a list, no mapping"),
    "a model type that is a list": ("config.json", '{"model_type": []}', r"model_type \[\] is none of"),
}


@pytest.mark.parametrize(("name", "content", "message"), SPOILT.values(), ids=SPOILT)
def test_folders_that_are_not_fit(folder, hub, name, content, message):
    if content is None:
        (folder / name).unlink()
    else:
        write_files(folder, {name: content if isinstance(content, bytes) else content.encode()})
    with pytest.raises(UserError, match=message) as error:
        push_to_hub(folder, REPO, api=client(hub))
    assert "\n" not in str(error.value)
    assert "xxxx" not in str(error.value)
    assert not hub.repos


@pytest.mark.parametrize("name", ["attention.png", "README.md", "model.safetensors", "results.json", "handler.py"])
def test_links_out_of_the_folder_are_refused(folder, hub, tmp_path, name):
    elsewhere = (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(UserError, match=f"{name}: is a link to a place outside of the folder"):
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
    "a list": ([], "is no index of weights"),
}


@pytest.mark.parametrize(("index", "message"), INDICES.values(), ids=INDICES)
def test_an_index_names_weights_of_the_folder_only(folder, tmp_path, index, message):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "evil.txt").write_text("evil")
    with pytest.raises(UserError, match=message):
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
    with pytest.raises(UserError, match=message):
        select_files(folder)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        check_folder(tmp_path / "none")
    with pytest.raises(UserError, match=r"holds no model, it has no config\.json"):
        check_folder(tmp_path)


def test_parts_of_the_weights_are_all_there(folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.save_pretrained(folder, max_shard_size="10KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    next(folder.glob("model-00002-of-*")).unlink()
    with pytest.raises(UserError, match=r"model-00002-of-\d+\.safetensors is missing"):
        select_files(folder)


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


def test_code_may_print(folder):
    path = folder / "modeling_seq2seq.py"
    path.write_text(path.read_text() + "\nimport os\nprint('loaded')\nos.write(1, b'loaded')\n")
    assert check_folder(folder).task == "translation"


def test_code_that_does_not_open_is_refused(folder):
    (folder / "attention_functions.py").write_text("raise RuntimeError('two\\nlines')\n")
    with pytest.raises(UserError, match="does not open where reluformers is not installed: ") as error:
        check_folder(folder)
    assert "\n" not in str(error.value)
