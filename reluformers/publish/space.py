"""Pushes the demo of a model as a Space beside it: an app with a server, or a page without one."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi

from reluformers.app import MARK, space_files

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
        ValueError: the Hub cannot be reached or refuses, the Space is somebody's own, or it is public and the
            model is private.
    """

    def write(folder: Path) -> None:
        for name, text in space_files(model_id, revision, licence=licence).items():
            Path(folder, name).write_text(text, encoding="utf-8")

    return _push(write, model_id, f"{model_id}-demo", revision, "gradio", MARK, private, api or HfApi())


def push_static_space(
    folder: str | Path,
    model_id: str,
    revision: str,
    *,
    licence: str = "apache-2.0",
    private: bool = False,
    api: HfApi | None = None,
) -> str:
    """Push a page that computes in the browser as the Space MODEL_ID-page, in one commit.

    Args:
        folder: of the model, as it was released.
        model_id, revision, licence, private, api: as for `push_space`.

    Returns:
        Address of the Space.

    Raises:
        ValueError: as `push_space` and `export_page`.
    """
    from reluformers.export.page import MARK, export_page  # its packages are an extra

    def write(page: Path) -> None:
        export_page([folder], page, repo_id=model_id, licence=licence)

    return _push(write, model_id, f"{model_id}-page", revision, "static", MARK, private, api or HfApi())


def _push(
    write: Callable[[Path], None],
    model_id: str,
    space_id: str,
    revision: str,
    sdk: str,
    mark: str,
    private: bool,
    api: HfApi,
) -> str:
    """Push what `write` puts into a folder, unless the Space is somebody's own."""
    with tempfile.TemporaryDirectory() as temporary, hub_errors(api, space_id):
        repository = open_repository(api, space_id, private, "space")
        if repository.exists and not _was_cut_off(repository) and not _is_demo(repository, model_id, mark):
            raise ValueError(
                f"{space_id}: the name is taken by a Space that is no demo of {model_id} made by this command; rename "
                f"or delete that Space, or leave --{'static_' if sdk == 'static' else ''}space out"
            )
        write(Path(temporary))
        if not repository.exists:
            repository.create(private, space_sdk=sdk)
        if changes := repository.changes(Path(temporary), removable=lambda name: name != ".gitattributes"):
            repository.commit(changes, f"Show {model_id} {revision}")
        repository.finish(private)
    return f"{api.endpoint}/spaces/{space_id}"


def _was_cut_off(space: Repository) -> bool:
    """Whether a Space looks like one that an earlier call has made and not filled."""
    return space.unfinished or (space.private and space.is_blank)


def _is_demo(space: Repository, model_id: str, mark: str) -> bool:
    """Whether a Space is one that was made here for a model, by the metadata of its README.md."""
    models, tags = space.card.get("models"), space.card.get("tags")
    return model_id in (models if isinstance(models, list) else []) and mark in (
        tags if isinstance(tags, list) else []
    )
