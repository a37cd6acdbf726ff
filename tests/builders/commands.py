"""The command line, in this process and in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reluformers_cli import main

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_command(*arguments) -> None:
    """Run `reluformers …` here, which saves the imports."""
    main(list(map(str, arguments)))


def refusal_of(capsys, *arguments) -> str:
    """The line that refuses `reluformers …`, after code 2 and no traceback."""
    with pytest.raises(SystemExit) as caught:
        run_command(*arguments)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in "".join(lines)
    return lines[-1]


def launch(script: str, processes: int, *arguments) -> str:
    """Output of a file of `scripts/` in processes of its own on the CPU."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--master_addr=127.0.0.1"]
        launcher += ["--rdzv_endpoint=127.0.0.1:0", "--rdzv_backend=c10d"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(
        [*launcher, str(SCRIPTS / script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
