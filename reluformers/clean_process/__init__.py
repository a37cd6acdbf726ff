"""Opens saved models as somebody would who has transformers and no reluformers."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reluformers.errors import UserError

CHILD = Path(__file__).with_name("child.py")


def answer_in_clean_process(task: str, folder: Path, data: bytes) -> dict[str, Any]:
    """Open a saved folder where `reluformers` cannot be imported, and use it once.

    The process is offline and isolated (`python -I`: no PYTHONPATH, no current folder); transformers runs the code
    that lies in the folder.

    Args:
        task: a key of `TASKS` in child.py.
        folder: of the model.
        data: what that task reads: a line of text in UTF-8, a file with an image, tensors, or a JSON list of
            cells of Python.

    Returns:
        What child.py writes for that task, with `model_class`, which means nothing for cells.

    Raises:
        UserError: there is no model.
        RuntimeError: the process failed; the message is the end of what it said.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no model; run make demo first")
    with tempfile.TemporaryDirectory() as modules:
        process = subprocess.run(
            [sys.executable, "-I", str(CHILD), task, str(folder.resolve())],
            input=data,
            capture_output=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": modules},
            check=False,
        )
    if process.returncode:
        raise RuntimeError(
            f"{folder} cannot be opened without reluformers:\n{process.stderr.decode(errors='replace')[-2000:]}"
        )
    answer = json.loads(process.stdout)
    if answer["has_library"]:
        raise RuntimeError("the clean process can import reluformers, so it shows nothing")
    return answer
