"""Opens saved models as somebody would who has transformers and no reluformers."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("child.py")
# of the environment, what decides how things are computed and shown; all else may be a token
_PASSED = re.compile(
    r"PATH|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|LD_LIBRARY_PATH|(?:CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES|CUDA_HOME"
    r"|(?:OMP|MKL|KMP|OPENBLAS)_[A-Z_]+|(?:TORCH|PYTORCH|TRITON|RELUFORMERS)_[A-Z_]+|TOKENIZERS_PARALLELISM"
)


def environment_without_tokens(home: str) -> dict[str, str]:
    """The environment for a process that runs the code of a folder.

    Args:
        home: empty folder, which takes the place of the user's home and of that of the Hub's client.
    """
    passed = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
    return {**passed, "HOME": home, "HF_HOME": home}


def answer_in_clean_process(task: str, folder: Path, data: bytes) -> dict[str, Any]:
    """Open a saved folder where `reluformers` cannot be imported, and use it once.

    The process is offline, isolated (`python -I`: no PYTHONPATH, no current folder) and has no token of the
    environment or the Hub's client; transformers runs the code that lies in the folder.

    Args:
        task: "translation", "image-classification" or "compare".
        folder: of the model.
        data: what that task reads: a text in UTF-8, a file with an image, or tensors.

    Returns:
        What child.py writes for that task, with `model_class`.

    Raises:
        ValueError: the process failed; the message has the last line of what it said.
    """
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.run(
            [sys.executable, "-I", str(CHILD), task, str(folder.resolve())],
            input=data,
            capture_output=True,
            env={**environment_without_tokens(home), "HF_HUB_OFFLINE": "1"},
            cwd=home,
            check=False,
        )
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"{folder}: does not open where reluformers is not installed: {reason}")
    return json.loads(process.stdout)
