"""Host time of a call of the Triton kernels, by starts that do nothing: python research/benchmarks/launches.py.

Needs no GPU: tensors lie on the CPU, and kernels are replaced by a function that takes their arguments.
"""

import time
from types import SimpleNamespace
from unittest import mock

import torch

from reluformers_kernels import fused_attention, triton_attention

ROUNDS, CALLS = 15, 200


def microseconds(call) -> float:
    """Median over the rounds of the mean time of a call."""
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time() - start) / CALLS * 1e6)
    return sorted(times)[ROUNDS // 2]


def always(value):
    """A function that returns this, whatever it is given; a mock would take longer than what is measured."""
    return lambda *_, **__: value


def main() -> None:
    """Print one line for each kind of call."""
    compiled = SimpleNamespace(run=lambda *_: None, function=None, packed_metadata=None)
    kernel = mock.MagicMock()
    kernel.__getitem__.return_value = lambda *_, **__: compiled
    driver = SimpleNamespace(get_current_stream=lambda _: 0)
    kernels = dict.fromkeys(triton_attention.KERNELS, kernel)
    states = [torch.randn(8, 256, 12, 64, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]
    with (
        mock.patch.object(triton_attention, "KERNELS", kernels),
        mock.patch.object(triton_attention, "_shared_memory", always(2**18)),
        mock.patch.object(torch.cuda, "current_device", always(None)),
        mock.patch.object(triton_attention.triton.runtime.driver, "_active", driver),
        mock.patch.object(fused_attention, "choose_computation", always("triton")),
    ):
        for is_trained in (False, True):
            leaves = [part.detach().requires_grad_(is_trained) for part in states]
            for name, options in {
                "full": {"length_exponent": 1.0},
                "causal, /n": {"length_exponent": 1.0, "is_causal": True},
            }.items():
                took = microseconds(lambda: fused_attention.rectified_attention(*leaves, **options))  # noqa: B023
                print(f"{name}, {'with' if is_trained else 'without'} gradients: {took:.0f} µs")
        options = triton_attention.PassOptions()
        took = microseconds(lambda: triton_attention.triton_forward(*states, options))
        print(f"the forward pass alone: {took:.0f} µs")
    empty = microseconds(lambda: torch.empty_like(states[0]))
    print(f"memory for an output: {empty:.0f} µs; torch {torch.__version__}")


if __name__ == "__main__":
    main()
