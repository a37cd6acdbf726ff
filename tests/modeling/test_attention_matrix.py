"""Every activation and preset by every computation against the naive reference in float64.

A call is one of `rectified_attention` with groups of heads, windows, layouts and lengths of every kind; a module is
`MultiHeadAttention` with the masks, caches and dtypes of models. Cases are not the whole product: every pair of
values of two factors occurs. `test_triton_attention.py` runs the calls in triton's interpreter as well.
"""

import copy
import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

import reference
from builders.attention_calls import FACTORS, check_call, draw_call
from builders.covering import covering
from reluformers.configuration.configuration_attention import ACTIVATIONS, ATTENTION_PRESETS, SIGNED_ACTIVATIONS
from reluformers.configuration.configuration_attention import SHIFT_INVARIANT_ACTIVATIONS as CANCELS
from reluformers.modeling import attention, normalization
from reluformers.modeling import kernels as door
from reluformers.modeling.attention import MultiHeadAttention
from reluformers.modeling.masks import AttentionMask
from reluformers.modeling.regularization import SiteRows, regularizer_sums
from reluformers_kernels import ACTIVATIONS as ELEMENTWISE
from reluformers_kernels import SPARSE_DISTRIBUTIONS, blockwise_attention, computation, fused_attention
from reluformers_kernels.compiled import native

