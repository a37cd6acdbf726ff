"""The compiled code for ARM under qemu: calls recorded here are computed again there, and give the same."""

import importlib.util
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from builders.attention_calls import check_call, draw_call
from builders.recorded_calls import FUNCTIONS, RecordedCall, Recorder
from builders.triton_inputs import draw, draw_options, pass_options
from reluformers import quantize_int8
from reluformers.configuration.configuration_attention import ATTENTION_PRESETS
from reluformers_kernels.compiled import native

from .test_attention_matrix import draw_cases
from .test_search import by_compiled_code, padded_sources, trained_like

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
HAS_ZIG = importlib.util.find_spec("ziglang") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native is None or not native.is_available(), reason="needs compiled code to record calls of"),
    pytest.mark.skipif(QEMU is None or not HAS_ZIG, reason="needs qemu-aarch64-static, and ziglang in this Python"),
]
DRIVER = Path(__file__).parents[1] / "builders/replay.c"
OPTIONS = ["-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-static", "-lm"]
# as in setup.py
DOTPROD = "-mcpu=generic+dotprod"
BF16 = "-mcpu=generic+dotprod+bf16"


def record_attention(recorder: Recorder) -> None:
    """Both passes with masks, windows, groups of heads, thresholds, statistics and dropout."""
    for number, case in enumerate(draw_cases("generic")[::2]):
        if max(case["lengths"]) < 100:
            recorder.case = f"attention {number} {case}"
            check_call(*draw_call(case), case["has_statistics"])
    for dtype in native.DTYPES:
        for activation in native.ACTIVATIONS:
            recorder.case = f"dropped attention {dtype} {activation}"
            query, key, value, grad_output = draw(2, 2, 110, 150, 24, dtype)
            options = draw_options(query, key, activation=activation, dropout=0.3, seed=torch.tensor(2**40 + 5))
            options = pass_options(**options)
            native.forward(query, key, value, options)
            native.backward(grad_output, None, None, query, key, value, options)
        recorder.case = f"dropout {dtype}"
        native.dropout(torch.randn(3, 1777).to(dtype), 0.3, 12345)


def record_norms(recorder: Recorder) -> None:
    for dtype, width, gains, is_mean in itertools.product(native.DTYPES, (1, 10, 64, 130), range(3), (False, True)):
        recorder.case = f"norm {dtype} {width} {gains} {is_mean}"
        gain, gate = (torch.randn(width) if gains > number else None for number in range(2))
        states, direction = torch.randn(2, 5, width).to(dtype)
        native.norm_forward(states, gain, gate, 1e-6, is_mean)
        native.norm_backward(direction, states, gain, gate, 1e-6, is_mean)


def record_searches(recorder: Recorder) -> None:
    """Every preset in float32, bfloat16 and int8, greedily and with beams."""
    for number, preset in enumerate(ATTENTION_PRESETS):
        batch = padded_sources(number)
        for precision in ("float32", "bfloat16", "int8"):
            model = trained_like(preset)
            model = quantize_int8(model) if precision == "int8" else model.to(getattr(torch, precision))
            for beams in (1, 3):
                recorder.case = f"search {preset} {precision} {beams}"
                by_compiled_code(model, batch, num_beams=beams, max_new_tokens=8)


@pytest.fixture(scope="module")
def calls() -> list[RecordedCall]:
    """What the code without any processor's own instructions computes here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "instruction_set", lambda: "generic")
        torch.manual_seed(0)
        recorder = Recorder(patch)
        for record in (record_attention, record_norms, record_searches):
            record(recorder)
    assert {call.function for call in recorder.calls} == set(FUNCTIONS)
    return recorder.calls


def replay(calls: list[RecordedCall], folder: Path, processor: str, *options: str) -> list[tuple]:
    """Differences, their dtypes and cases, of code that is compiled with these options."""
    program = folder / "replay"
    sources = [DRIVER, *Path(native.__file__).parent.glob("*.c")]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
    subprocess.run([*compiler, *OPTIONS, *options, "-o", program, *sources], check=True)
    given = b"".join(call.packed() for call in calls)
    done = subprocess.run([QEMU, "-cpu", processor, program], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout) == sum(len(call.before) for call in calls)
    differences = []
    start = 0
    for call in calls:
        memory = bytearray(done.stdout[start : start + len(call.before)])
        start += len(call.before)
        for dtype, difference in call.differences(memory).items():
            differences.append((difference, dtype, f"{call.function}: {call.case}"))
    return differences


@pytest.mark.parametrize(("processor", "options"), [("cortex-a57", []), ("neoverse-n1", [DOTPROD])])
def test_sums_in_the_same_order_give_the_same_bits(calls, tmp_path, processor, options):
    """Without fused products. Scores of a search are the exception, as they need the C library's exp and log."""
    for difference, dtype, case in replay(calls, tmp_path, processor, "-O3", "-ffp-contract=off", *options):
        assert case.startswith("translate")
        assert dtype == torch.float32
        assert difference <= 1e-6, case


@pytest.mark.parametrize(
    ("processor", "options"),
    [("cortex-a57", []), ("neoverse-n1", [DOTPROD]), ("max", [BF16])],
    ids=["generic", "dotprod", "bf16"],
)
def test_each_instruction_set(calls, tmp_path, processor, options):
    """As it is built. Int8 is left out: an activation that is rounded the other way may change the tokens.

    The last one rounds attention's weights to bfloat16, whose numbers are up to 2⁻⁷ apart.
    """
    some = [call for call in calls if "int8" not in call.case]
    for difference, dtype, case in replay(some, tmp_path, processor, "-O3", *options):
        assert difference <= {torch.float32: 1e-5, torch.bfloat16: 1e-2}.get(dtype, 0.0), case


def test_no_step_is_undefined(calls, tmp_path):
    """Among them: reading numbers where they may not lie. A fault ends the process."""
    replay(calls, tmp_path, "max", "-O0", BF16, "-fsanitize=undefined", "-fsanitize-trap=undefined")
