"""Somebody new with the README: its first command, its first lines of Python, and the demo.

No sentence on this path may be wrong.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders.clean_processes import run_clean

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = "Vienna or Rome: Friday, March 7, 2025, 9:30 PM; 12 kilometers"
# what CLDR says for it
ANSWER = "Wien oder Rom: Freitag, 7. März 2025, 21:30; 12 Kilometer"
# Hides from the library, not from others, what the Python of Windows does not have.
AS_ON_WINDOWS = """
import atexit, builtins, select, selectors, subprocess, sys

find = builtins.__import__

def find_on_windows(name, globals=None, *rest, **more):
    importer = (globals or {}).get("__name__") or ""
    if importer.startswith("reluformers") and name in {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}:
        raise ModuleNotFoundError(f"{importer} imports {name}")
    return find(name, globals, *rest, **more)

builtins.__import__ = find_on_windows
del select.poll
slow = {"datasets", "evaluate", "matplotlib", "pandas", "sacrebleu"}
atexit.register(lambda: print(*slow & {*sys.modules}, end=""))  # what takes seconds to import
"""


def readme_code(kind: str, containing: str) -> str:
    (code,) = (code for code in re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) if containing in code)
    return code


def test_the_first_command_of_the_readme_prints_what_the_readme_says(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AS_ON_WINDOWS)
    text = re.search(r'make translate TEXT="(.*)"', readme_code("bash", "make translate"))[1]
    command = re.search(
        r"^translate:.*\n\t@\$\(VENV\)/bin/python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )[1]
    environment = {**os.environ, "TEXT": text, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(tmp_path)}
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
def test_the_demo_answers(tmp_path):
    # As `make demo` sets it: beside other tests, threads that spin make a step ten times as long.
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), f"--text={TEXT}"]
    process = subprocess.run(command, cwd=tmp_path, env={**os.environ, **threads}, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert f"\n  {ANSWER}\n" in process.stdout
