"""Two processes, of which one dies or hangs: an error in time, and the same weights after going on."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.commands import SCRIPTS, launch
from builders.translation_runs import assert_same_weights, make_recipe, write_toy_files

TIMEOUT = 15  # seconds

pytestmark = pytest.mark.slow


@pytest.fixture
def recipe_file(tmp_path):
    options = {"max_steps": 40, "save_strategy": "steps", "save_steps": 5, "max_tokens": 200, "ddp_timeout": TIMEOUT}
    recipe = make_recipe(write_toy_files(tmp_path), evaluate_bleu=False, num_train_epochs=1, **options)
    recipe.save(tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


def start(port: int, *arguments) -> list[subprocess.Popen]:
    """Two processes, as a cluster's scheduler starts them."""
    processes = []
    for rank in range(2):
        environment = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, str(SCRIPTS / "train.py"), *map(str, arguments)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    return processes


def wait_for(path: Path, processes: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        time.sleep(0.02)


def check_goes_on(recipe_file: Path, folder: Path, processes) -> None:
    for process in processes:
        assert process.wait(240) == 0, process.stderr.read()
    assert json.loads((folder / "results.json").read_text())["steps"] == 40
    launch("train.py", 2, recipe_file, "--output_dir", folder.with_name("whole"))
    assert_same_weights(folder.with_name("whole"), folder)


def last_line(process: subprocess.Popen, within: float) -> str:
    try:
        _, errors = process.communicate(timeout=within)
    finally:
        process.kill()
    assert process.returncode == 2, errors
    return errors.strip().splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_is_lost_ends_the_others_and_the_run_goes_on(recipe_file, tmp_path, number):
    arguments = (recipe_file, "--output_dir", tmp_path / "run", "--resume", "auto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = start(port, *arguments)
    try:
        wait_for(tmp_path / "run" / "checkpoint-10", processes)
        processes[1].send_signal(number)
        assert last_line(processes[0], TIMEOUT + 30).startswith("error: ")
    finally:
        processes[1].kill()
        processes[1].wait()
    check_goes_on(recipe_file, tmp_path / "run", start(port, *arguments))
