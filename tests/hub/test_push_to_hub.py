"""Pushing to a Hub: what goes up and what stays at home, releases, their cards, repetition."""

from pathlib import Path

import pytest
from huggingface_hub.errors import HTTPError
from transformers import AutoModelForSeq2SeqLM

from builders.commands import run_command
from builders.hub_folders import CARD, CHECKED, PRIVATE, REPO, client, pushed
from reluformers.publish import push
from reluformers.publish.card import write_card
from reluformers.publish.push import push_to_hub
from reluformers.publish.release import read_saved_model


def test_release_is_one_commit_of_what_belongs_to_the_model(saved, hub, unchecked):
    release = push_to_hub(saved, REPO, api=client(hub))
    repo = hub.repos["models", REPO]
    files = pushed(hub)
    assert set(files) == {*read_saved_model(saved).files, ".gitattributes"}
    assert not {Path(name).name for name in PRIVATE} & {Path(name).name for name in files}
    assert {"pipeline_translation.py", "modeling_seq2seq.py", "tokenizer.json", "README.md"} <= set(files)
    assert hub.large[files["model.safetensors"]] == (saved / "model.safetensors").read_bytes()
    assert repo.titles == ["initial commit", "Release v1"]
    assert repo.tags == {"v1": repo.branches["main"]}
    assert not repo.private
    assert (release.revision, release.is_new, release.commit) == ("v1", True, repo.tags["v1"])


def test_second_call_changes_nothing_and_new_weights_are_a_new_revision(folder, hub, unchecked):
    api = client(hub)
    first = push_to_hub(folder, REPO, api=api)
    again = push_to_hub(folder, REPO, api=api)
    assert (again.revision, again.commit, again.is_new) == ("v1", first.commit, False)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.lm_head.weight.data += 1
    model.save_pretrained(folder, max_shard_size="10KB")
    (folder / "model.safetensors").unlink()
    client(hub).upload_file(repo_id=REPO, path_in_repo="train.py", path_or_fileobj=b"the owner's")
    second = push_to_hub(folder, REPO, api=api)
    repo = hub.repos["models", REPO]
    assert repo.tags == {"v1": first.commit, "v2": second.commit}
    assert "model.safetensors" in repo.commits[first.commit]
    assert "model.safetensors" not in pushed(hub)
    assert {"train.py", "model.safetensors.index.json"} <= set(pushed(hub))
    assert "model-00001-of-" in " ".join(pushed(hub))
    named = push_to_hub(folder, REPO, api=api, revision="paper")
    assert (repo.tags["paper"], named.is_new) == (second.commit, False)
    with pytest.raises(ValueError, match="v1"):
        push_to_hub(folder, REPO, api=api, revision="v1")


def test_a_handler_goes_with_a_release_where_it_is_wanted_and_stays(folder, hub, unchecked):
    (folder / "handler.py").write_text("# of somebody")
    push_to_hub(folder, REPO, api=client(hub))
    assert "handler.py" not in pushed(hub)
    push_to_hub(folder, REPO, api=client(hub), endpoint=True)
    assert "class EndpointHandler" in pushed(hub)["handler.py"].decode()
    assert not push_to_hub(folder, REPO, api=client(hub)).is_new


def test_a_card_is_written_where_there_is_none_and_stays_the_same(folder, hub, unchecked):
    (folder / "README.md").unlink()
    push_to_hub(folder, REPO, api=client(hub))
    assert 'revision="v1"' in pushed(hub)["README.md"].decode()
    assert not push_to_hub(folder, REPO, api=client(hub)).is_new
    (folder / "generation_config.json").write_text('{"num_beams": 3}')
    assert push_to_hub(folder, REPO, api=client(hub)).revision == "v2"
    assert 'revision="v2"' in pushed(hub)["README.md"].decode()


