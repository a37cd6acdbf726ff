"""Pushing to a Hub: what goes up and what stays at home, releases, interruptions."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from builders.hub_folders import CARD, CHECKED, PRIVATE, REPO, client, environment
from builders.hub_server import Hub
from builders.saved_models import save_classifier, save_translator
from reluformers.publish import push
from reluformers.publish.push import Release, push_to_hub, snippet
from reluformers.publish.release import foreign_code, select_files
from reluformers.publish.repository import UNFINISHED
from reluformers.tasks import TASKS


def run_script(hub: Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "reluformers", "push", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(hub, home), check=False)


@pytest.mark.slow
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


@pytest.mark.parametrize("source", ["in 5 days", 'He said "no"\\', None])
def test_snippet_asks_what_the_model_has_got_right(tmp_path, source):
    examples = [{"source": source, "reference": "x", "output": "x"}, {"source": "y", "reference": "x", "output": "z"}]
    (tmp_path / "results.json").write_text(json.dumps({"bleu": 1} if source is None else {"examples": examples}))
    release = Release("url", "commit", "v1", "translation", "mit", True, False)
    asked = re.search(r"print\(pipe\((.*)\)\)", snippet(release, REPO, tmp_path))[1]
    assert ast.literal_eval(asked) == (source or TASKS["translation"].example)
    assert snippet(release, REPO, tmp_path / "none") == snippet(release, REPO, tmp_path / "nowhere")


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
    with pytest.raises(ValueError, match="revision v1 is taken by another release"):
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
    with pytest.raises(ValueError, match=r"README\.md: loads revision v7, but v1 is pushed"):
        push_to_hub(folder, REPO, api=client(hub), revision="v1")
    assert push_to_hub(folder, REPO, api=client(hub)).revision == "v7"
    (folder / "generation_config.json").write_text('{"num_beams": 3}')
    with pytest.raises(ValueError, match=r"revision v7, which .*README\.md loads, is taken"):
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
        except ValueError as error:
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
    with pytest.raises(ValueError, match="is public already"):
        push_to_hub(saved, "acme/open", private=True, api=client(hub))


@pytest.mark.parametrize("name", ["modeling_seq2seq.py", "handler.py", "config.json"])
def test_code_that_is_not_ours_is_named_and_not_run(folder, hub, unchecked, monkeypatch, name):
    path = folder / name
    if name == "config.json":  # names code of another repository
        config = json.loads(path.read_text())
        config["auto_map"]["AutoModel"] = f"evil/code--{config['auto_map']['AutoModel']}"
        path.write_text(json.dumps(config))
    else:
        path.write_text(path.read_text() + "\n# tampered\n")
    monkeypatch.setattr(push, "check_folder", lambda folder: pytest.fail("the code was run"))
    with pytest.raises(ValueError, match=f"{re.escape(name)}: not as .*--trust_code") as error:
        push_to_hub(folder, REPO, api=client(hub))
    assert sum(str(error.value).count(other) for other in ("attention.py", "configuration_seq2seq.py")) == 0
    assert not hub.repos
    lines = []
    monkeypatch.setattr(push, "check_folder", lambda folder: CHECKED)
    assert push_to_hub(folder, REPO, api=client(hub), trust_code=True, report=lines.append).is_new
    assert name in lines[0]


@pytest.mark.parametrize("save", [save_translator, save_classifier])
def test_code_that_was_just_saved_is_ours(tmp_path, save):
    assert foreign_code(save(tmp_path)) == []


def _with_a_token(path):
    save_file(load_file(path), path, metadata={"format": "pt", "note": "hf_" + "a1B2" * 9})


@pytest.mark.parametrize("change", [_with_a_token, Path.unlink, lambda path: path.write_bytes(b"")])
def test_weights_that_change_meanwhile_are_not_pushed(folder, hub, unchecked, monkeypatch, change):
    path = folder / "model.safetensors"
    monkeypatch.setattr(push, "check_folder", lambda staging: change(path) or CHECKED)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        push_to_hub(folder, REPO, api=client(hub))
    repo = hub.repos.get(("models", REPO))
    assert repo is None or not repo.tags
