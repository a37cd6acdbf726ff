"""Pushes a saved model to the Hub: checked first, in one commit, with a tag that never moves."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from reluformers.cards.card import CARD_FILE, write_card
from reluformers.cards.check import check_card
from reluformers.errors import UserError
from reluformers.tasks import TASKS, task_of_model_type
from reluformers.training.run import RESULTS_FILE

from .check import check_folder
from .errors import hub_errors
from .files import check_texts, is_ours, read_config, stage_files
from .repository import Operation, Repository

_REVISION = re.compile(r"(?!main$)(?![0-9a-f]{7,40}$)(?!.*(?:\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9._-]*")
_PINNED = re.compile(r"""revision=["']([^"']+)["']""")  # by an example of a card


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
    api: HfApi | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Release:
    """Check a saved model, push it in one commit and tag that.

    A new repository is private until the release is whole. A second call after an interruption goes on with what is
    missing, and does nothing where nothing is.

    Args:
        folder: of a saved model. Without a README.md a card is written for the upload.
        repo_id: "ORG/NAME".
        private: keep a new repository private; an existing one stays what it is.
        revision: name of the tag. Without it, the one that README.md pins, else the next of v1, v2, ….
        api: the client; by default that of the environment (HF_ENDPOINT, HF_TOKEN).
        report: takes lines for the user.

    Returns:
        The release as it is on the Hub now.

    Raises:
        UserError: the folder is not fit to be published, or the Hub cannot be reached or refuses.
    """
    folder, api = Path(folder), api or HfApi()
    check_names(repo_id, revision)
    with _staging(folder) as staging, hub_errors(api, repo_id):
        stage_files(folder, staging)
        config = read_config(folder)
        repository = open_repository(api, repo_id, private)
        repository.check_holds(config["model_type"])
        name, changes = _choose_revision(repository, folder, staging, revision)
        report(f"{folder}: opening it where reluformers is not installed")
        check_texts(staging, shown_as=folder)
        check_folder(staging)
        is_new = bool(changes) or not repository.exists
        if not repository.exists:
            repository.create(private)
        if changes:
            report(f"{repo_id}: uploading {len(changes)} files")
            repository.commit(changes, f"Release {name}")
        if name not in repository.tags:
            repository.tag(name)
        repository.finish(private)
        licence = check_card(staging / CARD_FILE).data.license
    licence = licence if isinstance(licence, str) else licence[0]
    url = f"{api.endpoint}/{repo_id}"
    task = task_of_model_type(config["model_type"]).name
    return Release(url, repository.head, name, task, licence, is_new, repository.private)


def check_names(repo_id: str, revision: str | None) -> None:
    """Refuse names that the Hub would, and revisions that look like something else.

    Raises:
        UserError: says which.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{repo_id!r}: is no name for a repository: {' '.join(str(error).split())}") from error
    if repo_id.count("/") != 1:
        raise UserError(f"{repo_id!r}: is no name for a repository; give ORG/NAME, with your account or organisation")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise UserError(f"revision {revision!r} is no name for a tag; give one such as v1")


def open_repository(api: HfApi, repo_id: str, private: bool, repo_type: str = "model") -> Repository:
    """Look at a repository after making sure that the token may write to it.

    Args:
        api: the client.
        repo_id: "ORG/NAME".
        private: whether it is to be private.
        repo_type: "model" or "space".

    Raises:
        UserError: the token cannot write there, or the repository is public and `private` is asked for.
    """
    account = api.whoami()
    token = account.get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        raise UserError(f"the token of {account['name']} is read-only; take one with write access")
    names = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    owner = repo_id.partition("/")[0]
    # a fine-grained token does not list all that it may write to
    if token.get("role") != "fineGrained" and owner not in names:
        raise UserError(
            f"{repo_id}: {owner} is neither your account nor one of your organisations ({', '.join(names)}); "
            "push to one of these"
        )
    repository = Repository(api, repo_id, repo_type)
    repository.check_visibility(private)
    return repository


def snippet(release: Release, repo_id: str, folder: str | Path) -> str:
    """Lines of Python that use exactly this release, on an input that its training has shown to be answered well.

    Args:
        release: what was pushed.
        repo_id: where to.
        folder: that it came from; without `examples` in its results the task's own example is used.
    """
    results = Path(folder) / RESULTS_FILE
    examples = json.loads(results.read_text(encoding="utf-8")).get("examples") if results.is_file() else None
    example = examples[0]["source"] if examples else TASKS[release.task].example
    pinned = f'model="{repo_id}", revision="{release.revision}"'
    return (
        "from transformers import pipeline\n\n"
        f'pipe = pipeline("{release.task}", {pinned}, trust_remote_code=True)\n'
        f"print(pipe({json.dumps(example, ensure_ascii=False)}))"
    )


def _choose_revision(
    repository: Repository, folder: Path, staging: Path, revision: str | None
) -> tuple[str, list[Operation]]:
    """The tag of the release and what a commit has to change for it; completes the staged files with a card."""
    is_written = (staging / CARD_FILE).is_file()
    pinned = _PINNED.findall((staging / CARD_FILE).read_text(encoding="utf-8")) if is_written else []
    if revision and pinned and revision not in pinned:
        raise UserError(
            f"{folder / CARD_FILE}: loads revision {pinned[0]}, but {revision} is pushed; correct it, or delete "
            "it to have a card written"
        )
    named = revision or next(filter(_REVISION.fullmatch, pinned), None)
    for name in [named] if named else [*repository.head_tags(), repository.next_tag()]:
        if not is_written:
            write_card(staging, repository.repo_id, revision=name, overwrite=True)
        changes = repository.changes(staging, is_ours)
        if not changes:
            break
    if name in repository.tags and (changes or repository.tags[name] != repository.head):
        origin = f", which {folder / CARD_FILE} loads," if name in pinned else ""
        raise UserError(
            f"{repository.repo_id}: revision {name}{origin} is taken by another release; choose another one"
        )
    return name, changes


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """An empty folder for what is about to be uploaded; errors about it name the user's folder."""
    with tempfile.TemporaryDirectory() as temporary:
        staging = Path(temporary).resolve()
        try:
            yield staging
        except UserError as error:
            raise UserError(str(error).replace(str(staging), str(folder))) from error