def test_revision_is_the_one_that_the_card_loads(folder, hub, unchecked):
    (folder / "README.md").write_text(f'{CARD}\nfrom_pretrained("{REPO}", revision="v7")\n')
    with pytest.raises(ValueError, match="v7"):
        push_to_hub(folder, REPO, api=client(hub), revision="v1")
    assert push_to_hub(folder, REPO, api=client(hub)).revision == "v7"


def test_a_card_of_ours_for_another_repository_is_refused(folder, hub, unchecked):
    (folder / "README.md").unlink()
    write_card(folder, "acme/first")
    with pytest.raises(ValueError, match="acme/first"):
        push_to_hub(folder, REPO, api=client(hub))
    assert not hub.repos


def test_a_card_that_somebody_wrote_stays(folder, hub, unchecked):
    text = f'{CARD}\npipeline("translation", model="acme/base", revision="v5")\n'
    (folder / "README.md").write_text(text)
    assert push_to_hub(folder, REPO, api=client(hub)).revision == "v1"
    assert pushed(hub)["README.md"].decode() == text


@pytest.mark.parametrize(
    "answers", [pytest.param(False, id="request lost", marks=pytest.mark.slow), pytest.param(True, id="answer lost")]
)
def test_a_push_that_was_cut_off_is_repeated(saved, hub, unchecked, answers):
    """Nothing is public before it is whole; what a cut has left private stays so."""
    api = client(hub)
    for after in range(50):
        repo_id = f"acme/cut-{after}"
        hub.cut(after, answers=answers)
        try:
            push_to_hub(saved, repo_id, api=api)
            break
        except (HTTPError, OSError):
            hub.mend()
        repo = hub.repos.get(("models", repo_id))
        assert repo is None or repo.private or "v1" in repo.tags
        release = push_to_hub(saved, repo_id, api=api)
        repo = hub.repos["models", repo_id]
        assert repo.tags == {"v1": repo.branches["main"]}
        assert repo.titles == ["initial commit", "Release v1"]
        assert release.private == repo.private
    assert 7 < after < 49


def test_private_stays_private(saved, hub, unchecked):
    assert push_to_hub(saved, REPO, private=True, api=client(hub)).private
    assert push_to_hub(saved, REPO, api=client(hub)).private
    push_to_hub(saved, "acme/open", api=client(hub))
    with pytest.raises(ValueError, match="acme/open"):
        push_to_hub(saved, "acme/open", private=True, api=client(hub))


def test_code_that_is_not_ours_is_pushed_where_it_is_trusted(folder, hub, unchecked):
    """What else brings code is in test_check_folder.py."""
    (folder / "attention.py").write_text("# tampered")
    with pytest.raises(ValueError, match=r"attention\.py"):
        push_to_hub(folder, REPO, api=client(hub))
    assert not hub.repos
    assert push_to_hub(folder, REPO, api=client(hub), trust_code=True).is_new


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_weights_that_change_meanwhile_are_not_pushed(folder, hub, unchecked, monkeypatch, change):
    path = folder / "model.safetensors"
    monkeypatch.setattr(push, "check_folder", lambda staging, store: change(path) or CHECKED)
    with pytest.raises((ValueError, OSError)):
        push_to_hub(folder, REPO, api=client(hub))
    assert not hub.repos


def test_somebody_else_commits_meanwhile(saved, hub, unchecked, monkeypatch):
    def commit_meanwhile(folder, store):
        client(hub).upload_file(repo_id=REPO, path_in_repo="LICENSE", path_or_fileobj=b"text")
        return CHECKED

    client(hub).create_repo(REPO, private=False)
    monkeypatch.setattr(push, "check_folder", commit_meanwhile)
    with pytest.raises(OSError, match="A commit has happened since"):
        push_to_hub(saved, REPO, api=client(hub))
    assert not hub.repos["models", REPO].tags


def test_the_command_pushes_a_folder_with_a_card(saved, hub, unchecked, monkeypatch, capsys):
    monkeypatch.setattr(push, "HfApi", lambda: client(hub))
    run_command("push", saved, REPO)
    assert "v1 is pushed" in capsys.readouterr().out
