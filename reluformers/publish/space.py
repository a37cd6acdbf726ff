"""Pushes the demo of a model as a Space beside it."""

import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from reluformers.app import MARK, space_files

from .push import repository_info


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


def _is_ours(info: Any) -> bool:
    """Whether a Space has the mark of this command in its metadata, or is one that a call has made and not filled."""
    is_empty = info.private and {file.rfilename for file in info.siblings} <= {".gitattributes", "README.md"}
    return is_empty or MARK in ((info.card_data or {}).get("tags") or [])
