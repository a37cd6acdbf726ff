"""The checkpoints of a run: each counts only when it is complete, and is verified before anything goes on from it.

A checkpoint holds `manifest.json`: size and SHA-256 of each of its files and the record of its run. It is written
last, when everything else is on the disk; while the folder is filled, an empty file marks it as unfinished.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub.utils.sha import sha_fileobj
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reluformers.files import read_json, sync, write_text
from reluformers.saved_models import TOKENIZER_FILES

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
LOCK_FILE = ".lock"  # A run holds it as long as it trains.
FORMAT_VERSION = 1
# This file marks a checkpoint that is being written.
UNFINISHED_FILE = ".unfinished"
# Checkpoints that training did not go on from move into folders of this name.
_ASIDE = "set_aside"
# These files of a checkpoint belong to its training, not to its model.
TRAINING_FILES = ("*.pt", "*.pth", "*.bin", "stream_*.json", "trainer_state.json", MANIFEST_FILE)
# A run writes nothing else before its first checkpoint.
_WRITTEN_AT_START = {LOCK_FILE, "recipe.yaml", "target_tokenizer", *TOKENIZER_FILES}


def step_of(folder: str | Path) -> int | None:
    """The update that a folder `checkpoint-<step>` is named after; None for other names."""
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", Path(folder).absolute().name)
    return int(match[1]) if match else None


def checkpoints_of(run_folder: str | Path) -> list[Path]:
    """The folders `checkpoint-<step>` of a run by step, but for unfinished ones."""
    named = (path for path in Path(run_folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if step_of(path) is not None)
    folders = [path for path in named if path.is_dir() and not (path / UNFINISHED_FILE).exists()]
    return sorted(folders, key=step_of)


def rotate_checkpoints(run_folder: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints above the limit, but neither the last nor the best one."""
    folders = checkpoints_of(run_folder)
    old = [folder for folder in folders[:-1] if best is None or folder != Path(best)]
    for folder in old[: max(0, len(folders) - limit)] if limit else ():
        shutil.rmtree(folder, ignore_errors=True)


def begin_checkpoint(folder: Path) -> None:
    """Make an empty folder for a checkpoint, marked as unfinished; what stands in its place goes."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / UNFINISHED_FILE).touch()


def complete_checkpoint(folder: Path, run: dict[str, Any]) -> None:
    """Seal a checkpoint with its manifest, which keeps the record of its run; from now on it counts.

    It outlasts a loss of power: what the manifest speaks of is on the disk before it.
    """
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    paths = [path for path in folder.rglob("*") if path.name != UNFINISHED_FILE]
    for path in paths:
        sync(path)
    files = {path.relative_to(folder).as_posix(): _fingerprint(path) for path in sorted(paths) if path.is_file()}
    content = {"format_version": FORMAT_VERSION, "step": step_of(folder), "run": run, "files": files}
    write_text(folder / MANIFEST_FILE, json.dumps({"sha256": _digest(content), **content}, indent=1) + "\n")
    (folder / UNFINISHED_FILE).unlink(missing_ok=True)
    sync(folder)
    sync(folder.parent)


def check_checkpoint(folder: str | Path, *, for_training: bool = True) -> dict[str, Any]:
    """Return the record of a checkpoint's run, if every file is as it was written; a ValueError names one that is not.

    What belongs to training alone is looked at only `for_training`.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = folder / name
        is_needed = for_training or not any(path.match(pattern) for pattern in TRAINING_FILES)
        if is_needed and _fingerprint(path) != expected:
            raise ValueError(f"{path}: is not what was written; take another checkpoint")
    return manifest["run"]


def check_model(name_or_path: str | Path) -> None:
    """Verify what a model is read from, if it is a checkpoint `checkpoint-<step>` of a run of ours.

    Hub ids, other folders and checkpoints of the stock `Trainer`, which have no manifest, are passed over. A
    ValueError names a file of the model that is missing or changed, or a checkpoint that was never finished.
    """
    for folder in (Path(name_or_path), Path(os.path.realpath(name_or_path))):
        if (folder / UNFINISHED_FILE).exists() or (step_of(folder) is not None and (folder / MANIFEST_FILE).is_file()):
            check_checkpoint(folder, for_training=False)
            return


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint: `step`, `run` (the record of a `Run`), and `files` with size and SHA-256.

    A ValueError says that the checkpoint is not complete, or that the manifest is another checkpoint's.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = read_json(path)
        is_whole = manifest.pop("sha256") == _digest(manifest) and manifest["format_version"] == FORMAT_VERSION
    except (ValueError, AttributeError, KeyError, TypeError):
        is_whole = False
    if not is_whole or manifest["step"] != step_of(folder) or (folder / UNFINISHED_FILE).exists():
        raise ValueError(f"{path}: is missing, damaged or of another one, so this is no complete checkpoint")
    return manifest


def checkpoint_to_resume(output_dir: str | Path, resume: str | Path | None) -> Path | None:
    """Find the checkpoint where a run goes on; None to start anew.

    Args:
        output_dir: folder of the run.
        resume: None starts anew and refuses a folder with files of anything but a run that saved nothing yet;
            `"last"` takes the newest whole checkpoint and passes over damaged ones with a warning; `"auto"` does so
            too, and starts anew if there is none; anything else is a checkpoint's path.
    """
    output_dir = Path(output_dir)
    if resume is None:
        entries = output_dir.iterdir() if output_dir.exists() else ()
        others = [path for path in entries if path.name not in _WRITTEN_AT_START]
        if any(not (path / UNFINISHED_FILE).exists() for path in others):
            raise ValueError(f"{output_dir}: is not empty; go on with --resume, or choose another --output_dir")
        return None
    if str(resume) not in ("last", "auto"):
        check_checkpoint(resume)
        return Path(resume)
    for folder in reversed(checkpoints_of(output_dir)):
        try:
            check_checkpoint(folder)
        except ValueError as error:
            logger.warning("passing over a checkpoint: %s", error)
        else:
            return folder
    if resume == "last":
        raise ValueError(f"{output_dir}: holds no complete checkpoint to resume from")
    return None


def set_aside_later(output_dir: str | Path, checkpoint: Path | None) -> Path | None:
    """Move away the checkpoints after the one that a run goes on from, or all; gives where to, None if there are none.

    Rotation, averages and later starts are to see one run alone. `checkpoint` may lie in another folder.
    """
    output_dir = Path(output_dir)
    for mark in output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{UNFINISHED_FILE}"):
        shutil.rmtree(mark.parent)
    folders = checkpoints_of(output_dir)
    is_here = checkpoint is not None and any(folder.samefile(checkpoint) for folder in folders)
    later = [folder for folder in folders if not is_here or step_of(folder) > step_of(checkpoint)]
    if not later:
        return None
    number = 1 + len(list(output_dir.glob(f"{_ASIDE}-*")))
    aside = output_dir / f"{_ASIDE}-{number}"
    aside.mkdir()
    for folder in later:
        folder.rename(aside / folder.name)
    return aside


def _fingerprint(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": sha_fileobj(file).hex()}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