BUILT = native.usable_instruction_sets() if native is not None and native.is_available() else []
COMPUTATIONS = ["triton"] if os.environ.get("TRITON_INTERPRET") == "1" else ["blocks", *BUILT]
WIDE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def compute_by(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one computation take all that it can: blocks so small that tiny inputs take many, an instruction set …"""
    if name == "no library":  # as if it were not installed, and so that a few weights make several blocks
        for module in (attention, door, normalization):
            monkeypatch.setattr(module, "kernels", None)
        monkeypatch.setattr(attention, "BLOCK_WEIGHTS", 2 * HEADS * 3 * LENGTH)
    elif name == "triton":
        monkeypatch.setattr(fused_attention, "choose_computation", lambda *call, **options: "triton")
    elif name == "blocks":
        monkeypatch.setattr(computation, "native", None)
        sizes = {"_ELEMENTS": 2000, "_ROWS": 7, "_CAUSAL_ROWS": 3, "_CAUSAL_PARTS": 4, "_KEYS": 11}
        for size, value in sizes.items():
            monkeypatch.setattr(blockwise_attention, size, value)
    else:
        monkeypatch.setattr(native, "instruction_set", lambda: name)


def draw_cases(name: str) -> list[dict]:
    """Calls for a computation, of the activations, types and sizes in which its code differs."""
    if name == "triton":
        activations = ELEMENTWISE
        dtypes = (torch.float32, torch.float16)
        sizes = {"lengths": ((1, 5), (5, 33), (17, 18)), "widths": ((8, 8), (33, 33)), "threads": (1,)}
        sizes |= {"causal_offset": ("none", 0, 7, -3, -(2**31)), "heads": ((2, 1), (1, 3))}
    elif name == "blocks":
        activations = (*ELEMENTWISE, "relu")
        dtypes = WIDE
        sizes = {}
    else:
        activations = native.ACTIVATIONS
        dtypes = native.DTYPES
        sizes = {
            "lengths": (*FACTORS["lengths"], (97, 97), (260, 300)),
            "widths": (*FACTORS["widths"], (80, 80), (200, 64)),
        }
    few = {"lengths": ((1, 17), (5, 3), (17, 30)), "heads": ((2, 1), (1, 3)), "threads": (1,)}
    few |= {"causal_offset": ("none", 0, 7, -3), "scale": (None, 0.7, -0.3, "learned")}
    elementwise = covering(activation=activations, dtype=dtypes, **FACTORS | sizes)
    # their naive form goes row by row, and they take neither a threshold nor another divisor
    few |= {"widths": sizes.get("widths", FACTORS["widths"]), "threshold": (0.0,), "normalizer": ("none",)}
    if name == "triton":  # whose kernels of relu and relu2 they share behind their thresholds
        few |= {"layout": ("length first",), "widths": ((33, 33),), "length_exponent": (0.5,)}
    return elementwise + covering(activation=SPARSE_DISTRIBUTIONS, dtype=dtypes, **FACTORS | few)


def name_of(case: dict) -> str:
    return "-".join(str(value).removeprefix("torch.").replace(" ", "") for value in case.values())


@pytest.mark.parametrize(
    ("computed_by", "case"),
    [
        pytest.param(name, case, id=f"{name}-{name_of(case)}")
        for name in COMPUTATIONS
        # The other instruction sets are the same code for vectors of other lengths.
        for case in draw_cases(name)[:: 2 if name in BUILT[1:] else 1]
    ],
)
def test_call(computed_by, case, monkeypatch, threads):
    compute_by(computed_by, monkeypatch)
    threads(case["threads"])
    check_call(*draw_call(case), case["has_statistics"])


# odd head width, odd length
WIDTH = 10
HEADS = 2
LENGTH = 7
SOURCE_LENGTH = 4
VARIANTS = {
    **{name: name for name in ATTENTION_PRESETS},
    **{
        f"activation={name}": {"activation": name, "length_exponent": 0.3, "threshold": 0.2 * (name not in CANCELS)}
        for name in ACTIVATIONS
    },
    "scale": {"preset": "reluformer", "scale": 0.8, "learned_scale": True},
    "cosine_fixed": {"score": "cosine", "scale_length": 9},
    "cosine_relu": {"preset": "reluformer", "score": "cosine", "scale": 3.0, "learned_scale": True},
    "layer_norm": {"preset": "relu-vit", "query_key_norm": "layer_norm", "output_gate": "linear"},
    "layer_norm_cosine": {"preset": "qknorm", "query_key_norm": "layer_norm", "value_norm": "l2"},
    "learned_length_exponent": {"preset": "relu-vit", "learned_length_exponent": True},
    "learned_threshold": {"preset": "reluformer", "threshold": 0.1, "learned_threshold": True},
    "threshold_per_head": {"activation": "softmax1", "learned_threshold": True, "threshold_per_head": True},
    "softmax_divided": {"length_coefficient": 0.5, "length_exponent": -0.5},
    "output_norm_eps": {"preset": "rela-g", "output_norm_eps": 1e-2},
    "output_layer_norm": {"preset": "relu", "output_norm": "layer_norm", "output_norm_eps": 1e-5},
    "gated_layer_norm": {"preset": "rela-g", "output_norm": "gated_layer_norm"},
    "sigmoid_gate": {"output_gate": "sigmoid"},
    "scalable_softmax": {"scale": 0.4, "learned_scale": True, "scale_form": "log_length"},
    "relu_of_scaled_scores": {"preset": "reluformer", "scale_form": "log_length"},
    "scaled_cosine": {"score": "cosine", "learned_scale": True, "scale_form": "log_length"},
    "sigmoid_less_log_n": {"activation": "sigmoid", "threshold": 1.0, "threshold_form": "log_length"},
    "rectified_cosine": {
        "score": "cosine",
        "scale": 1.0,
        "activation": "relu2",
        "threshold": 0.4,
        "threshold_form": "sqrt_log_length",
        "learned_threshold": True,
    },
    "softmax1_with_threshold": {"activation": "softmax1", "threshold": 0.7, "threshold_form": "log_length"},
    "gamma": {"preset": "reluformer", "gamma": 3.0},
    "everything": {
        "score": "cosine",
        "scale": 2.0,
        "learned_scale": True,
        "query_key_norm": "layer_norm",
        "value_norm": "l2",
        "activation": "softplus",
        "length_coefficient": 0.7,
        "length_exponent": 0.8,
        "threshold": 0.1,
        "learned_length_exponent": True,
        "learned_threshold": True,
        "output_norm": "gated_rms_norm",
    },
    "exclusive": {"exclusive_output": True},
    "exclusive_gated": {"preset": "rela-g", "exclusive_output": True, "value_norm": "l2", "output_gate": "silu"},
}
MODULES = {
    "attention": tuple(VARIANTS),
    "computed_by": tuple(dict.fromkeys(("eager", *COMPUTATIONS, "blocks", "no library"))),
    "site": ("self", "causal", "window", "cross", "ready mask"),
    "padding": ("none", "right", "left", "all"),
    "dtype": (torch.float64, *WIDE),  # exact values and gradients are those of float64
    "statistics": ("none", "sums", "all"),
    "cached": (False, True),
    "bias": (True, False),
}


@dataclass
class Sequences:
    """Two sequences, of which the second is padded, what their queries see, and the mask that says so."""

    hidden: Tensor
    source: Tensor | None
    visible: Tensor  # bool [batch, query_len, key_len]
    queries: Tensor
    described: dict
    given: Tensor | None

    def mask(self, start: int, stop: int) -> AttentionMask | Tensor | None:
        """Take some queries, whose sequence ends there if its later tokens are not known yet."""
        if self.given is not None:
            return self.given
        fields = dict(self.described)
        key_len = self.visible.shape[-1] if self.source is not None or fields.get("causal_offset") is None else stop
        for name in fields.keys() & {"first_keys"}:
            fields[name] = fields[name][:, start:stop]
        if fields.get("key_padding_mask") is not None:
            fields["key_padding_mask"] = fields["key_padding_mask"][:, :key_len]
        if fields.get("causal_offset") is not None:
            fields["causal_offset"] = start
        return AttentionMask(stop - start, key_len, torch.device("cpu"), **fields)


def draw_sequences(site: str, padding: str, dtype: torch.dtype) -> Sequences:
    key_len = SOURCE_LENGTH if site == "cross" else LENGTH
    hidden, source = (torch.randn(2, length, WIDTH).to(dtype).requires_grad_() for length in (LENGTH, key_len))
    real = torch.ones(2, key_len, dtype=torch.bool)
    real[1, {"none": slice(0, 0), "right": slice(-2, None), "left": slice(0, 2), "all": slice(None)}[padding]] = False
    places = torch.arange(key_len)
    visible = real[:, None].expand(-1, LENGTH, -1)
    described = {"key_padding_mask": None if padding == "none" else real}
    if site in ("causal", "window"):
        described["causal_offset"] = 0
        visible = visible & (places <= places[:, None])
    if site == "window":
        described["first_keys"] = places[None] - 2
        visible = visible & (places > places[:, None] - 3)
    given = None
    if site == "ready mask":
        visible = visible & (torch.rand(2, LENGTH, key_len) < 0.7)
        given = visible[:, None]
    queries = torch.ones(2, LENGTH, dtype=torch.bool) if site == "cross" else real
    return Sequences(hidden, source if site == "cross" else None, visible, queries, described, given)


def build(name: str, dtype: torch.dtype, **options) -> MultiHeadAttention:
    """A module whose every parameter is away from its start, with scores of a few units."""
    module = MultiHeadAttention(WIDTH, HEADS, VARIANTS[name], layer_idx=0, **options)
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            if parameter_name.endswith("proj.weight"):
                parameter.normal_(std=0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module.to(dtype).eval()


def attend(
    module: MultiHeadAttention, case: dict, sequences: Sequences
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Output, weights and the regulariser's sums; with a cache three tokens at first, and then one by one."""
    steps = [(0, LENGTH)]
    options = {"statistics": case["statistics"], "attn_implementation": case["backend"]}
    if case["cached"]:
        options["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        if case["site"] in ("causal", "window", "cross"):
            steps = [(0, 3), *((stop - 1, stop) for stop in range(4, LENGTH + 1))]
    outputs = []
    weights = []
    sums = []
    for start, stop in steps:
        mask = sequences.mask(start, stop)
        output, part, rows = module(sequences.hidden[:, start:stop], sequences.source, mask, **options)
        outputs.append(output)
        if part is not None:
            weights.append(torch.nn.functional.pad(part, (0, sequences.visible.shape[-1] - part.shape[-1])))
        assert (rows.row_sums is None) == (case["statistics"] == "none")
        if rows.row_sums is not None:
            config = module.attention
            numbers = ()
            if module.length_exponent is None and config.normalizer != "sum":
                numbers = config.length_coefficient, config.length_exponent
            key_len = mask.key_len if isinstance(mask, AttentionMask) else sequences.visible.shape[-1]
            counts = AttentionMask.of(mask, stop - start, key_len, output.device).key_counts
            bound = 0.7 if case["statistics"] == "all" else None
            site = SiteRows([rows], counts, sequences.queries[:, start:stop], *numbers)
            sums.append(regularizer_sums([site], bound))
    return torch.cat(outputs, 1), torch.cat(weights, 2) if weights else None, sum(sums) if sums else None


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("case", covering(**MODULES), ids=name_of)
def test_module(case, monkeypatch, threads):
    threads(1)
    if case["computed_by"] != "eager":
        compute_by(case["computed_by"], monkeypatch)
    backend = "eager" if case["computed_by"] == "eager" else "fused"
    config = MultiHeadAttention(WIDTH, HEADS, VARIANTS[case["attention"]]).attention
    is_signed = config.activation in SIGNED_ACTIVATIONS  # whose weights have no logarithms
    statistics = "sums" if is_signed and case["statistics"] == "all" else case["statistics"]
    # which of the values are the queries' own, one query at a time cannot know without causality
    case = {**case, "backend": backend, "statistics": statistics}
    check_module(case, build(case["attention"], case["dtype"], bias=case["bias"]))


def check_module(case: dict, module: MultiHeadAttention) -> None:
    sequences = draw_sequences(case["site"], case["padding"], case["dtype"])
    output, weights, sums = attend(module, case, sequences)
    exact = copy.deepcopy(module).double()
    exact_sequences = copy.copy(sequences)
    exact_sequences.hidden = sequences.hidden.detach().double().requires_grad_()
    if sequences.source is not None:
        exact_sequences.source = sequences.source.detach().double().requires_grad_()
    visible = sequences.visible
    expected, expected_weights = reference.multi_head_attention(
        dict(exact.named_parameters()), exact.attention, HEADS, exact_sequences.hidden, visible, exact_sequences.source
    )
    terms = reference.regularization(expected_weights, visible, sequences.queries) if sums is not None else ()
    assert output.dtype == case["dtype"]
    if weights is not None:
        assert weights.dtype == case["dtype"]
        assert not weights[~visible[:, None].expand_as(weights)].any()
    blind = ~visible.any(-1)
    bias = 0.0 if module.out_proj.bias is None else module.out_proj.bias
    if module.gate_proj is None:  # what is left of a zero vector is the bias of the output projection
        assert (output[blind] == bias).all()
    inputs, exact_inputs = (
        [part for part in (given.hidden, given.source, *of.parameters()) if part is not None]
        for given, of in ((sequences, module), (exact_sequences, exact))
    )
    direction = torch.randn_like(expected)
    total = (output * direction.to(output.dtype)).sum()
    wanted = (expected * direction).sum()
    if sums is not None and case["statistics"] == "all":
        total, wanted = total + sums[:2].sum(), wanted + terms[0] + terms[1]
    gradients = torch.autograd.grad(total, inputs, materialize_grads=True)
    if case["dtype"].itemsize < 4:
        error = (output.double() - expected)[~blind].norm(dim=-1) / expected[~blind].norm(dim=-1).clamp_min(1e-6)
        # rounding moves some scores over 0, so only typical rows must be near
        assert error.median() < 16 * torch.finfo(case["dtype"]).eps
        assert all(gradient.isfinite().all() for gradient in gradients)
        return
    tolerance = 1e-8 if case["dtype"] == torch.float64 else 1e-4
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    if weights is not None:
        torch.testing.assert_close(weights.double(), expected_weights, rtol=tolerance, atol=tolerance)
    if sums is not None:
        terms = torch.stack([torch.as_tensor(part).detach().float() for part in terms])
        if case["statistics"] == "sums":
            terms[:2] = 0
        # Float32 gives 0 for gelu of less than −5.5, so that of tiny sums it cannot say whether a row is null.
        row_sums = expected_weights.sum(-1)
        is_tiny = (row_sums != 0) & (row_sums.abs() < torch.finfo(case["dtype"]).eps) & sequences.queries[:, None]
        assert terms[2] <= sums[2] <= terms[2] + is_tiny.sum()
        terms[2] = sums[2]
        torch.testing.assert_close(sums.float(), terms, rtol=1e-4, atol=1e-4)
    exact_gradients = torch.autograd.grad(wanted, exact_inputs, materialize_grads=True)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        error = (gradient - exact_gradient).norm()
        assert error <= 10 * tolerance * max(1.0, exact_gradient.norm()), (list(gradient.shape), error)
