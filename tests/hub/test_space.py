"""The demo Space of a release."""

import pytest

from builders.hub_folders import REPO, client
from reluformers.publish.space import FILES, push_space


def test_space_shows_this_release(hub):
    url = push_space(REPO, "v3", api=client(hub))
    repo = hub.repos["spaces", f"{REPO}-demo"]
    files = repo.commits[repo.branches["main"]]
    assert url == f"{hub.endpoint}/spaces/{REPO}-demo"
    assert f'MODEL_ID = "{REPO}"\nMODEL_REVISION = "v3"' in files["app.py"].decode()
    assert f"- {REPO}" in files["README.md"].decode()
    assert set(FILES) <= set(files)
    assert b"{{" not in files["README.md"]
    push_space(REPO, "v3", api=client(hub))
    push_space(REPO, "v4", api=client(hub))
    assert repo.titles[1:] == [f"Show {REPO} v3", f"Show {REPO} v4"]


@pytest.mark.parametrize("card", ["# Mine", f"---\nmodels:\n- {REPO}\n---\n"], ids=["no metadata", "no mark"])
def test_a_space_of_somebody_is_not_overwritten(hub, card):
    api, space = client(hub), {"repo_id": f"{REPO}-demo", "repo_type": "space"}
    api.create_repo(**space, space_sdk="gradio", private=False)
    for name, text in (("app.py", "mine"), ("README.md", card)):
        api.upload_file(**space, path_in_repo=name, path_or_fileobj=text.encode())
    with pytest.raises(ValueError, match="acme/tiny-demo"):
        push_space(REPO, "v1", api=api)
    repo = hub.repos["spaces", f"{REPO}-demo"]
    assert repo.commits[repo.branches["main"]]["app.py"] == b"mine"
