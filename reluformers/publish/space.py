"""Pushes the demo of a model as a Space beside it, and adds a model to a collection."""

import re
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from reluformers.app import MARK, space_files

from .push import repository_info

_SLUG = re.compile(r"[\w.-]+/[\w.-]+-[0-9a-f]{16,24}")


def push_space(
    model_id: str,
    revision: str,
    *,
    page_of: str | Path | None = None,
    licence: str = "apache-2.0",
    private: bool = False,
    api: HfApi | None = None,
) -> str:
    """Push the demo of a release as the Space MODEL_ID-demo, or a page that computes in the browser as MODEL_ID-page.

    Args:
        model_id: of the model.
        revision: its release, which the demo loads and no other.
        page_of: folder of the model, as it was released, for the page; None for the demo.
        licence: of the Space, by its id on the Hub.
        private: keep a new Space private.
        api: the client; by default that of the environment.

    Returns:
        Address of the Space.

    Raises:
        ValueError: the Space is somebody's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        if page_of is None:
            name, sdk, mark = f"{model_id}-demo", "gradio", MARK
            for file, text in space_files(model_id, revision, licence=licence).items():
                Path(folder, file).write_text(text, encoding="utf-8")
        else:
            from reluformers.export import page  # its packages are an extra

            name, sdk, mark = f"{model_id}-page", "static", page.MARK
            page.export_page([page_of], folder, repo_id=model_id, licence=licence)
        api, space = api or HfApi(), {"repo_id": name, "repo_type": "space"}
        info = repository_info(api, **space)
        if info and not _is_ours(info, mark):
            raise ValueError(f"{name}: is a Space that this command did not make; rename it, or leave the Space out")
        if info is None:
            api.create_repo(**space, space_sdk=sdk, private=True)
        message = f"Show {model_id} {revision}"
        api.upload_folder(**space, folder_path=folder, commit_message=message, delete_patterns="*")
    if info is None and not private:
        api.update_repo_settings(**space, private=False)
    return f"{api.endpoint}/spaces/{name}"


def _is_ours(info: Any, mark: str) -> bool:
    """Whether a Space has the mark of this command in its metadata, or is one that a call has made and not filled."""
    is_empty = info.private and {file.rfilename for file in info.siblings} <= {".gitattributes", "README.md"}
    return is_empty or mark in ((info.card_data or {}).get("tags") or [])


def add_to_collection(api: HfApi, collection: str, repo_id: str, *, private: bool = False) -> str:
    """Add a model to a collection; gives the address.

    Args:
        api: the client.
        collection: slug, as it stands in the address of a collection, OWNER/TITLE-ID; or the title of one that belongs
            to the owner of the model, which is made if there is none.
        repo_id: of the model, "ORG/NAME"; one that is there already stays.
        private: whether a new collection is private.
    """
    if not _SLUG.fullmatch(collection):
        owner = repo_id.partition("/")[0]
        collection = api.create_collection(collection, namespace=owner, private=private, exists_ok=True).slug
    return api.add_collection_item(collection, repo_id, "model", exists_ok=True).url
