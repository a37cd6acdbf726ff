"""Context parallelism: losses, gradients and outputs of sequences that several processes share."""

from pathlib import Path

import pytest

from builders.commands import launch

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_attention_is_shared(processes, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    launch(str(TESTS / "builders" / "context_parallel.py"), processes)
