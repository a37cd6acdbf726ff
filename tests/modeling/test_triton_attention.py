"""The Triton kernels where there is no GPU: in triton's interpreter, compiled for a GPU, and without triton."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from builders.triton_inputs import ACTIVATIONS, TOLERANCES, draw, draw_options, pass_options
from reluformers_kernels import triton_attention
from reluformers_kernels.computation import choose_computation
from reluformers_kernels.triton_attention import TILES, triton_backward, triton_forward, triton_thresholds

needs_triton = pytest.mark.skipif(triton_attention.triton is None, reason="needs triton")


@needs_triton
def test_kernels_in_the_interpreter(tmp_path):
    """Nothing but the files of checks, whose tests name what fails."""
    checks = [
        Path(__file__).with_name(name)
        for name in ("triton_checks.py", "triton_norm_checks.py", "test_attention_matrix.py")
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--tb=short", "-k", "not test_module"]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *checks, *options],
        capture_output=True,
        text=True,
        env={**environment, "TRITON_INTERPRET": "1"},
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-2000:]
    assert " skipped" not in process.stdout


@pytest.fixture
def hopper(monkeypatch):
    """Tensors that say that they are on an H100."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(triton_attention, "_compiles", lambda device: True)

    def make(head_dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> MagicMock:
        return MagicMock(shape=(2, 3, 4, head_dim), dtype=dtype, device=torch.device("cuda", 0))

    return make


def computation_of(query, value=None, activation: str = "relu") -> str:
    return choose_computation(query, query if value is None else value, activation)


@needs_triton
def test_what_the_kernels_take(hopper, monkeypatch):
    for activation in ACTIVATIONS:
        assert computation_of(hopper(), activation=activation) == "triton"
    assert computation_of(hopper(), hopper(65)) == "blocks"
    assert computation_of(hopper(257)) == "blocks"
    assert computation_of(hopper(dtype=torch.float64)) == "blocks"
    assert computation_of(torch.empty(2, 3, 4, 64)) in ("native", "blocks")  # whether compiled code is installed
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert computation_of(hopper()) == "blocks"


@needs_triton
def test_without_a_compiler_blocks_do_it(hopper, monkeypatch, caplog):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    triton_attention._compiles.cache_clear()
    assert [computation_of(hopper()) for _ in range(2)] == ["blocks"] * 2
    triton_attention._compiles.cache_clear()
    assert caplog.text.count("triton compiles nothing here") == 1


@needs_triton
def test_where_tiles_are_timed(monkeypatch):
    def tiles(dtype: torch.dtype, query_len: int, key_len: int) -> int:
        query, key, *_ = draw(1, 1, query_len, key_len, 64, dtype)
        case = triton_attention.TuningCase.of("forward", pass_options(), query, key, (None,) * 3, False)
        return len(triton_attention.tuned_kernel(case).configs)

    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    assert tiles(torch.bfloat16, 256, 256) == 1
    assert tiles(torch.bfloat16, 256, 257) == tiles(torch.bfloat16, 257, 1) == len(TILES["forward"][64])
    assert tiles(torch.float32, 256, 256) == len(TILES["forward"]["float32"])
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert tiles(torch.bfloat16, 300, 300) == tiles(torch.float32, 300, 300) == 1


def test_without_triton_blocks_do_it(hopper, monkeypatch):
    monkeypatch.setattr(triton_attention, "triton", None)
    assert computation_of(hopper()) == "blocks"


class CompilingKernel:
    """Compiles what it is called with, and runs nothing."""

    best_config = None

    def __init__(self, name: str, tile: tuple[int, int, int, int]):
        self.kernel = triton_attention.KERNELS[name]
        self.tile = dict(zip(("QUERIES", "KEYS", "num_warps", "num_stages"), tile, strict=True))

    def __getitem__(self, grid: Callable):
        return self.compile

    def compile(self, *args, **constants) -> None:
        self.compiled = self.kernel.warmup(*args, **constants, **self.tile, grid=(1,))


@pytest.fixture
def compile_for_hopper(monkeypatch, tmp_path):
    """Function of a kernel's name, its tile, tensors and options that returns the kernel compiled for an H100."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: "H100")
        get_current_stream = staticmethod(lambda device: 0)

    monkeypatch.setattr(driver, "_active", Driver())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")

    def compile_call(name: str, tile: tuple[int, int, int, int], states: tuple[Tensor, ...], **options):
        kernel = CompilingKernel(name, tile)
        monkeypatch.setattr(
            triton_attention, "tuned_kernel", lambda case: kernel if case.name == name else MagicMock(best_config=None)
        )
        options = pass_options(**options)
        output, *row_grads, _ = triton_forward(*states[:3], options)
        triton_backward(output, *row_grads, *states[:3], options)
        triton_thresholds(*states[:2], options)
        return kernel.compiled

    return compile_call


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("size", TILES["forward"])
@pytest.mark.parametrize("name", TILES)
def test_tiles_fit_into_a_hopper(compile_for_hopper, capfd, name, size):
    dtype, head_dim = (torch.float32, 128) if size == "float32" else (torch.bfloat16, size)
    states = draw(1, 2, 48, 80, head_dim, dtype)
    kernels = [
        compile_for_hopper(name, tile, states, activation="relu", scale=0.1, causal_offset=1)
        for tile in TILES[name][size]
    ]
    assert max(kernel.metadata.shared for kernel in kernels) <= 227 * 1024
    assert kernels[-1].metadata.shared <= 99 * 1024
    assert "serialized" not in "".join(capfd.readouterr())  # what the assembler says of products that wait


CALLS = [
    pytest.param(activation, dtype, marks=() if (activation, dtype) == ("relu", torch.bfloat16) else pytest.mark.slow)
    for activation in ACTIVATIONS
    for dtype in TOLERANCES
]


@needs_triton
@pytest.mark.parametrize(("activation", "dtype"), CALLS, ids=str)
@pytest.mark.parametrize("name", TILES)
def test_everything_compiles(compile_for_hopper, name, activation, dtype):
    query, key, *others = draw(2, 1, 48, 80, 40, dtype)
    options = draw_options(query, key, dropout=0.1, seed=torch.tensor([1]))
    tile = TILES[name]["float32" if dtype == torch.float32 else 64][-1]
    assert compile_for_hopper(name, tile, (query, key, *others), activation=activation, **options).asm["cubin"]


@needs_triton
@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("name", TILES)
def test_windows_and_thresholds_of_rows_compile(compile_for_hopper, name, activation):
    query, key, *others = draw(2, 1, 48, 80, 64, torch.bfloat16)
    rows = {"first_keys": torch.arange(48)[None] // 3, "row_thresholds": torch.zeros(2, 1, 48)}
    options = {**draw_options(query, key, dropout=0.1, seed=torch.tensor([1])), **rows, "rows_per_position": 3}
    states = (query, key, *others)
    assert compile_for_hopper(name, TILES[name][64][-1], states, activation=activation, **options).asm["cubin"]
