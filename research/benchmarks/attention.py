"""Time of attention by itself: ours beside PyTorch's softmax, in one interleaved run.

Every candidate gets the same queries, keys and values, views of [batch, length, heads, width] as models have them. In
each round all run once, in turning order; the ratio to `scaled_dot_product_attention` (softmax) is taken inside the
round. With one thread the processor's time is taken, which neighbours on the machine cannot stretch. With several set
OMP_WAIT_POLICY=PASSIVE: where others run too, spinning threads make a call many times as long.

Example:
    python research/benchmarks/attention.py --lengths 197 256 1024 4096 --rounds 9
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from reluformers import rectified_attention
from reluformers.errors import run_main
from reluformers.evaluation.results import markdown_table
from reluformers_kernels import computation

PEER = "sdpa"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# products of batch and length that keep a call at some milliseconds
TOKENS = {"cpu": 4096, "cuda": 16384}
COLUMNS = ("candidate", "ms", "ratio to sdpa", "first quartile", "third quartile")
MASKS = ("full", "causal", "causal+padding", "causal+left padding")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time of attention.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 197, 256, 1024, 4096], help="tokens")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=MASKS)
    parser.add_argument("--passes", nargs="+", default=["forward", "both"], choices=("forward", "both"))
    parser.add_argument("--candidates", nargs="+", help="names to run beside sdpa; all if not given")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--graph", action="store_true", help="replay calls from a CUDA graph: the GPU's time without that of Python"
    )
    return parser.parse_args()


def sdpa(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, causal: bool) -> Tensor:
    """Softmax by PyTorch, which needs a mask where keys are padding."""
    mask = None if real is None else real[:, None, None, :]
    if mask is not None and causal:
        mask = mask & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal and mask is None)


def fused(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, causal: bool, **options) -> Tensor:
    """Ours: relu/L unless the options say otherwise."""
    options = {"length_exponent": 1.0, **options}
    return rectified_attention(query, key, value, key_padding_mask=real, is_causal=causal, **options)


def blocks(*inputs, **options) -> Tensor:
    """Run the attention without compiled code."""
    with mock.patch.object(computation, "native", None):
        return fused(*inputs, **options)


def candidates(options: argparse.Namespace) -> dict[str, Callable[..., Tensor]]:
    """Name → function."""
    functions: dict[str, Callable[..., Tensor]] = {
        PEER: sdpa,
        "fused relu": fused,
        "fused relu, statistics": lambda *a: fused(*a, return_stats=True)[0],
        "fused relu, dropout": partial(fused, dropout=0.1),
        "fused relu, 12 % non-zero": partial(fused, threshold=1.175),  # of scores that are normally distributed
        "blocks relu": blocks,
        "fused relu, sum": partial(fused, normalizer="sum"),
        "fused sparsemax": partial(fused, activation="sparsemax", length_exponent=0.0),
        "fused entmax15": partial(fused, activation="entmax15", length_exponent=0.0),
    }
    if DEVICE == "cuda":  # PyTorch's choice is not always the fastest of its own
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            functions[f"sdpa {backend.name.lower()}"] = partial(_with_backend, backend)
    if options.candidates:
        functions = {name: functions[name] for name in dict.fromkeys([PEER, *options.candidates])}
    return functions


def _with_backend(backend: SDPBackend, *inputs) -> Tensor:
    with sdpa_kernel(backend):
        return sdpa(*inputs)


def draw(length: int, job: str, mask: str, options: argparse.Namespace) -> tuple[list[Tensor], Tensor | None]:
    """Queries, keys and values, and the real keys if some are padding (a half to all of each row are not)."""
    batch = max(1, TOKENS[DEVICE] // length)
    dtype = getattr(torch, options.dtype)
    states = []
    for _ in range(3):
        drawn = torch.randn(batch, length, options.heads, options.width, device=DEVICE, dtype=dtype)
        states.append(drawn.transpose(1, 2).requires_grad_(job == "both"))
    if "padding" not in mask:
        return states, None
    lengths = torch.randint(length // 2, length + 1, (batch, 1), device=DEVICE)
    places = torch.arange(length, device=DEVICE)
    return states, places >= length - lengths if "left" in mask else places < lengths


def with_backward(run: partial, job: str, gradient: Tensor) -> Callable[[], object]:
    """The call, with its backward pass if there is one."""
    if job != "both":
        return run
    states = [given for given in run.args if isinstance(given, Tensor) and given.requires_grad]
    return lambda: torch.autograd.grad(run(), states, gradient)


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    """Replay the call from a CUDA graph, which starts its kernels without Python."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return lambda: (graph.replay(), kept)


def in_turn(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each measure gives, round by round, in an order that turns: none always runs behind the same one."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    names = list(measures)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            values[name].append(measures[name]())
    return values


def ratios_to(peer: str, times: dict[str, list[float]]) -> dict[str, list[float]]:
    """What each candidate took beside the peer in the same round, round by round."""
    return {name: [one / other for one, other in zip(times[name], times[peer], strict=True)] for name in times}


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    clock = time.process_time if DEVICE == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    started = clock()
    call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return clock() - started


def mean_seconds(call: Callable[[], object], repeats: int) -> float:
    """Time of one of some calls."""
    return sum(seconds(call) for _ in range(repeats)) / repeats


def measure(length: int, job: str, mask: str, options: argparse.Namespace) -> list[list[str]]:
    """`COLUMNS` of every candidate; ratios of time are taken round by round."""
    states, real = draw(length, job, mask, options)
    causal = mask != "full"
    gradient = torch.randn_like(states[0])
    # the least that gives real queries their output with softmax: causality hides padding behind the others
    visible = real if "left" in mask or not causal else None
    runs = {}
    for name, function in candidates(options).items():
        given = visible if name.startswith(PEER) else real
        call = with_backward(partial(function, *states, given, causal), job, gradient)
        try:
            for _ in range(2):  # warm up
                seconds(call)
        except RuntimeError as error:
            print(f"{name} cannot do this here: {error}")
            continue
        runs[name] = replayed(call) if options.graph else call
    repeats = max(1, round(0.02 / seconds(runs[PEER])))
    calls = {name: partial(mean_seconds, call, repeats) for name, call in runs.items()}
    times = in_turn(calls, options.rounds)
    lines = []
    for name, ratios in ratios_to(PEER, times).items():
        numbers = [1000 * np.median(times[name]), *np.quantile(ratios, [0.5, 0.25, 0.75])]
        lines.append([name, *(f"{number:.2f}" for number in numbers)])
    return lines


def main() -> None:
    options = parse_arguments()
    if options.graph and DEVICE != "cuda":
        raise ValueError("--graph is for GPUs")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__} on {torch.cuda.get_device_name() if DEVICE == 'cuda' else DEVICE}, "
        f"{options.threads} threads, {options.dtype}, heads of {options.width}"
    )
    print(f"compiled code: {'not installed' if computation.native is None else computation.native.explain()}")
    for job in options.passes:
        for mask in options.masks:
            for length in options.lengths:
                lines = measure(length, job, mask, options)
                print(f"\n{job}, {mask}, length {length}, load {os.getloadavg()[0]:.1f}")
                print(markdown_table(COLUMNS, lines))


if __name__ == "__main__":
    run_main(main)
