"""What other systems lack or have otherwise, tried on this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reluformers_kernels import PassOptions, computation

ROOT = Path(__file__).parents[1]

# Hides from the library, not from others, what the Python of Windows does not have.
WITHOUT_POSIX = """
import builtins, select, sys

find = builtins.__import__

def find_on_windows(name, globals=None, *rest, **more):
    importer = (globals or {}).get("__name__") or ""
    if importer.startswith("reluformers") and name in {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}:
        raise ModuleNotFoundError(f"{importer} imports {name}")
    return find(name, globals, *rest, **more)

builtins.__import__ = find_on_windows
from reluformers_cli import main
import selectors, subprocess
del select.poll
main(sys.argv[1:])
assert not {"datasets", "evaluate", "matplotlib", "pandas", "sacrebleu"} & {*sys.modules}  # which take seconds
"""


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, check=False
    )


def test_nothing_is_needed_that_windows_lacks(tmp_path):
    (tmp_path / "in.txt").write_text("Two dogs.\n\n", encoding="utf-8")
    done = run("-c", WITHOUT_POSIX, "translate", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "out.txt").read_bytes() == b"Zwei Hunde.\n\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, "weiß".encode("cp1252")),
        ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, "weiß".encode()),
    ],
    ids=str,
)
def test_a_translation_is_printed_in_every_encoding(environment, expected):
    done = run("-m", "reluformers", "translate", "I don't know where he lives.", **environment)
    assert expected in done.stdout, done


@pytest.mark.parametrize("device", ["mps", "xpu"])
@pytest.mark.parametrize(("query_len", "expected"), [(300, "blocks"), (1, "single_query")])
def test_other_accelerators_get_plain_pytorch(device, query_len, expected):
    """Compiled code reads the memory of CPUs, kernels that of NVIDIA's GPUs; what is neither gets PyTorch."""
    elsewhere = type("Elsewhere", (torch.Tensor,), {"device": torch.device(device)})
    query, key, value = (torch.randn(1, 2, length, 64).as_subclass(elsewhere) for length in (query_len, 300, 300))
    options = PassOptions(activation="relu")
    assert computation.choose_computation(query, key, value, options, may_write_out=True) == expected
