"""A repository of the Hub that takes whole releases and shows nothing before the first one is complete."""

import hashlib
import re
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError

# there from the creation of a repository until it becomes public, so that a second call knows that it was to
UNFINISHED = "unfinished-release"
_ANY_REPOSITORY_HAS = {".gitattributes", "README.md", "LICENSE"}

Operation = CommitOperationAdd | CommitOperationDelete


class Repository:
    """State of a repository when it was last looked at, and the changes that a release makes to it.

    Args:
        api: the client.
        repo_id: "ORG/NAME".
        repo_type: "model" or "space".
    """

    def __init__(self, api: HfApi, repo_id: str, repo_type: str = "model"):
        self.api = api
        self.repo_id = repo_id
        self.repo_type = repo_type
        self.exists = False
        self.look()

    def look(self) -> None:
        """Read files, tags and visibility from the Hub."""
        where = {"repo_id": self.repo_id, "repo_type": self.repo_type}
        self.digests: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.head = None
        try:
            info = self.api.repo_info(**where, files_metadata=True)
        except RepositoryNotFoundError:
            return
        refs = self.api.list_repo_refs(**where)
        self.exists, self.private, self.head = True, bool(info.private), info.sha
        self.card = getattr(info, "card_data", None) or {}  # metadata of README.md
        self.model_type = (getattr(info, "config", None) or {}).get("model_type")
        self.digests = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings}
        self.tags = {tag.name: tag.target_commit for tag in refs.tags}
        self.unfinished = UNFINISHED in {branch.name for branch in refs.branches}

    def check_holds(self, model_type: str) -> None:
        """Refuse to write over another model.

        Raises:
            ValueError: the repository holds something else than this kind of model.
        """
        if not self.is_blank and self.model_type != model_type:
            held = f"a model of type {self.model_type}" if self.model_type else "something else"
            raise ValueError(f"{self.repo_id}: the name is taken, it already holds {held}; choose another name")

    @property
    def is_blank(self) -> bool:
        """Whether it holds nothing but what any new repository may have, as after a push that was cut off."""
        return not self.digests.keys() - _ANY_REPOSITORY_HAS

    def check_visibility(self, private: bool) -> None:
        """Refuse to publish what is to be private.

        Raises:
            ValueError: the repository is public and `private` is asked for.
        """
        if self.exists and private and not self.private:
            raise ValueError(
                f"{self.repo_id}: is public already; leave --private out, choose another name, or make it private "
                f"first: hf repos settings {self.repo_id} --private"
            )

    def head_tags(self) -> list[str]:
        """Tags of the newest commit."""
        return sorted(name for name, commit in self.tags.items() if commit == self.head)

    def next_tag(self) -> str:
        """The first of v1, v2, … that comes after all of them that are taken."""
        taken = [int(match[1]) for name in self.tags if (match := re.fullmatch(r"v(\d+)", name))]
        return f"v{max(taken, default=0) + 1}"

    def changes(self, folder: Path, removable=lambda name: False) -> list[Operation]:
        """What a commit has to do so that the repository holds the files of a folder.

        Args:
            folder: all of its files are meant.
            removable: whether a file that the folder lacks is to be deleted.
        """
        files = {name: folder / name for name in file_names(folder)}
        added = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
            for name, path in sorted(files.items())
            if self.digests.get(name) not in _digests(path)
        ]
        gone = [name for name in sorted(self.digests.keys() - files.keys()) if removable(name)]
        return [*added, *(CommitOperationDelete(path_in_repo=name) for name in gone)]

    def create(self, private: bool, **options: str) -> None:
        """Make the repository, private for now.

        Args:
            private: whether it stays so.
            options: further arguments of `HfApi.create_repo`.
        """
        # a cut before the mark leaves an empty private repository, which looks like one that its owner made to be
        # private: it stays so, and the command line says how to show it
        self.api.create_repo(self.repo_id, repo_type=self.repo_type, private=True, **options)
        if not private:
            self.api.create_branch(self.repo_id, repo_type=self.repo_type, branch=UNFINISHED)
        self.look()

    def commit(self, changes: list[Operation], message: str) -> None:
        """Make one commit of the changes, unless somebody else has made one since the last look."""
        done = self.api.create_commit(
            self.repo_id, changes, repo_type=self.repo_type, commit_message=message, parent_commit=self.head
        )
        self.head = done.oid

    def tag(self, name: str) -> None:
        """Tag the newest commit."""
        self.api.create_tag(self.repo_id, repo_type=self.repo_type, tag=name, revision=self.head)
        self.tags[name] = self.head

    def finish(self, private: bool) -> None:
        """Show a new repository, whose first release is complete now, unless it is to stay private."""
        if not self.unfinished:
            return
        if not private:
            self.api.update_repo_settings(self.repo_id, repo_type=self.repo_type, private=False)
            self.private = False
        self.api.delete_branch(self.repo_id, repo_type=self.repo_type, branch=UNFINISHED)


def file_names(folder: Path) -> list[str]:
    """Paths of all files within a folder, as a repository has them."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _digests(path: Path) -> tuple[str, str]:
    """What the Hub calls a file: SHA-256 where it is stored as a large one, else the SHA-1 of git."""
    large, small = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            large.update(block)
            small.update(block)
    return large.hexdigest(), small.hexdigest()
