"""The checkpoints of a run: written whole or not at all, verified before the run goes on from one.

A checkpoint holds `manifest.json`: size and SHA-256 of each of its files and the record of its run. It is filled in a
folder beside, brought to the disk and renamed, so that no kill leaves a part of one under its name.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.utils.sha import sha_fileobj
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reluformers.files import replace_directory, sync, write_text
from reluformers.saved_models import TOKENIZER_FILES

from .lock import LOCK_FILE, OWNER_FILE

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
# where checkpoints lie until they are whole
UNFINISHED_FOLDER = ".unfinished"
# folders of what training did not go on from
_ASIDE = "set_aside"
# patterns of what belongs to the training of one checkpoint and not to its model
TRAINING_FILES = ("*.pt", "*.pth", "*.bin", "stream_*.json", "trainer_state.json", MANIFEST_FILE)
# all that a run writes before its first checkpoint
_WRITTEN_AT_START = {
    LOCK_FILE,
    OWNER_FILE,
    UNFINISHED_FOLDER,
    "recipe.yaml",
    "target_tokenizer",
    *TOKENIZER_FILES,
}


def step_of(folder: str | Path) -> int | None:
    """The update that a folder `checkpoint-<step>` is named after; None for other names."""
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", Path(folder).absolute().name)
    return int(match[1]) if match else None


def checkpoints_of(run_folder: str | Path) -> list[Path]:
    """The folders `checkpoint-<step>` of a run, by step, also links, wherever they lead, be it to nothing.

    Whoever copies one to another name keeps the copy.
    """
    found = Path(run_folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    folders = [path for path in found if path.is_dir() or path.is_symlink()]
    return sorted((path for path in folders if step_of(path) is not None), key=step_of)


def rotate_checkpoints(run_folder: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints above the limit, but neither the last nor the best one.

    Of a link the link alone: another run may use what is behind it.
    """
    if limit is None or limit <= 0:
        return
    folders = checkpoints_of(run_folder)
    old = [folder for folder in folders[:-1] if best is None or folder != Path(best)]
    for folder in old[: max(0, len(folders) - limit)]:
        if folder.is_symlink():
            logger.warning("%s: the link is removed, but not %s behind it", folder, os.path.realpath(folder))
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)


def complete_checkpoint(unfinished: Path, target: Path, run: dict[str, Any]) -> None:
    """Seal a checkpoint with its manifest and put it in its place; both outlast a loss of power.

    Args:
        unfinished: folder with all files of the checkpoint, on the disk of `target`.
        target: `checkpoint-<step>`; one that is there is replaced.
        run: record of the run; see `read_manifest`.
    """
    files = sorted(path for path in unfinished.rglob("*") if path.is_file())
    for path in (*files, *(path for path in unfinished.rglob("*") if path.is_dir())):
        sync(path)
    content = {
        "format_version": FORMAT_VERSION,
        "step": step_of(target),
        "run": run,
        "files": {path.relative_to(unfinished).as_posix(): _fingerprint(path) for path in files},
    }
    write_text(unfinished / MANIFEST_FILE, json.dumps({"sha256": _digest(content), **content}, indent=1) + "\n")
    sync(unfinished)
    replace_directory(unfinished, target)
    sync(target.parent)


def check_checkpoint(folder: str | Path, *, for_training: bool = True) -> dict[str, Any]:
    """Make sure that every file of a checkpoint is as it was written.

    Args:
        folder: `checkpoint-<step>`.
        for_training: whether a run is to go on from it; without, what belongs to training alone may be gone.

    Returns:
        The record of its run.

    Raises:
        ValueError: a file is missing, cut short or changed; names it and the fault.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest["step"] != step_of(folder):
        raise _damaged(folder, f"is a copy of {PREFIX_CHECKPOINT_DIR}-{manifest['step']} under another name")
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            if not for_training and any(path.match(pattern) for pattern in TRAINING_FILES):
                continue
            raise _damaged(path, "is missing")
        if (size := path.stat().st_size) != expected["size"]:
            what = "is cut short" if size < expected["size"] else "is too long"
            raise _damaged(path, f"{what} ({size} bytes instead of {expected['size']})")
        if _fingerprint(path) != expected:
            raise _damaged(path, "is not what was written (another SHA-256)")
    return manifest["run"]


def check_model(place: str | Path) -> None:
    """Verify what a model is read from, if it is a checkpoint `checkpoint-<step>` of a run of ours, or a link to one.

    Hub ids, other folders and checkpoints of the stock `Trainer`, which have no manifest, are passed over.

    Raises:
        ValueError: a file of the model is missing, or one is not as it was written.
    """
    for folder in (Path(place), Path(os.path.realpath(place))):
        if step_of(folder) is not None and (folder / MANIFEST_FILE).is_file():
            check_checkpoint(folder, for_training=False)
            return


def check_finite(weights: Mapping[str, Tensor], place: Path) -> None:
    """Refuse weights that are not finite.

    Args:
        weights: by name.
        place: where they come from, for the error.

    Raises:
        ValueError: names the first one.
    """
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(f"{place}: {name} holds weights that are not finite; take another checkpoint")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint: `step`, `run` (what `TaskRun.record` says), and `files` with size and SHA-256.

    Raises:
        ValueError: it is missing, damaged or of a later version.
    """
    if not folder.is_dir():
        raise _damaged(folder, f"is a link to {os.path.realpath(folder)}, which is no folder")
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise _damaged(path, "is missing")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        is_whole, version = manifest.pop("sha256") == _digest(manifest), manifest["format_version"]
        if version == FORMAT_VERSION:
            sizes = [type(expected["size"]) for expected in manifest["files"].values()]
            kinds = {type(manifest["step"]), *sizes}, type(manifest["run"])
            is_whole = is_whole and kinds == ({int}, dict)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, "is damaged") from error
    if not is_whole:
        raise _damaged(path, "is damaged")
    if version != FORMAT_VERSION:
        raise _damaged(path, f"has format_version {version!r}, this version reads {FORMAT_VERSION}")
    return manifest


