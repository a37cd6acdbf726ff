"""Pushes a saved model to the Hub: checked first, in one commit, with a tag that never moves."""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from huggingface_hub.utils.sha import git_hash, sha_fileobj

from reluformers.data.names import is_hub_id
from reluformers.files import stamp, write_text
from reluformers.saved_code.payload import HANDLER_FILE
from reluformers.saved_code.registry import endpoint_code
from reluformers.saved_models import read_results
from reluformers.tasks import task_named

from .card import CARD_FILE, MARK, write_card
from .folder_check import check_folder
from .release import REMOVED, read_saved_model, refuse_foreign_code, refuse_tokens, stage_files

# It finds models that a card's examples load.
_LOADED = re.compile(r"""(?:model=|from_pretrained\()["']([^"']+)["']""")
_PINNED = re.compile(r"""revision=["']([^"']+)["']""")
_IN_NEW_REPOSITORIES = {".gitattributes", "README.md", "LICENSE"}


class Release(NamedTuple):
    """What was pushed where: address, commit and its tag; and whether this call has made the commit."""

    url: str
    commit: str
    revision: str
    task: str
    licence: str
    is_new: bool
    private: bool


def push_to_hub(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    trust_code: bool = False,
    endpoint: bool = False,
    api: HfApi | None = None,
    report: Callable[[str], None] = lambda line: None,
    confirm: Callable[[str], bool] = lambda line: True,
    **card_options: Any,
) -> Release:
    """Check a saved model, push it in one commit and tag that; a new repository is private until it is whole.

    Args:
        folder: of a saved model. Without a README.md a card is written for the upload.
        repo_id: "ORG/NAME".
        private: keep a new repository private; an existing one stays what it is.
        revision: name of the tag. Without it, the one that README.md pins, else the next of v1, v2, ….
        trust_code: whether code of the folder that this library would not have written may be run and pushed.
        endpoint: whether a handler.py for an Inference Endpoint goes with it; one that is on the Hub is written anew.
        api: the client; by default that of the environment (HF_ENDPOINT, HF_TOKEN).
        report: takes lines for the user.
        confirm: is told, before anything is uploaded, who will see the release, and says whether to go on.
        card_options: of `write_card`, if there is no card; `held_out=False` takes held-out rows out of results.json.

    Raises:
        ValueError: the folder is not fit to be published, or `confirm` says no.
        OSError: the Hub refuses.
    """
    api = api or HfApi()
    saved = read_saved_model(Path(folder))
    hub = _Repository(api, repo_id, private, saved.config["model_type"])
    with tempfile.TemporaryDirectory() as temporary:
        staging = Path(temporary).resolve()
        staged = stage_files(saved, staging, card_options.get("held_out", True))
        stamps = {path: stamp(path) for path in staging.rglob("*") if path.is_symlink()}
        refuse_foreign_code(staged, trust_code, report, shown_as=folder)
        if endpoint or HANDLER_FILE in hub.files:
            write_text(staging / HANDLER_FILE, endpoint_code(saved.family))
        card = staging / CARD_FILE
        named = _pinned_revision(card, repo_id, revision)
        name = named or hub.head_tag or hub.next_tag
        if card.is_file():
            _refuse_unused(card_options, folder)
        else:
            report(f"{folder}: writing the card")
            write_card(folder, repo_id, revision=name, output=staging, **card_options)
        _pin(card, name)
        report(f"{folder}: opening it where reluformers is not installed")
        check = check_folder(staging, store=True)
        refuse_tokens(staging)
        if named is None and name != hub.next_tag and hub.changes(staging):
            name = hub.next_tag
            _pin(card, name)
        if any(stamp(path) != before for path, before in stamps.items()):
            raise ValueError(f"{folder}: was changed while it was checked; push again when nothing writes to it")
        is_new = hub.release(staging, name, report, confirm)
        return Release(f"{api.endpoint}/{repo_id}", hub.head, name, check.task, _licence(card), is_new, hub.private)


def _refuse_unused(card_options: dict[str, Any], folder: str | Path) -> None:
    """Refuse options of a new card for a folder that has one."""
    unused = sorted(card_options.keys() - {"held_out", "space"})
    if unused:
        raise ValueError(f"{', '.join(unused)}: of a new card, but {folder} has {CARD_FILE}")


def _licence(card: Path) -> str:
    """The licence in a card's metadata, the first of several."""
    licence = ModelCard.load(card, ignore_metadata_errors=True).data.get("license") or "unknown"
    return licence[0] if isinstance(licence, list) else licence


def repository_info(api: HfApi, repo_id: str, repo_type: str = "model") -> Any:
    """What the Hub says of a repository and its files; None if there is none."""
    try:
        return api.repo_info(repo_id, repo_type=repo_type, files_metadata=True)
    except RepositoryNotFoundError:
        return None


