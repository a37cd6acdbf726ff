"""The compiled attention beside the matrix: statistics, dropout, threads, hidden numbers, instruction sets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from builders.attention_calls import check_call, draw_call
from builders.triton_inputs import compare, draw, draw_options, pass_options
from reluformers_kernels.activations import PassOptions
from reluformers_kernels.compiled import native
from reluformers_kernels.fused_attention import fastest_attention
from reluformers_kernels.tensors import PagedTensor

from .test_attention_matrix import draw_cases

if native is None:
    pytest.skip("needs the package reluformers_native", allow_module_level=True)

SOURCES = sorted(Path(native.__file__).parent.glob("*.c"))
BUILT = native.usable_instruction_sets() if native.is_available() else []
PASSES = (native.forward, native.backward)
needs_code = pytest.mark.skipif(not BUILT, reason="needs compiled code for this processor")


@pytest.fixture(params=BUILT)
def instruction_set(request, monkeypatch) -> str:
    """Each that was built and that this processor has."""
    monkeypatch.setattr(native, "instruction_set", lambda: request.param)
    return request.param


@needs_code
@pytest.mark.parametrize("shape", [(0, 1, 4, 4), (1, 0, 4, 4), (1, 1, 0, 4), (1, 1, 4, 0), (1, 1, 4, 4, 256)])
def test_ends_of_the_shapes(shape, instruction_set):
    compare(draw(*shape), activation="identity", scale=0.1, causal_offset=0, needed_statistics="all", passes=PASSES)


@needs_code
@pytest.mark.parametrize("dtype", native.DTYPES)
@pytest.mark.parametrize("threshold", [0.0, 1.5])
def test_outputs_do_not_depend_on_the_number_of_threads(dtype, threshold, instruction_set, threads):
    query, key, value, _ = draw(1, 2, 700, 600, 16, dtype)
    outputs = []
    for count in (1, 5):
        threads(count)
        outputs.append(native.forward(query, key, value, pass_options(threshold, activation="relu", scale=0.25))[0])
    assert torch.equal(*outputs)


def test_what_it_takes(monkeypatch):
    monkeypatch.setattr(native, "is_available", lambda: True)
    query = torch.empty(1, 1, 2, 256)
    assert native.can_take(query, query, "relu")
    assert not native.can_take(query, torch.empty(1, 1, 2, 257), "relu")
    assert not native.can_take(query, query, "softmax")
    assert not native.can_take(query.double(), query, "relu")


def test_the_environment_chooses_among_those_of_these_sources(monkeypatch):
    for wanted, expected in (("off", None), *((name, name) for name in BUILT)):
        monkeypatch.setenv(native.VARIABLE, wanted)
        assert native.instruction_set.__wrapped__() == expected
    monkeypatch.setenv(native.VARIABLE, "sse9")
    with pytest.raises(ValueError, match="sse9"):
        native.instruction_set.__wrapped__()
    monkeypatch.setattr(native, "LAYOUT", native.LAYOUT + 1)
    assert native.usable_instruction_sets() == []


def compile_library(path: Path, compiler: str, *options: str) -> None:
    """Compile all sources into a shared library."""
    common = ["-O1", "-std=gnu11", "-Wno-psabi", "-shared", "-fPIC", "-lm"]
    subprocess.run([compiler, *common, *options, "-o", path, *SOURCES], check=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_vectors_of_avx512_and_tiles_of_amx_on_any_processor(tmp_path, monkeypatch):
    """Made of what instructions there are."""
    library = tmp_path / "wide.so"
    compile_library(library, "cc", "-DVECTOR_BYTES=64", "-DEMULATED_TILES")
    monkeypatch.setattr(native, "_file", lambda name: library)
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    monkeypatch.setattr(native, "instruction_set", lambda: "avx512")
    for case in draw_cases("avx512")[::12]:
        if case["dtype"] == torch.bfloat16 or max(case["lengths"]) < 100:
            check_call(*draw_call(case), case["has_statistics"])
    states = draw(2, 2, 100, 197, 72, torch.bfloat16)
    compare(states, passes=PASSES, **draw_options(*states[:2], activation="relu6"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs GCC, which brings AddressSanitizer")
def test_no_memory_but_its_own_is_touched(tmp_path):
    """Searches, and attention in odd shapes, by code that ends the process at a wrong address or an undefined step."""
    library = tmp_path / "checked.so"
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    compile_library(library, "gcc", "-march=native", *checks)
    here = Path(__file__)
    chosen = [str(here.with_name("test_search.py")), f"{here}::test_ends_of_the_shapes", f"{here}::test_what_it_takes"]
    code = (
        "import pytest, reluformers_native as native; from pathlib import Path\n"
        f"native._file = lambda name: Path({str(library)!r})\n"
        f"raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', *{chosen}]))"
    )
    names = [f"-print-file-name={name}" for name in ("libasan.so", "libstdc++.so.6")]  # torch throws C++ exceptions
    preloaded = " ".join(subprocess.check_output(["gcc", name], text=True).strip() for name in names)
    environment = {**os.environ, "LD_PRELOAD": preloaded, "ASAN_OPTIONS": "detect_leaks=0"}
    root = here.parents[2]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert " passed" in done.stdout


@needs_code
def test_another_default_device_does_not_matter():
    """As within `with torch.device("cuda")`: what is made beside the inputs lies where they do."""
    *states, direction = (torch.randn(1, 2, 5, 8) for _ in range(4))
    options = PassOptions(needed_statistics="all")
    results = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            output = native.forward(*states, options)
            gradients = native.backward(direction, None, None, *states, options)
        results.append([*output, *gradients])
    torch.testing.assert_close(*results)


@needs_code
@pytest.mark.parametrize("dtype", native.DTYPES)
@pytest.mark.parametrize("activation", ["relu", "entmax15"])
@pytest.mark.parametrize("query_len", [1, 5])
def test_keys_in_pages_are_those_that_lie_side_by_side(query_len, activation, dtype, instruction_set):
    heads = 2
    page_len = 4
    width = 24
    lengths = torch.tensor([11, 6])
    cache = torch.randn(7, heads, 2 * page_len, width).to(dtype)
    pages = torch.tensor([[5, 1, 3], [2, 6, 0]], dtype=torch.int32)
    cache[0] = torch.nan  # A page that no query sees may hold anything.
    query = torch.randn(2, 2 * heads, query_len, width).to(dtype)
    last = lengths[:, None] - query_len + torch.arange(query_len)
    options = PassOptions(activation=activation, scale=0.3, first_keys=(last - 6).clamp_min(0), last_keys=last)
    states = [PagedTensor(part, pages) for part in cache.chunk(2, dim=2)]
    gathered = [part.clone().nan_to_num() for part in states]
    with torch.no_grad():
        paged, dense = (
            fastest_attention(query, *keys, options, may_write_out=False)[0] for keys in (states, gathered)
        )
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(paged, dense, rtol=tolerance, atol=tolerance)
    for outside in (7, -1):
        with pytest.raises(ValueError, match="below 7"):
            PagedTensor(cache, torch.tensor([[0, outside]], dtype=torch.int32))
