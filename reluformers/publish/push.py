"""Pushes a saved model to the Hub: checked first, in one commit, with a tag that never moves."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from reluformers.data.names import is_hub_id
from reluformers.evaluation.examples import read_examples
from reluformers.files import stamp, write_text
from reluformers.tasks import TASKS, task_of_model_type

from .card import CARD_FILE, write_card
from .card_check import check_card
from .finished_run import read_results
from .folder_check import check_folder, write_answers
from .hub_errors import hub_errors
from .leaks import check_files
from .notebook import NOTEBOOK, write_notebook
from .release import CHECK_FILE, is_ours, leave_out_examples, read_config, refuse_foreign_code, stage_files
from .repository import Operation, Repository, file_names

_REVISION = re.compile(r"(?!main$)(?![0-9a-f]{7,40}$)(?!.*(?:\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9._-]*")
_LOADED = re.compile(r"""(?:model=|from_pretrained\()["']([^"']+)["']""")
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
    trust_code: bool = False,
    api: HfApi | None = None,
    report: Callable[[str], None] = lambda line: None,
    confirm: Callable[[str], bool] = lambda line: True,
    **card_options: Any,
) -> Release:
    """Check a saved model, push it in one commit and tag that.

    A new repository is private until the release is whole. A second call after an interruption goes on with what is
    missing, and does nothing where nothing is.

    Args:
        folder: of a saved model. Without a README.md a card is written for the upload.
        repo_id: "ORG/NAME".
        private: keep a new repository private; an existing one stays what it is.
        revision: name of the tag. Without it, the one that README.md pins, else the next of v1, v2, ….
        trust_code: whether code of the folder that this library would not have written may be run and pushed.
        api: the client; by default that of the environment (HF_ENDPOINT, HF_TOKEN).
        report: takes lines for the user.
        confirm: is told, before anything is uploaded, who will see the release, and says whether to go on.
        card_options: arguments of `write_card`, for the card that is written where the folder has none; a card that
            the folder has gets the link to its `space` too, there and on the Hub. `held_out=False` leaves the rows
            of the validation set that results.json holds out of the release too.

    Returns:
        The release as it is on the Hub now.

    Raises:
        ValueError: the folder is not fit to be published, the Hub cannot be reached or refuses, or `confirm` says no.
    """
    folder, api = Path(folder), api or HfApi()
    check_names(repo_id, revision)
    with _staging(folder) as staging, hub_errors(api, repo_id):
        stamps = stage_files(folder, staging)
        if not card_options.get("held_out", True):
            leave_out_examples(staging)
        refuse_foreign_code(staging, trust_code, report, shown_as=folder)
        checked = set(file_names(staging))
        config = read_config(folder)
        task = task_of_model_type(config["model_type"]).name
        is_linked = False
        repository = open_repository(api, repo_id, private)
        repository.check_holds(config["model_type"])
        names = _possible_revisions(repository, folder, staging, revision)
        if not (staging / CARD_FILE).is_file():
            report(f"{folder}: writing the card")
            write_card(folder, repo_id, revision=names[0], output=staging, **card_options)
        else:
            if base_model := card_options.get("base_model"):
                name_base_model(staging / CARD_FILE, base_model)
            is_linked = link_space(staging / CARD_FILE, card_options.get("space"))
        report(f"{folder}: opening it where reluformers is not installed")
        check_files(staging, set(file_names(staging)) - checked, shown_as=folder)
        check = check_folder(staging)
        if not check.is_stored:
            write_answers(staging, check.answers)
            check_files(staging, [CHECK_FILE], shown_as=folder)
        if write_notebook(staging, repo_id, names[0], task):
            check_files(staging, [NOTEBOOK], shown_as=folder)
        name, changes = _choose_revision(repository, folder, staging, names)
        # behind this the Hub refuses what is not what the commit announces
        for path in (path for path, before in stamps.items() if stamp(path) != before):
            raise ValueError(f"{path}: was changed while it was pushed; push again when nothing writes to it")
        is_new = bool(changes) or not repository.exists
        if is_new and not confirm(_audience(repository, private)):
            raise ValueError(f"{repo_id}: nothing was pushed")
        if not repository.exists:
            repository.create(private)
        if changes:
            report(f"{repo_id}: uploading {len(changes)} files")
            repository.commit(changes, f"Release {name}")
        if name not in repository.tags:
            repository.tag(name)
        repository.finish(private)
        if is_linked and link_space(folder / CARD_FILE, card_options["space"]):
            report(f"{folder / CARD_FILE}: links the Space now")
        licence = check_card(staging / CARD_FILE).data.license
    licence = licence if isinstance(licence, str) else licence[0]
    url = f"{api.endpoint}/{repo_id}"
    return Release(url, repository.head, name, task, licence, is_new, repository.private)


def check_names(repo_id: str, revision: str | None) -> None:
    """Refuse names that the Hub would, and revisions that look like something else.

    Raises:
        ValueError: says which.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"{repo_id!r}: is no name for a repository: {' '.join(str(error).split())}") from error
    if repo_id.count("/") != 1:
        raise ValueError(f"{repo_id!r}: is no name for a repository; give ORG/NAME, with your account or organisation")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise ValueError(f"revision {revision!r} is no name for a tag; give one such as v1")