def last_intact_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest whole checkpoint of a run, or None; damaged ones are passed over with a warning."""
    for folder in reversed(checkpoints_of(output_dir)):
        try:
            check_checkpoint(folder)
        except ValueError as error:
            logger.warning("passing over a damaged checkpoint: %s", error)
        else:
            return folder
    return None


def checkpoint_to_resume(output_dir: str | Path, resume: str | Path | None) -> Path | None:
    """Where a run goes on.

    Args:
        output_dir: folder of the run.
        resume: None starts anew and refuses a folder with files of anything but a run that saved nothing yet;
            `"last"` takes the newest whole checkpoint; `"auto"` does so too, and starts anew if there is none;
            anything else is a checkpoint's path.

    Returns:
        Folder of the checkpoint; None to start anew.

    Raises:
        ValueError: the folder is not empty, holds no whole checkpoint, or the given one is none or damaged.
    """
    output_dir = Path(output_dir)
    if resume is None:
        if output_dir.exists() and any(path.name not in _WRITTEN_AT_START for path in output_dir.iterdir()):
            raise ValueError(f"{output_dir}: is not empty; go on with --resume, or choose another --output_dir")
        return None
    if str(resume) not in ("last", "auto"):
        path = Path(resume)
        if path.is_symlink() and step_of(path) is None:
            path = Path(os.path.realpath(path))
        if not path.is_dir() or step_of(path) is None:
            raise ValueError(
                f"{resume}: is no checkpoint; --resume takes a folder checkpoint-<step> of a run, or no value for the "
                "last one, at the end of the command"
            )
        check_checkpoint(path)
        return path
    found = last_intact_checkpoint(output_dir) if output_dir.exists() else None
    if found is None:
        left = [*checkpoints_of(output_dir), *sorted(output_dir.glob(f"{_ASIDE}-*/{PREFIX_CHECKPOINT_DIR}-*"))]
        shown = textwrap.shorten(", ".join(str(path.relative_to(output_dir)) for path in left), 200)
        if resume == "last":
            others = f", but {shown}" if left else ""
            raise ValueError(f"{output_dir}: holds no complete checkpoint to resume from{others}")
        if left:
            logger.warning("%s: training starts anew, though there are checkpoints: %s", output_dir, shown)
    return found


def set_aside_later(output_dir: str | Path, checkpoint: Path | None) -> Path | None:
    """Move away what training will not go on from, so that rotation, averages and later starts see one run alone.

    Args:
        output_dir: folder of the run.
        checkpoint: where the run goes on, here or in another folder; None if it starts anew.

    Returns:
        Where the checkpoints lie now; None if there were none.
    """
    output_dir = Path(output_dir)
    shutil.rmtree(output_dir / UNFINISHED_FOLDER, ignore_errors=True)
    folders = checkpoints_of(output_dir)
    is_here = checkpoint is not None and any(folder.is_dir() and folder.samefile(checkpoint) for folder in folders)
    last = step_of(checkpoint) if is_here else -1
    later = [folder for folder in folders if step_of(folder) > last]
    if not later:
        return None
    number = 1
    while os.path.lexists(aside := output_dir / f"{_ASIDE}-{number}"):
        number += 1
    aside.mkdir()
    for folder in later:
        if folder.is_symlink():  # which may be relative to where it lies
            (aside / folder.name).symlink_to(os.path.realpath(folder))
            folder.unlink()
        else:
            folder.rename(aside / folder.name)
    return aside


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": sha_fileobj(file).hex()}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: {what}; take another checkpoint; --resume alone goes on from the newest whole one")
