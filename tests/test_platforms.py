"""What other systems lack or have otherwise, tried on this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reluformers_kernels import PassOptions, computation

ROOT = Path(__file__).parents[1]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, check=False
    )


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