def open_repository(api: HfApi, repo_id: str, private: bool, repo_type: str = "model") -> Repository:
    """Look at a repository after making sure that the token may write to it.

    Args:
        api: the client.
        repo_id: "ORG/NAME".
        private: whether it is to be private.
        repo_type: "model" or "space".

    Raises:
        ValueError: the token cannot write there, or the repository is public and `private` is asked for.
    """
    repository = Repository(api, repo_id, repo_type)
    repository.check_visibility(private)
    # the token that a CI job gets for its trusted publisher is one of this repository and of nobody's account
    if os.environ.get("HF_OIDC_RESOURCE"):
        return repository
    account = api.whoami()
    token = account.get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        raise ValueError(f"the token of {account['name']} is read-only; take one with write access")
    names = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    owner = repo_id.partition("/")[0]
    # a fine-grained token does not list all that it may write to
    if token.get("role") != "fineGrained" and owner not in names:
        raise ValueError(
            f"{repo_id}: {owner} is neither your account nor one of your organisations ({', '.join(names)}); "
            "push to one of these"
        )
    return repository


def snippet(release: Release, repo_id: str, folder: str | Path) -> str:
    """Lines of Python that use exactly this release, on an input that its training has shown to be answered well.

    Args:
        release: what was pushed.
        repo_id: where to.
        folder: that it came from; without `examples` in its results the task's own example is used.
    """
    examples = read_examples(read_results(folder), "source")
    example = examples[0]["source"] if examples else TASKS[release.task].example
    pinned = f'model="{repo_id}", revision="{release.revision}"'
    return (
        "from transformers import pipeline\n\n"
        f'pipe = pipeline("{release.task}", {pinned}, trust_remote_code=True)\n'
        f"print(pipe({json.dumps(example, ensure_ascii=False)}))"
    )


def link_space(card: Path, space: str | None) -> bool:
    """Put the link to a Space before the first section of a card that has none; whether it did."""
    text = card.read_text(encoding="utf-8")
    if space is None or f"/spaces/{space})" in text:
        return False
    link = f"[Try it in its Space](https://huggingface.co/spaces/{space}), which shows its attention too.\n\n"
    head = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    section = re.compile(r"^## ", re.MULTILINE).search(text, head.end() if head else 0)
    place = section.start() if section else len(text)
    before = text[:place] if text[:place].endswith("\n\n") else f"{text[:place].rstrip()}\n\n"
    write_text(card, f"{before}{link}{text[place:]}".rstrip() + "\n")
    return True


def _audience(repository: Repository, private: bool) -> str:
    """Who will see a release."""
    is_known = repository.exists and not repository.unfinished
    tense = "is" if is_known else "will be"
    if repository.private if is_known else private:
        return f"{repository.repo_id}: the repository {tense} private"
    advice = "" if is_known else "; --private keeps it to yourself"
    return f"{repository.repo_id}: the repository {tense} public, for everybody to see{advice}"


def _possible_revisions(repository: Repository, folder: Path, staging: Path, revision: str | None) -> list[str]:
    """The tags that the release may have: the one that is asked for or that the card loads, else those of the newest
    commit, of which it may be a repetition, and the next one."""
    is_written = (staging / CARD_FILE).is_file()
    text = (staging / CARD_FILE).read_text(encoding="utf-8") if is_written else ""
    loaded = {name for name in _LOADED.findall(text) if is_hub_id(name)}
    if loaded and repository.repo_id not in loaded:
        raise ValueError(
            f"{folder / CARD_FILE}: is the card of {min(loaded)}, not of {repository.repo_id}; correct it, or delete "
            f"it to have one written, with --base_model {min(loaded)} if the model was tuned from that"
        )
    pinned = _PINNED.findall(text)
    if revision and pinned and revision not in pinned:
        raise ValueError(
            f"{folder / CARD_FILE}: loads revision {pinned[0]}, but {revision} is pushed; correct it, or delete "
            "it to have a card written"
        )
    named = revision or next(filter(_REVISION.fullmatch, pinned), None)
    return [named] if named else [*repository.head_tags(), repository.next_tag()]


def _choose_revision(
    repository: Repository, folder: Path, staging: Path, names: list[str]
) -> tuple[str, list[Operation]]:
    """The tag of the release and what a commit has to change for it; the texts that were written name this tag."""
    written, previous = [name for name in (CARD_FILE, NOTEBOOK) if (staging / name).is_file()], names[0]
    for name in names:
        for file in written:
            _replace_revision(staging / file, previous, name)
        previous = name
        changes = repository.changes(staging, partial(is_ours, is_released=bool(repository.tags)))
        if not changes:
            break
    if name in repository.tags and (changes or repository.tags[name] != repository.head):
        text = (folder / CARD_FILE).read_text(encoding="utf-8") if (folder / CARD_FILE).is_file() else ""
        origin = f", which {folder / CARD_FILE} loads," if name in _PINNED.findall(text) else ""
        raise ValueError(
            f"{repository.repo_id}: revision {name}{origin} is taken by another release; choose another one"
        )
    return name, changes


def _replace_revision(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    for quoted in ('revision="{}"', r"revision=\"{}\""):  # in the notebook, which is JSON, the other way
        text = text.replace(quoted.format(old), quoted.format(new))
    path.write_text(text, encoding="utf-8")


def name_base_model(card: Path, base_model: str) -> None:
    """Name in the metadata of a card, and nowhere else in it, the model that its model was tuned from."""
    check = check_card(card)
    check.data.base_model, check.data.base_model_relation = base_model, "finetune"
    check.save(card)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """An empty folder for what is about to be uploaded; errors about it name the user's folder."""
    with tempfile.TemporaryDirectory() as temporary:
        staging = Path(temporary).resolve()
        try:
            yield staging
        except ValueError as error:
            raise ValueError(str(error).replace(str(staging), str(folder))) from error
