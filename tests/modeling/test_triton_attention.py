"""The Triton kernels where there is no GPU: in triton's interpreter, compiled for a GPU, and without triton."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from builders.triton_inputs import ACTIVATIONS, TOLERANCES, draw, draw_options, pass_options
from reluformers_kernels import PassOptions, triton_attention, triton_start
from reluformers_kernels.computation import choose_computation
from reluformers_kernels.triton_attention import TILES, triton_backward, triton_forward, triton_thresholds

needs_triton = pytest.mark.skipif(triton_attention.triton is None, reason="needs triton")


@needs_triton
@pytest.mark.parametrize(
    "keyword",
    [
        "dropout_is_the_same or float16_weights or relu2 or sparsemax or rms_norm-torch.float32",
        pytest.param("", marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_kernels_in_the_interpreter(keyword, tmp_path):
    """Nothing but the files of checks, whose tests name what fails."""
    names = ["triton_checks.py", "test_every_computation.py", "test_attention_matrix.py::test_call"]
    names += [f"test_normalization.py::test_{name}" for name in ("values_and_gradients", "lengths_of_extreme_rows")]
    checks = [Path(__file__).with_name(name) for name in names]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--tb=short", "-k", keyword]
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
    triton_attention._is_usable.cache_clear()

    def make(head_dim: int = 64, dtype: torch.dtype = torch.bfloat16, queries: int = 4) -> MagicMock:
        return MagicMock(shape=(2, 3, queries, head_dim), dtype=dtype, device=torch.device("cuda", 0))

    yield make
    triton_attention._is_usable.cache_clear()


def computation_of(query, value=None, activation: str = "relu", **options) -> str:
    value = query if value is None else value
    key = MagicMock(shape=(*value.shape[:3], query.shape[3]), device=query.device)
    return choose_computation(query, key, value, PassOptions(activation=activation, **options))


@needs_triton
def test_what_the_kernels_take(hopper, monkeypatch):
    for activation in ACTIVATIONS:
        assert computation_of(hopper(), activation=activation) == "triton"
    assert computation_of(hopper(), hopper(65)) == "blocks"
    assert computation_of(hopper(257)) == "blocks"
    assert computation_of(hopper(dtype=torch.float64)) == "blocks"
    assert computation_of(hopper(queries=1)) == "single_query"
    for keys, expected in ((4, "triton"), (2049, "single_query")):
        mask = MagicMock(shape=(2, keys), dtype=torch.bool, device=torch.device("cuda", 0))
        assert computation_of(hopper(queries=1), hopper(queries=keys), key_padding_mask=mask) == expected
    assert computation_of(torch.empty(2, 3, 4, 64)) in ("native", "blocks")  # whether compiled code is installed
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    triton_attention._is_usable.cache_clear()
    assert computation_of(hopper()) == "blocks"


@needs_triton
def test_without_a_compiler_blocks_do_it(hopper, monkeypatch, caplog):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    assert [computation_of(hopper()) for _ in range(2)] == ["blocks"] * 2
    assert caplog.text.count("triton compiles nothing here") == 1


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "length", "memory", "index"),
    [
        (torch.bfloat16, 256, 227, 1),
        (torch.bfloat16, 257, 227, 0),
        (torch.bfloat16, 257, 163, 1),
        (torch.float32, 256, 227, 0),
    ],
    ids=str,
)
def test_tiles_follow_memory_and_length(dtype, length, memory, index, monkeypatch):
    monkeypatch.setattr(triton_attention, "_shared_memory", lambda device: memory * 1024)
    size = "float32" if dtype == torch.float32 else 64
    device = torch.device("cuda", 0)
    assert triton_attention.tile_of("forward", dtype, 48, length, device) == TILES["forward"][size][index]


class Started:
    """A compiled kernel that writes down what it is started with."""

    function = packed_metadata = None

    def __init__(self, calls: list):
        self.calls = calls

    def run(self, *arguments) -> None:
        self.calls.append(arguments)


class StartedKernel:
    """A kernel of triton that is compiled by being started."""

    def __init__(self, calls: list):
        self.calls, self.compiled = calls, []

    def __getitem__(self, grid):
        return self.start

    def start(self, *arguments, **options) -> Started:
        self.compiled.append(arguments)
        return Started(self.calls)


@needs_triton
def test_a_kept_kernel_starts_with_what_triton_gives_it(monkeypatch):
    calls = []
    kernel = StartedKernel(calls)
    monkeypatch.setattr(triton_start, "_kept", {})
    monkeypatch.setattr(triton_start, "MOST_KEPT", 2)
    monkeypatch.setitem(triton_attention.KERNELS, "forward", kernel)
    monkeypatch.setattr(triton_attention, "_shared_memory", lambda device: 227 * 1024)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # where tensors of a CPU are
    monkeypatch.setattr(triton_attention.triton.runtime.driver, "_active", MagicMock())
    query, key, value, _ = draw(2, 4, 48, 80, 64, torch.bfloat16)
    key, value = key[:, :2], value[:, :2]
    options = pass_options(activation="relu", row_factors=torch.ones(1, 48), causal_offset=32)
    for _ in range(2):
        triton_forward(query, key, value, options)
    first, second = kernel.compiled[0], calls[0][9:]
    assert len(kernel.compiled) == len(calls) == 1
    for given, kept in zip(first, second, strict=True):
        assert type(given) is Tensor or given == kept
    assert second[0] == query.data_ptr()
    # another dtype of an option, places that are no multiples of 16 bytes, and a third kind beyond the bound
    triton_forward(query, key, value, options._replace(row_factors=None))
    triton_forward(query[:, :, 1:], key, value, options._replace(row_factors=None))
    assert len(kernel.compiled) == 2
    narrow = torch.empty(2, 48, 4, 65, dtype=torch.bfloat16).transpose(1, 2)[..., 1:]
    for _ in range(2):
        triton_forward(narrow, key, value, options)
    assert len(kernel.compiled) == 4
    triton_forward(query, key, value, options._replace(activation="gelu"))
    assert len(triton_start._kept) == 1


def test_without_triton_blocks_do_it(hopper, monkeypatch):
    monkeypatch.setattr(triton_attention, "triton", None)
    assert computation_of(hopper()) == "blocks"


class CompilingKernel:
    """Compiles what it is called with, and runs nothing."""

    def __init__(self, kernel):
        self.kernel, self.compiled = kernel, None

    def __getitem__(self, grid: tuple[int]):
        return self.compile

    def compile(self, *arguments, **options) -> "CompilingKernel":
        self.compiled = self.kernel.warmup(*arguments, **options, grid=(1,))
        return self


@pytest.fixture
def compile_for_hopper(monkeypatch, tmp_path):
    """Function of a kernel's name, its tile, tensors and options that returns the kernel compiled for an H100."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: "H100")
        get_current_stream = staticmethod(lambda device: 0)

    written = dict(triton_attention.KERNELS)
    monkeypatch.setattr(driver, "_active", Driver())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")

    def compile_call(name: str, tile: tuple[int, int, int, int], states: tuple[Tensor, ...], **options):
        kernel = CompilingKernel(written[name])
        monkeypatch.setattr(triton_attention, "tile_of", lambda *_: tile)
        monkeypatch.setattr(triton_start, "_kept", {})
        kernels = {**{other: MagicMock() for other in TILES}, name: kernel}
        monkeypatch.setattr(triton_attention, "KERNELS", kernels)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # where tensors of a CPU are
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


