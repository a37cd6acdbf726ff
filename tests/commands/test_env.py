"""What `reluformers env` says of the computations that there are."""

import pytest
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


@pytest.mark.skipif(computation.native is None, reason="needs the package reluformers_native")
def test_env_says_why(capsys, monkeypatch):
    native = computation.native
    native.instruction_set.cache_clear()
    try:
        monkeypatch.setenv(native.VARIABLE, "off")
        if native.usable_instruction_sets():
            assert "RELUFORMERS_NATIVE is off; built are" in lines_of(capsys)["native"]
            native.instruction_set.cache_clear()
            monkeypatch.delenv(native.VARIABLE)
            lines = lines_of(capsys)
            assert lines["cpu, torch.float32"].strip().startswith("relu by native, gelu by blocks")
            assert lines["native"].strip().startswith(f"compiled for {native.usable_instruction_sets()[0]}")
            assert "kernels" not in lines["native"]
            monkeypatch.setenv("RELUFORMERS_KERNELS", "owner/name")
            assert lines_of(capsys)["native"].endswith("; from the kernels of owner/name")
        monkeypatch.setattr(native, "_file", lambda name: native.Path("/none"))
        assert "no C compiler" in native.explain()
    finally:
        native.instruction_set.cache_clear()