class _Repository:
    """State of a model's repository before a release, and the changes that this makes to it."""

    def __init__(self, api: HfApi, repo_id: str, private: bool, model_type: str):
        self.api = api
        self.repo_id = repo_id
        info = repository_info(api, repo_id)
        self.exists = info is not None
        self.head = info and info.sha
        self.private = info.private if info else private
        self.files = {file.rfilename: file for file in info.siblings} if info else {}
        refs = api.list_repo_refs(repo_id).tags if info else []
        self.tags = {tag.name: tag.target_commit for tag in refs}
        if private and not self.private:
            raise ValueError(f"{repo_id}: is public already; leave --private out, or make it private first")
        held = info and (info.config or {}).get("model_type")
        if self.files.keys() - _IN_NEW_REPOSITORIES and held != model_type:
            raise ValueError(f"{repo_id}: the name is taken by another model or something else; choose another name")

    @property
    def head_tag(self) -> str | None:
        """A tag of the newest commit."""
        return next((name for name, commit in sorted(self.tags.items()) if commit == self.head), None)

    @property
    def next_tag(self) -> str:
        """The first of v1, v2, … that comes after all of them that are taken."""
        taken = [int(match[1]) for name in self.tags if (match := re.fullmatch(r"v(\d+)", name))]
        return f"v{max(taken, default=0) + 1}"

    def changes(self, staging: Path) -> list[CommitOperationAdd | CommitOperationDelete]:
        """What a commit has to do so that the repository holds the release in a folder."""
        paths = {path.relative_to(staging).as_posix(): path for path in staging.rglob("*") if path.is_file()}
        added = [(name, path) for name, path in sorted(paths.items()) if not _is_same(self.files.get(name), path)]
        gone = filter_repo_objects(sorted(self.files.keys() - paths.keys()), allow_patterns=list(REMOVED))
        return [*(CommitOperationAdd(*file) for file in added), *(CommitOperationDelete(name) for name in gone)]

    def release(self, staging: Path, name: str, report: Callable[[str], None], confirm: Callable[[str], bool]) -> bool:
        """Upload the release in a folder and tag it; return whether there was something to upload."""
        changes = self.changes(staging)
        if name in self.tags and (changes or self.tags[name] != self.head):
            raise ValueError(f"{self.repo_id}: revision {name} is taken by another release; choose another one")
        is_new = bool(changes) or not self.exists
        visible = "private" if self.private else "public, for everybody to see"
        tense = "is" if self.exists else "will be"
        if is_new and not confirm(f"{self.repo_id}: the repository {tense} {visible}"):
            raise ValueError(f"{self.repo_id}: nothing was pushed")
        if not self.exists:
            self.api.create_repo(self.repo_id, private=True, exist_ok=True)
        if changes:
            report(f"{self.repo_id}: uploading {len(changes)} files")
            message = f"Release {name}"
            self.head = self.api.create_commit(
                self.repo_id, changes, commit_message=message, parent_commit=self.head
            ).oid
        if name not in self.tags:
            self.api.create_tag(self.repo_id, tag=name, revision=self.head)
        if not self.exists and not self.private:
            self.api.update_repo_settings(self.repo_id, private=False)
        return is_new


def snippet(release: Release, repo_id: str, folder: str | Path) -> str:
    """Lines of Python that use exactly this release, on an input that the run in the folder answered well."""
    examples = read_results(folder).get("examples")
    example = examples[0]["source"] if examples else task_named(release.task).example
    pinned = f'model="{repo_id}", revision="{release.revision}"'
    return (
        "from transformers import pipeline\n\n"
        f'pipe = pipeline("{release.task}", {pinned}, trust_remote_code=True)\n'
        f"print(pipe({json.dumps(example, ensure_ascii=False)}))"
    )


def _pinned_revision(card: Path, repo_id: str, revision: str | None) -> str | None:
    """The revision that is asked for, else the one that a card of this repository pins, if it does.

    Raises:
        ValueError: the two differ, or this library wrote the card for another repository.
    """
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    loaded = {name for name in _LOADED.findall(text) if is_hub_id(name)}
    pinned = next(iter(_PINNED.findall(text)), None) if repo_id in loaded else None
    is_foreign = MARK in text and loaded and repo_id not in loaded
    if is_foreign or (revision and pinned and revision != pinned):
        raise ValueError(
            f"{CARD_FILE} loads {min(loaded)} {pinned or ''}, not {repo_id} {revision or ''}; correct or delete it"
        )
    return revision or pinned


def _pin(card: Path, revision: str) -> None:
    """Write a revision into the examples of a card that this library wrote."""
    text = card.read_text(encoding="utf-8")
    if MARK in text:
        card.write_text(re.sub(r"(revision=[\"'])[^\"']+", rf"\g<1>{revision}", text), encoding="utf-8")


def _is_same(remote: Any, path: Path) -> bool:
    """Whether a file of the Hub has the content of a file here."""
    if remote is None:
        return False
    if remote.lfs is None:
        return git_hash(path.read_bytes()) == remote.blob_id
    with path.open("rb") as file:
        return sha_fileobj(file).hex() == remote.lfs.sha256
