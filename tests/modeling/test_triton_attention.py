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

COMPILES = triton_attention._compiles
needs_triton = pytest.mark.skipif(triton_attention.triton is None, reason="needs triton")


@needs_triton
@pytest.mark.parametrize(
    "keyword",
    [
        "dropout_is_the_same or float16_weights or relu2-float32 or sparsemax-float32 or rms_norm-torch.float32",
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

    def compile_call(name: str, tile: tuple[int, int, int, int], states: tuple[Tensor, ...], **options):
        kernel = MagicMock()
        compiled = []
        compile_kernel = written[name].warmup
        kernel.__getitem__.return_value.side_effect = lambda *arguments, **keywords: compiled.append(
            compile_kernel(*arguments, **keywords, grid=(1,))
        )
        monkeypatch.setattr(triton_attention, "tile_of", lambda *_: tile)
        monkeypatch.setattr(triton_start, "_kept", {})
        kernels = {**{other: MagicMock() for other in TILES}, name: kernel}
        monkeypatch.setattr(triton_attention, "KERNELS", kernels)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # where tensors of a CPU are
        options = pass_options(**options)
        output, *row_grads, _ = triton_forward(*states[:3], options)
        triton_backward(output, *row_grads, *states[:3], options)
        triton_thresholds(*states[:2], options)
        return compiled[-1]

    return compile_call


CALLS = [(activation, dtype, False) for activation in ACTIVATIONS for dtype in TOLERANCES]
CALLS += [("relu", torch.bfloat16, True), ("relu2", torch.bfloat16, True)]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("activation", "dtype", "has_rows"), CALLS)
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


@needs_triton
def test_a_kept_kernel_starts_with_what_triton_gives_it(monkeypatch):
    kernel = MagicMock()
    compile_kernel = kernel.__getitem__.return_value
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
    (first,), (second,) = compile_kernel.call_args_list, compile_kernel.return_value.run.call_args_list
    assert second.args[9] == query.data_ptr()
    for given, kept in zip(first.args, second.args[9:], strict=True):
        assert type(given) is Tensor or given == kept
    # another dtype of an option, places that are no multiples of 16 bytes, and a third kind beyond the bound
    triton_forward(query, key, value, options._replace(row_factors=None))
    triton_forward(query[:, :, 1:], key, value, options._replace(row_factors=None))
    assert compile_kernel.call_count == 2
    narrow = torch.empty(2, 48, 4, 65, dtype=torch.bfloat16).transpose(1, 2)[..., 1:]
    for _ in range(2):
        triton_forward(narrow, key, value, options)
    assert compile_kernel.call_count == 4
    triton_forward(query, key, value, options._replace(activation="gelu"))
    assert len(triton_start._kept) == 1


def test_without_triton_or_a_compiler_blocks_do_it(hopper, monkeypatch):
    monkeypatch.setattr(triton_attention, "_compiles", COMPILES)
    triton_attention._is_usable.cache_clear()
    assert computation_of(hopper()) == "blocks"
    monkeypatch.setattr(triton_attention, "triton", None)
    assert computation_of(hopper()) == "blocks"
