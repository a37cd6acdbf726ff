"""Opens saved models as somebody would who has transformers and no reluformers."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reluformers.app.app import PASSED

CHILD = Path(__file__).with_name("child.py")


def answer_in_clean_process(task: str, folder: Path, data: bytes) -> dict[str, Any]:
    """Open a saved folder where `reluformers` cannot be imported, and use it once.

    The process is offline, isolated (`python -I`: no PYTHONPATH, no current folder) and has no token of the
    environment or the Hub's client; transformers runs the code that lies in the folder.

    Args:
        task: "translation", "image-classification" or "compare".
        folder: of the model.
        data: what that task reads: a text in UTF-8, a file with an image, or tensors.

    Returns:
        What child.py writes for that task, with `model_class`; where it fails, a ValueError has the last line it said.
    """
    passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
    with tempfile.TemporaryDirectory() as home:
        homes = dict.fromkeys(("HOME", "HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE"), home)
        process = subprocess.run(
            [sys.executable, "-I", str(CHILD), task, str(folder.resolve())],
            input=data,
            capture_output=True,
            env={**passed, **homes, "HF_HUB_OFFLINE": "1"},
            cwd=home,
            check=False,
        )
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"{folder}: does not open where reluformers is not installed: {reason}")
    return json.loads(process.stdout)
