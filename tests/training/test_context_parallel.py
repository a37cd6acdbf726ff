"""Context parallelism: losses, gradients and outputs of sequences that several processes share."""

from pathlib import Path

import pytest

from builders.commands import launch

TESTS = Path(__file__).parents[1]
SOME = ("relu_attention", "entmax15_attention", "exchanged-0", "translation-reluformer", "windows", "torch", "encoder")


def compare(processes: int, monkeypatch, *cases: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    launch(str(TESTS / "builders" / "context_parallel.py"), processes, *cases)


@pytest.mark.slow
def test_two_processes_compute_what_one_does(monkeypatch):
    compare(2, monkeypatch, *SOME, "refused")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_attention_is_shared(processes, monkeypatch):
    compare(processes, monkeypatch)
