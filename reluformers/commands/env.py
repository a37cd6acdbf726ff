"""Print versions, hardware, and by which computation attention runs here and why.

Example:
    reluformers env
"""

import argparse
import os

import torch

from reluformers.evaluation.circumstances import current_circumstances
from reluformers_kernels import computation
from reluformers_kernels.compiled import KERNELS_VARIABLE
from reluformers_kernels.triton_attention import OLDEST_CAPABILITY, triton

LENGTH, WIDTH = 256, 64  # of the attention that is asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: `env` has no options."""


def run(options: argparse.Namespace) -> None:
    """Print."""
    devices = [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or torch.cuda.is_available()]
    lines = {**current_circumstances(devices[-1]).to_dict(), "threads": torch.get_num_threads()}
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16):
            chosen = {name: _choose(name, device, dtype) for name in ("relu", "gelu", "softmax")}
            lines[f"{device.type}, {dtype}"] = ", ".join(f"{name} by {way}" for name, way in chosen.items())
    lines["native"] = _explain_native()
    lines["triton"] = _explain_triton()
    width = max(map(len, lines))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))


def _choose(activation: str, device: torch.device, dtype: torch.dtype) -> str:
    if activation == "softmax":
        return "sdpa"
    states = torch.empty(1, 1, LENGTH, WIDTH, dtype=dtype, device=device)
    return computation.choose_computation(states, states, activation, may_write_out=True) or "eager"


def _explain_native() -> str:
    if computation.native is None:
        return "the package reluformers_native is not installed, or of another version"
    repository = os.environ.get(KERNELS_VARIABLE)
    return computation.native.explain() + (f"; from the kernels of {repository}" if repository else "")


def _explain_triton() -> str:
    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    if triton is None:
        return "the package triton is not installed"
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    return f"GPU of compute capability {capability}, from {'.'.join(map(str, OLDEST_CAPABILITY))} on"
