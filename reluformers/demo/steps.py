"""Steps that both demos take: where the model goes, training, and a process that cannot import this library."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reluformers.errors import UserError
from reluformers.files import atomic_directory
from reluformers.training import ImageRecipe, TranslationRecipe
from reluformers.training.run import RECIPE_FILE

CLEAN_PROCESS = Path(__file__).with_name("clean_process.py")


def check_output(folder: Path) -> None:
    """Refuse to replace a folder that no training run has made.

    Args:
        folder: where the model is to go.

    Raises:
        UserError: the folder holds something else.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECIPE_FILE).is_file():
        raise UserError(f"{folder}: holds something that is no trained model; choose another folder")


def train_model(
    train: Callable[..., dict[str, Any]],
    recipe: TranslationRecipe | ImageRecipe,
    files: dict[str, Path],
    folder: Path,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Train, score on the held-out rows and save, whole or not at all.

    Args:
        train: `train_translation` or `train_image_classification`.
        recipe: with everything but the data.
        files: "train" and "validation".
        folder: where the model goes; an earlier one is replaced when the new one is finished.
        report: takes lines for the user.

    Returns:
        Results of the training run.
    """
    data = replace(recipe.data, **{split: str(file) for split, file in files.items()})
    with atomic_directory(folder, overwrite=True) as temporary:
        return train(replace(recipe, data=data), temporary, report=report)


def answer_in_clean_process(task: str, folder: Path, data: bytes) -> dict[str, Any]:
    """Open a saved folder where `reluformers` cannot be imported, and use it once.

    The process is offline and isolated (`python -I`: no PYTHONPATH, no current folder); transformers runs the code
    that lies in the folder.

    Args:
        task: "translation" or "image-classification".
        folder: of the model.
        data: a line of text in UTF-8, or a file with an image.

    Returns:
        What `clean_process.py` writes for that task, with `model_class`.

    Raises:
        UserError: there is no model.
        RuntimeError: the process failed; the message is the end of what it said.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no model; run make demo first")
    with tempfile.TemporaryDirectory() as modules:
        process = subprocess.run(
            [sys.executable, "-I", str(CLEAN_PROCESS), task, str(folder.resolve())],
            input=data,
            capture_output=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": modules},
            check=False,
        )
    if process.returncode:
        raise RuntimeError(f"{folder} cannot be opened without reluformers:\n{process.stderr.decode()[-2000:]}")
    answer = json.loads(process.stdout)
    if answer["has_library"]:
        raise RuntimeError("the clean process can import reluformers, so it shows nothing")
    return answer