CALLS = [(activation, dtype, False) for activation in ACTIVATIONS for dtype in TOLERANCES]
CALLS += [("relu", torch.bfloat16, True), ("relu2", torch.bfloat16, True)]
CALLS = [pytest.param(*call, marks=() if call[:2] == ("relu", torch.bfloat16) else pytest.mark.slow) for call in CALLS]


@needs_triton
@pytest.mark.parametrize(("activation", "dtype", "has_rows"), CALLS, ids=str)
@pytest.mark.parametrize("name", TILES)
def test_everything_compiles(compile_for_hopper, name, activation, dtype, has_rows):
    """With `has_rows` windows and thresholds of rows too, and heads of queries that share one of keys."""
    query, key, value, direction = draw(2, 1, 48, 80, 40, dtype)
    rows = {}
    if has_rows:
        query, direction = (part.repeat_interleave(3, 1) for part in (query, direction))
        rows = {"first_keys": torch.arange(48)[None] // 3, "row_thresholds": torch.zeros(2, 3, 48)}
    options = {**draw_options(query, key, dropout=0.1, seed=torch.tensor([1])), **rows}
    tile = TILES[name]["float32" if dtype == torch.float32 else 64][-1]
    states = (query, key, value, direction)
    assert compile_for_hopper(name, tile, states, activation=activation, **options).asm["cubin"]
