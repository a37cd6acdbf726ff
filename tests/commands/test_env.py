"""What `reluformers env` says of the computations that there are."""

import torch

from builders.commands import run_command
from reluformers_kernels import computation


def lines_of(capsys) -> dict[str, str]:
    run_command("env")
    return dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())


def test_env_says_what_is_used_without_compiled_code(capsys, monkeypatch):
    monkeypatch.setattr(computation, "native", None)
    lines = lines_of(capsys)
    assert lines["torch"].strip() == torch.__version__
    assert lines["cpu, torch.float32"].strip() == "relu by blocks, gelu by blocks, softmax by sdpa"
