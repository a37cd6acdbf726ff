"""Somebody new from the README to the Hub: the demo, the snippet below it, a push, the printed lines, the endpoint.

No sentence on this path may be wrong. The page itself is looked at in tests/app.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from builders.clean_processes import run_clean
from builders.hub_folders import hub_environment
from builders.hub_server import serve_hub

pytestmark = pytest.mark.xdist_group("new_user")  # one process: the demo trains once

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REPO = "tester/demo"
TEXT = "Vienna or Rome: Friday, March 7, 2025, 9:30 PM; 12 kilometers"
# what CLDR says for it
ANSWER = "Wien oder Rom: Freitag, 7. März 2025, 21:30; 12 Kilometer"


def readme_code(kind: str, containing: str) -> str:
    (code,) = (code for code in re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) if containing in code)
    return code


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder in which `make demo` has run, and what it printed."""
    folder = tmp_path_factory.mktemp("new_user")
    # as `make demo` sets it: beside other tests, threads that spin make a step ten times as long
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), f"--text={TEXT}"]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    (folder / "printed.txt").write_text(process.stdout)
    return folder


def test_the_first_command_of_the_readme_prints_what_the_readme_says():
    text = re.search(r'make translate TEXT="(.*)"', readme_code("bash", "make translate"))[1]
    command = re.search(
        r"^translate:.*\n\t@\$\(VENV\)/bin/python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )[1]
    environment = {**os.environ, "TEXT": text, "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' {command.replace('$$', '$')}"],
        **{"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False},
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == readme_code("text", "Ich weiß")


def test_the_first_lines_of_python_print_what_the_readme_says(tmp_path):
    code = f"import os; os.chdir({str(ROOT)!r})\n" + readme_code("python", "./models/tatoeba-en-de")
    assert run_clean(code, tmp_path) == readme_code("text", "Die Suppe")


@pytest.mark.slow
def test_the_demo_answers(home):
    assert f"\n  {ANSWER}\n" in (home / "printed.txt").read_text()


@pytest.fixture(scope="module")
def pushed(home, tmp_path_factory):
    """The Hub after a push of the demo's model, with the lines that the push printed."""
    cache = tmp_path_factory.mktemp("cache")
    with serve_hub() as hub:
        environment = hub_environment(hub, cache)
        process = subprocess.run(
            [sys.executable, "-m", "reluformers", "push", "./runs/demo", REPO],
            cwd=home,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        yield environment, process.stdout[process.stdout.index("from transformers") :]


@pytest.mark.slow
def test_the_printed_lines_give_a_right_sentence(home, pushed, tmp_path):
    environment, code = pushed
    environment = {**environment, "HF_HOME": str(tmp_path), "HF_TOKEN": ""}
    (line,) = run_clean(textwrap.dedent(code), tmp_path, **environment).splitlines()
    example = json.loads((home / "runs" / "demo" / "results.json").read_text())["examples"][0]
    assert example["source"] in code
    assert example["reference"] in line
