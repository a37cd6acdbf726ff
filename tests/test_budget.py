"""The code keeps to its budget of tokens and lines."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone, which knows its files")
def test_every_room_is_within_its_budget():
    done = subprocess.run([sys.executable, "scripts/budget.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
