"""Two machines, of which one dies, hangs or is cut off: an error in time, and the same weights after going on."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builders.commands import SCRIPTS, launch
from builders.translation_runs import make_recipe, write_toy_files

NAMES = ("reluformers-a", "reluformers-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
TIMEOUT = 15  # seconds

pytestmark = pytest.mark.slow


@pytest.fixture
def recipe_file(tmp_path):
    options = {"max_steps": 40, "save_strategy": "steps", "save_steps": 5, "max_tokens": 200, "ddp_timeout": TIMEOUT}
    recipe = make_recipe(write_toy_files(tmp_path), evaluate_bleu=False, num_train_epochs=1, **options)
    recipe.save(tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


@pytest.fixture
def machines():
    """Two network namespaces with one cable between them and no way out."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command ip")
    commands = [f"netns add {name}" for name in NAMES]
    commands += [f"link add cable0 netns {NAMES[0]} type veth peer name cable1 netns {NAMES[1]}"]
    for number, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True)):
        commands += [f"-n {name} addr add {address}/24 dev cable{number}"]
        commands += [f"-n {name} link set {device} up" for device in (f"cable{number}", "lo")]
    try:
        for command in commands:
            made = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"no network namespaces here: ip {command}: {made.stderr.strip()}")
        yield [["ip", "netns", "exec", name] for name in NAMES]
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def start(prefixes, address: str, port: int, *arguments) -> list[subprocess.Popen]:
    """A process on each machine, as a cluster's scheduler starts them."""
    processes = []
    for rank, prefix in enumerate(prefixes):
        environment = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        if prefix:
            environment["GLOO_SOCKET_IFNAME"] = f"cable{rank}"
        command = [*prefix, sys.executable, str(SCRIPTS / "train.py"), *map(str, arguments)]
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
    weights = load_file(folder / "model.safetensors")
    for name, weight in load_file(folder.with_name("whole") / "model.safetensors").items():
        assert torch.equal(weights[name], weight), name


def last_line(process: subprocess.Popen, within: float) -> str:
    try:
        _, errors = process.communicate(timeout=within)
    finally:
        process.kill()
    assert process.returncode == 2, errors
    return errors.strip().splitlines()[-1]


def test_a_machine_that_is_cut_off_is_named_and_the_run_goes_on(recipe_file, tmp_path, machines):
    arguments = (recipe_file, "--output_dir", tmp_path / "run", "--resume", "auto")
    processes = start(machines, ADDRESSES[0], 29511, *arguments)
    wait_for(tmp_path / "run" / "checkpoint-10", processes)
    subprocess.run(["ip", "-n", NAMES[1], "link", "set", "cable1", "down"], check=True)
    deadline = time.monotonic() + TIMEOUT + 30
    for rank, process in enumerate(processes):
        line = last_line(process, deadline - time.monotonic())
        assert line.startswith("error: "), rank
    subprocess.run(["ip", "-n", NAMES[1], "link", "set", "cable1", "up"], check=True)
    check_goes_on(recipe_file, tmp_path / "run", start(machines, ADDRESSES[0], 29512, *arguments))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_is_lost_ends_the_others_and_the_run_goes_on(recipe_file, tmp_path, number):
    arguments = (recipe_file, "--output_dir", tmp_path / "run", "--resume", "auto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = start([[], []], "127.0.0.1", port, *arguments)
    try:
        wait_for(tmp_path / "run" / "checkpoint-10", processes)
        processes[1].send_signal(number)
        assert last_line(processes[0], TIMEOUT + 30).startswith("error: ")
    finally:
        processes[1].kill()
        processes[1].wait()
    check_goes_on(recipe_file, tmp_path / "run", start([[], []], "127.0.0.1", port, *arguments))
