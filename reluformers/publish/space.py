"""Pushes the demo of a model as a Space beside it."""

import tempfile
from pathlib import Path

from huggingface_hub import HfApi

from reluformers.app import MARK, space_files
from reluformers.errors import UserError

from .hub_errors import hub_errors
from .push import open_repository
from .repository import Repository


def push_space(
    model_id: str, revision: str, *, licence: str = "apache-2.0", private: bool = False, api: HfApi | None = None
) -> str:
    """Push the demo of a release as the Space MODEL_ID-demo, in one commit.

    Args:
        model_id: of the model.
        revision: its release, which the Space loads and no other.
        licence: of the Space, by its id on the Hub.
        private: keep a new Space private.
        api: the client; by default that of the environment.

    Returns:
        Address of the Space.

    Raises:
        UserError: the Hub cannot be reached or refuses, the Space is somebody's own, or it is public and the
            model is private.
    """
    api, space_id = api or HfApi(), f"{model_id}-demo"
    with tempfile.TemporaryDirectory() as temporary, hub_errors(api, space_id):
        for name, text in space_files(model_id, revision, licence=licence).items():
            Path(temporary, name).write_text(text, encoding="utf-8")
        repository = open_repository(api, space_id, private, "space")
        if repository.exists and not _was_cut_off(repository) and not _is_demo(repository, model_id):
            raise UserError(
                f"{space_id}: the name is taken by a Space that is no demo of {model_id} made by this command; rename "
                "or delete that Space, or leave --space out"
            )
        if not repository.exists:
            repository.create(private, space_sdk="gradio")
        if changes := repository.changes(Path(temporary)):
            repository.commit(changes, f"Show {model_id} {revision}")
        repository.finish(private)
    return f"{api.endpoint}/spaces/{space_id}"


def _was_cut_off(space: Repository) -> bool:
    """Whether a Space looks like one that an earlier call has made and not filled."""
    return space.unfinished or (space.private and space.is_blank)


def _is_demo(space: Repository, model_id: str) -> bool:
    """Whether a Space is one that `push_space` made for a model, by the metadata of its README.md."""
    models, tags = space.card.get("models"), space.card.get("tags")
    return model_id in (models if isinstance(models, list) else []) and MARK in (
        tags if isinstance(tags, list) else []
    )
