"""The demo Space of a release."""

import itertools

import pytest

from builders.hub_folders import REPO, client
from builders.saved_models import save_classifier
from reluformers.publish.space import push_space, push_static_space


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
    with pytest.raises(ValueError, match="acme/tiny-demo: the name is taken by a Space that is no demo of acme/tiny"):
        push_space(REPO, "v1", api=api)
    repo = hub.repos["spaces", f"{REPO}-demo"]
    assert repo.commits[repo.branches["main"]]["app.py"] == b"mine"


def test_a_second_call_finishes_a_space_that_was_cut_off(hub):
    for private, after in itertools.product((True, False), range(2, 6)):
        model_id = f"acme/cut-{after}-{private}".lower()
        hub.cut(after)
        with pytest.raises(ValueError, match="no connection"):
            push_space(model_id, "v1", private=private, api=client(hub))
        hub.mend()
        push_space(model_id, "v1", private=private, api=client(hub))
        repo = hub.repos["spaces", f"{model_id}-demo"]
        assert "app.py" in repo.commits[repo.branches["main"]]


def test_a_space_with_another_content_is_not_overwritten(hub):
    api = client(hub)
    api.create_repo("acme/tiny-demo", repo_type="space", space_sdk="gradio", private=False)
    with pytest.raises(ValueError, match="acme/tiny-demo: the name is taken"):
        push_space(REPO, "v1", api=api)


@pytest.mark.slow
def test_a_page_is_a_static_space(hub, tmp_path):
    folder = save_classifier(tmp_path / "tiny")
    url = push_static_space(folder, REPO, "v3", api=client(hub))
    repo = hub.repos["spaces", f"{REPO}-page"]
    files = repo.commits[repo.branches["main"]]
    assert url == f"{hub.endpoint}/spaces/{REPO}-page"
    card = files["README.md"].decode()
    assert "sdk: static" in card
    assert f"models:\n  - {REPO}\n" in card
    assert {"index.html", "page.js", "worker.js", "models/tiny/onnx/model_quantized.onnx"} <= set(files)
    assert (repo.private, repo.titles[1:]) == (False, [f"Show {REPO} v3"])
    with pytest.raises(ValueError, match="leave --static_space out"):
        push_static_space(folder, "acme/other", "v1", api=occupied(hub))


def occupied(hub):
    """A client of a Hub on which somebody has a Space of the page's name."""
    api, space = client(hub), {"repo_id": "acme/other-page", "repo_type": "space"}
    api.create_repo(**space, space_sdk="static", private=False)
    api.upload_file(**space, path_in_repo="index.html", path_or_fileobj=b"mine")
    return api
