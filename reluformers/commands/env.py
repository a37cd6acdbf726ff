"""Print versions, hardware, and how attention is computed here.

Example:
    reluformers env
"""

import argparse

import torch

from reluformers.evaluation.circumstances import current_circumstances
from reluformers_kernels import PassOptions, computation
from reluformers_kernels.triton_attention import OLDEST_CAPABILITY, triton

# The size of the attention that `env` names a computation for.
LENGTH = 256
WIDTH = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: `env` has no options."""


def run(options: argparse.Namespace) -> None:
    """Print."""
    devices = [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or torch.cuda.is_available()]
    lines = {**current_circumstances(devices[-1]).to_dict(), "threads": torch.get_num_threads()}
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16):
            states = torch.empty(1, 1, LENGTH, WIDTH, dtype=dtype, device=device)
            ways = []
            for name in ("relu", "gelu"):
                way = computation.choose_computation(*[states] * 3, PassOptions(activation=name), may_write_out=True)
                ways.append(f"{name} by {way or 'eager'}")
            lines[f"{device.type}, {dtype}"] = ", ".join([*ways, "softmax by sdpa"])
    lines["native"] = computation.native.explain() if computation.native else "not installed"
    lines["triton"] = "installed" if triton else "not installed"
    if torch.cuda.is_available():
        lines["compute capability"] = f"{torch.cuda.get_device_capability()}, Triton from {OLDEST_CAPABILITY} on"
    width = max(map(len, lines))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))
