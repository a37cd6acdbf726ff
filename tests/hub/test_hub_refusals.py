"""Who may push where: tokens, names that are taken or are none, no network."""

import huggingface_hub
import pytest
from huggingface_hub import HfApi

from builders.hub_folders import CHECKED, REPO, client
from reluformers.publish import push
from reluformers.publish.push import check_names, push_to_hub

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
    with pytest.raises(ValueError, match=message) as error:
        push_to_hub(saved, repo_id, api=client(hub, token))
    assert "\n" not in str(error.value)
    assert not hub.repos


def test_no_network(saved, hub, unchecked, monkeypatch):
    with pytest.raises(ValueError, match=r"no connection to http://127\.0\.0\.1:9 .*check the network"):
        push_to_hub(saved, REPO, api=HfApi("http://127.0.0.1:9", token="hf_writer"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        push_to_hub(saved, REPO, api=client(hub))


def test_names_that_are_taken(saved, hub, unchecked):
    api = client(hub)
    api.create_repo("acme/bert", private=False)
    api.upload_file(repo_id="acme/bert", path_in_repo="config.json", path_or_fileobj=b'{"model_type": "bert"}')
    with pytest.raises(ValueError, match="acme/bert: the name is taken, it already holds a model of type bert"):
        push_to_hub(saved, "acme/bert", api=api)


def test_somebody_else_commits_meanwhile(saved, hub, monkeypatch):
    def commit_meanwhile(folder):
        client(hub).upload_file(repo_id=REPO, path_in_repo="LICENSE", path_or_fileobj=b"text")
        return CHECKED

    client(hub).create_repo(REPO, private=False)
    monkeypatch.setattr(push, "check_folder", commit_meanwhile)
    with pytest.raises(ValueError, match="somebody else has changed it at the same time"):
        push_to_hub(saved, REPO, api=client(hub))
    assert not hub.repos["models", REPO].tags


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "acme/tiny model", "acme/..", ""])
def test_names_of_repositories(name):
    with pytest.raises(ValueError, match="is no name for a repository"):
        check_names(name, None)


@pytest.mark.parametrize("revision", ["main", "0123abc", "v 1", "-v1", "", "v1..2", "v1.", "v1.lock"])
def test_names_of_revisions(revision):
    with pytest.raises(ValueError, match="is no name for a tag"):
        check_names(REPO, revision)
