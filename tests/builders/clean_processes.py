"""A process as somebody has it who never installed this library."""

import subprocess
import sys
import textwrap
from pathlib import Path

OURS = ("reluformers", "reluformers_kernels", "reluformers_native")
EXTRAS = ("triton", "datasets", "evaluate", "peft", "accelerate")
HIDING = """
    import importlib.util, sys

    class Hiding:
        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {hidden}:
                return None
            return self.finder.find_spec(name, path, target)

        def __getattr__(self, name):
            return getattr(self.finder, name)

    sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
    assert importlib.util.find_spec("reluformers") is None
"""


def run_clean(code: str, cache: Path, *arguments: str, hidden: tuple[str, ...] = EXTRAS, **environment: str) -> str:
    """Output of a process that has torch and transformers, but nothing of reluformers or the hidden packages."""
    script = textwrap.dedent(HIDING).format(hidden={*OURS, *hidden}) + textwrap.dedent(code)
    basis = {"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache), "HOME": str(cache), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-I", "-c", script, *arguments],
        capture_output=True,
        text=True,
        env={**basis, **environment},
        cwd=cache,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
