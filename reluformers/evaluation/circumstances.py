"""Where and with what something was measured."""

import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers


@dataclass
class Circumstances:
    """Where and with what something was measured.

    Args:
        device: name of the GPU, or "cpu"; of several processes "2 × cpu".
        processor: name of the machine's processor.
        seed: of the training, where it is known.
        torch, transformers, reluformers: versions.
        commit: of this library's repository, with "+" where files were changed; None where it is no checkout.
    """

    device: str | None = None
    processor: str | None = None
    seed: int | None = None
    torch: str | None = None
    transformers: str | None = None
    reluformers: str | None = None
    commit: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """What is known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def current_circumstances(device: torch.device, *, processes: int = 1, seed: int | None = None) -> Circumstances:
    """Record device, versions and commit of this process, one of `processes` that each have such a device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Circumstances(
        device=name if processes == 1 else f"{processes} × {name}",
        processor=_processor_name(),
        seed=seed,
        torch=torch.__version__,
        transformers=transformers.__version__,
        reluformers=version("reluformers"),
        commit=_commit(),
    )


def _processor_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _commit() -> str | None:
    """Commit of the checkout that this file lies in, "+" behind it where files differ."""
    folder = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    if not (folder / ".git").exists():  # A repository around an installed library is not its own.
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
