"""Pushes the demo of a model as a Space beside it."""

import json
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

import reluformers.app
from reluformers.modeling import image_input

from .push import repository_info

SPACE = Path(reluformers.app.__file__).parent
# README.md of a Space has this tag if the library made the Space and may write it anew.
MARK = "reluformers-demo"
FILES = (
    "app.py",
    "pages.py",
    "models.py",
    "view.py",
    "view.html",
    "view.css",
    "view.js",
    "pad.js",
    "README.md",
    "requirements.txt",
)


def push_space(
    model_id: str, revision: str, *, licence: str = "apache-2.0", private: bool = False, api: HfApi | None = None
) -> str:
    """Push the demo of a release as the Space MODEL_ID-demo.

    Args:
        model_id: of the model.
        revision: its release, which the demo loads and no other.
        licence: of the Space, by its id on the Hub.
        private: keep a new Space private.
        api: the client; by default that of the environment.

    Returns:
        Address of the Space.

    Raises:
        ValueError: the Space is somebody's own.
    """
    api = api or HfApi()
    name = f"{model_id}-demo"
    space = {"repo_id": name, "repo_type": "space"}
    info = repository_info(api, **space)
    if info and not _is_ours(info):
        raise ValueError(f"{name}: is a Space that this command did not make; rename it, or leave the Space out")
    if info is None:
        api.create_repo(**space, space_sdk="gradio", private=True)
    with tempfile.TemporaryDirectory() as folder:
        for file, text in space_files(model_id, revision, licence=licence).items():
            Path(folder, file).write_text(text, encoding="utf-8")
        message = f"Show {model_id} {revision}"
        api.upload_folder(**space, folder_path=folder, commit_message=message, delete_patterns="*")
    if info is None and not private:
        api.update_repo_settings(**space, private=False)
    return f"{api.endpoint}/spaces/{name}"


def space_files(repo_id: str, revision: str, *, licence: str = "apache-2.0") -> dict[str, str]:
    """The files of a model's Space, name → text; it shows a revision, whatever is pushed to the model later."""
    sources = [*(SPACE / name for name in FILES), Path(image_input.__file__)]
    texts = {path.name: path.read_text(encoding="utf-8") for path in sources}
    for constant, value in (("MODEL_ID", repo_id), ("MODEL_REVISION", revision)):
        # json.dumps quotes a string as Python reads it.
        texts["app.py"] = texts["app.py"].replace(f'\n{constant} = ""\n', f"\n{constant} = {json.dumps(value)}\n")
    values = {"repo_id": repo_id, "name": repo_id.rpartition("/")[2], "revision": revision, "licence": licence}
    for name, value in values.items():
        texts["README.md"] = texts["README.md"].replace(f"{{{{ {name} }}}}", value)
    return texts


def _is_ours(info: Any) -> bool:
    """Whether a Space has the mark of this command in its metadata, or is one that a call has made and not filled."""
    is_empty = info.private and {file.rfilename for file in info.siblings} <= {".gitattributes", "README.md"}
    return is_empty or MARK in ((info.card_data or {}).get("tags") or [])
