"""Checks the checkpoints of a run before it goes on from one."""

import json
import logging
import re
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints

from reluformers.errors import UserError

from .weight_average import WEIGHT_AVERAGE_FILE

logger = logging.getLogger(__name__)

# all that a run writes before its first checkpoint
_WRITTEN_AT_START = {"recipe.yaml", "tokenizer.json", "tokenizer_config.json", "target_tokenizer"}


def check_checkpoint(folder: str | Path) -> None:
    """Make sure that training can go on from a checkpoint: every file is there and complete.

    Raises:
        UserError: a file is missing or cut short, as after a crash while it was written.
    """
    folder = Path(folder)
    weights, states = sorted(folder.glob("*.safetensors")), sorted(folder.glob("rng_state*.pth"))
    for file, found in (("model.safetensors", weights), ("rng_state.pth", states)):
        if not found:
            raise _damaged(folder / file, "is missing")
    # there only if the run keeps a moving average
    averages = folder.glob(WEIGHT_AVERAGE_FILE)
    for path in (folder / OPTIMIZER_NAME, folder / SCHEDULER_NAME, *states, *averages):
        # torch.save writes a zip archive, whose table of contents comes last
        if not zipfile.is_zipfile(path):
            raise _damaged(path, "is cut short" if path.exists() else "is missing")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise _damaged(path, "is cut short") from error
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder / TRAINER_STATE_NAME, "is missing or cut short") from error


def _damaged(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: {what}; resume from another checkpoint, or delete {path.parent} to use the one before it"
    )


def last_intact_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, or None; damaged ones are passed over with a warning."""
    for folder in reversed(sort_checkpoints(str(output_dir))):
        try:
            check_checkpoint(folder)
        except UserError as error:
            logger.warning("passing over a damaged checkpoint: %s", error)
        else:
            return Path(folder)
    return None


def checkpoint_to_resume(output_dir: str | Path, resume: str | Path | None) -> Path | None:
    """Where a run goes on.

    Args:
        output_dir: folder of the run.
        resume: None starts anew and refuses a folder with files of anything but a run that saved nothing yet;
            `"last"` takes the newest complete checkpoint; `"auto"` does so too, and starts anew if there is none;
            anything else is a checkpoint's path.

    Returns:
        Folder of the checkpoint; None to start anew.

    Raises:
        UserError: the folder is not empty, holds no complete checkpoint, or the given one is none or damaged.
    """
    output_dir = Path(output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"{output_dir}: is a file, but the output must be a folder")
    if resume is None:
        if output_dir.exists() and any(path.name not in _WRITTEN_AT_START for path in output_dir.iterdir()):
            raise UserError(f"{output_dir}: is not empty; go on with --resume, or choose another --output_dir")
        return None
    if str(resume) not in ("last", "auto"):
        path = Path(resume)
        if not path.is_dir() or not re.fullmatch(r"checkpoint-\d+", path.absolute().name):
            raise UserError(
                f"{resume}: is no checkpoint; --resume takes a folder checkpoint-<step> of a run, or no value for the "
                "last one, at the end of the command"
            )
        check_checkpoint(path)
        return Path(resume)
    found = last_intact_checkpoint(output_dir) if output_dir.exists() else None
    if found is None and resume == "last":
        raise UserError(f"{output_dir}: holds no complete checkpoint to resume from")
    return found
