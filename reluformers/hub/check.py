"""Opens a folder as a stranger will, before strangers do."""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save

from reluformers.cards.card import CARD_FILE
from reluformers.cards.check import check_card
from reluformers.clean_process import answer_in_clean_process
from reluformers.errors import UserError
from reluformers.saved_models import load_model
from reluformers.tasks import Task, task_of_model_type

from .files import read_config, select_files

logger = logging.getLogger(__name__)

LOGIT_TOLERANCE = 1e-5


class FolderCheck(NamedTuple):
    """What a folder holds: its task, the class of the code in it, and how far its logits are from the library's."""

    task: str
    model_class: str
    difference: float


def check_folder(folder: str | Path) -> FolderCheck:
    """Make sure that a folder can be published: complete, with a valid card, and the same model for everybody.

    Args:
        folder: of a saved model with its README.md.

    Returns:
        What was found.

    Raises:
        UserError: a file is missing, the card lacks something, the folder does not open where `reluformers` is not
            installed, or computes other logits there.
    """
    folder = Path(folder)
    if CARD_FILE not in select_files(folder):
        raise UserError(f"{folder}: {CARD_FILE} is missing; write it with `reluformers card {folder} …`")
    task = task_of_model_type(read_config(folder)["model_type"])
    if (tag := check_card(folder / CARD_FILE).data.pipeline_tag) != task.name:
        raise UserError(f"{folder / CARD_FILE}: pipeline_tag is {tag!r}, but the model is one for {task.name}")
    return compare_in_clean_process(folder, task)


def compare_in_clean_process(folder: Path, task: Task) -> FolderCheck:
    """Compare the logits of the installed classes with those of a process that has only the folder.

    Args:
        folder: of a saved model.
        task: what it does.

    Raises:
        UserError: it does not open there, or the logits differ by more than `LOGIT_TOLERANCE`.
    """
    model = load_model(task.auto_class, folder, dtype=torch.float32)
    inputs = task.example_inputs(model.config)
    with torch.no_grad():
        logits = model(**inputs).logits.contiguous()
    try:
        answer = answer_in_clean_process("compare", folder, save({**inputs, "logits": logits}))
    except RuntimeError as error:
        logger.debug("the clean process in full", exc_info=True)
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"{folder}: does not open where reluformers is not installed: {reason}") from error
    if not answer["difference"] <= LOGIT_TOLERANCE:  # also where it is not a number
        raise UserError(
            f"{folder}: the code in it computes other logits than reluformers, by {answer['difference']:.1e}; "
            "load the model with reluformers and save it again"
        )
    return FolderCheck(task.name, answer["model_class"], answer["difference"])
