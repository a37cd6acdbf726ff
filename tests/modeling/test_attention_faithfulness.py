"""MultiHeadAttention of every preset and field against the naive reference: values, gradients, masks, caches."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

import reference
from reluformers.configuration.configuration_attention import ACTIVATIONS, ATTENTION_PRESETS, AttentionConfig
from reluformers.configuration.configuration_attention import SHIFT_INVARIANT_ACTIVATIONS as CANCELS
from reluformers.configuration.configuration_seq2seq import Seq2SeqTransformerConfig
from reluformers.modeling.attention import ATTENTION_BACKENDS, MultiHeadAttention
from reluformers.modeling.masks import AttentionMask
from reluformers.modeling.regularization import regularizer_sums

WIDTH, HEADS, LENGTH, SOURCE_LENGTH = 10, 2, 7, 4  # odd head width, odd length
VARIANTS = {
    **{
        f"activation={name}": {"activation": name, "length_exponent": 0.3, "threshold": 0.2 * (name not in CANCELS)}
        for name in ACTIVATIONS
    },
    "scale": {"preset": "reluformer", "scale": 0.8},
    "learned_scale": {"preset": "reluformer", "learned_scale": True},
    "cosine_fixed": {"score": "cosine", "scale_length": 9},
    "cosine_relu": {"preset": "reluformer", "score": "cosine", "scale": 3.0, "learned_scale": True},
    "layer_norm": {"preset": "relu-vit", "query_key_norm": "layer_norm"},
    "layer_norm_cosine": {"preset": "qknorm", "query_key_norm": "layer_norm"},
    "value_norm": {"preset": "qknorm", "value_norm": "l2"},
    "learned_length_exponent": {"preset": "relu-vit", "learned_length_exponent": True},
    "learned_threshold": {"preset": "reluformer", "threshold": 0.1, "learned_threshold": True},
    "softmax_divided": {"length_coefficient": 0.5, "length_exponent": -0.5},
    "output_norm_eps": {"preset": "rela-g", "output_norm_eps": 1e-2},
    "output_layer_norm": {"preset": "relu", "output_norm": "layer_norm", "output_norm_eps": 1e-5},
    "gated_layer_norm": {"preset": "rela-g", "output_norm": "gated_layer_norm"},
    "sigmoid_gate": {"output_gate": "sigmoid"},
    "scalable_softmax": {"scale": 0.4, "learned_scale": True, "scale_form": "log_length"},
    "relu_of_scaled_scores": {"preset": "reluformer", "scale_form": "log_length"},
    "sigmoid_less_log_n": {"activation": "sigmoid", "threshold": 1.0, "threshold_form": "log_length"},
    "rectified_cosine": {
        **{"score": "cosine", "scale": 1.0, "activation": "relu2", "threshold": 0.4},
        **{"threshold_form": "sqrt_log_length", "learned_threshold": True},
    },
    "softmax1_with_threshold": {"activation": "softmax1", "threshold": 0.7, "threshold_form": "log_length"},
    "gamma": {"preset": "reluformer", "gamma": 3.0},
    "everything": {
        **{"score": "cosine", "scale": 2.0, "learned_scale": True, "query_key_norm": "layer_norm", "value_norm": "l2"},
        **{"activation": "softplus", "length_coefficient": 0.7, "length_exponent": 0.8, "threshold": 0.1},
        **{"learned_length_exponent": True, "learned_threshold": True, "output_norm": "gated_rms_norm"},
    },
}
EXCLUSIVE = {
    "softmax": {"exclusive_output": True},
    "gated": {"preset": "rela-g", "exclusive_output": True, "value_norm": "l2", "output_gate": "sigmoid"},
}
PADDINGS = ("none", "right", "left")
HALVES = (torch.bfloat16, torch.float16)
all_presets = pytest.mark.parametrize("preset", ATTENTION_PRESETS)
all_sites = pytest.mark.parametrize("site", ["self", "causal", "cross"])
all_backends = pytest.mark.parametrize("backend", ATTENTION_BACKENDS)
all_paddings = pytest.mark.parametrize("padding", PADDINGS)


@dataclass
class Case:
    """One input: states, the mask as a tensor and as a description, what it means, and the real queries."""

    hidden: Tensor
    source: Tensor | None
    mask: Tensor | None
    structured: AttentionMask
    visible: Tensor
    queries: Tensor

    def mask_for(self, backend: str) -> Tensor | AttentionMask | None:
        """Backends other than the reference get what models give them."""
        return self.mask if backend == "eager" else self.structured


def draw_case(site: str, padding: str, dtype=torch.float64, query_len: int = LENGTH, key_len: int = SOURCE_LENGTH):
    """Two sequences, of which the second is padded with two places (one, if there is only one)."""
    key_len = key_len if site == "cross" else query_len
    hidden, source = (torch.randn(2, length, WIDTH).to(dtype).requires_grad_() for length in (query_len, key_len))
    real = torch.ones(2, key_len, dtype=torch.bool)
    real[1, {"none": slice(0, 0), "right": slice(-2, None), "left": slice(0, 2)}[padding]] = False
    mask = None if padding == "none" else real[:, None, None, :]
    if site == "causal":
        future = torch.ones(query_len, key_len, dtype=torch.bool).tril()[None, None]
        mask = future if mask is None else future & mask
    whole = torch.ones(2, 1, query_len, key_len, dtype=torch.bool)
    visible = (whole if mask is None else whole & mask)[:, 0]
    queries = torch.ones(2, query_len, dtype=torch.bool) if site == "cross" else real
    structured = AttentionMask(
        query_len,
        key_len,
        torch.device("cpu"),
        None if padding == "none" else real,
        0 if site == "causal" else None,
    )
    return Case(hidden, source if site == "cross" else None, mask, structured, visible, queries)


def build(attention, dtype=torch.float64, **options) -> MultiHeadAttention:
    """A module whose every parameter is away from its start, with scores of a few units."""
    module = MultiHeadAttention(WIDTH, HEADS, attention, layer_idx=0, **options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("proj.weight"):
                parameter.normal_(std=0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module.to(dtype).eval()


def static_cache(places: int) -> StaticCache:
    return StaticCache(Seq2SeqTransformerConfig(vocab_size=9, decoder_layers=1), max_cache_len=places)


def one_shot(module, case, attn_implementation="eager"):
    mask = case.mask_for(attn_implementation)
    return module(case.hidden, case.source, mask, attn_implementation=attn_implementation)[:2]


def cached(module, case, attn_implementation="eager"):
    """Three tokens, then one by one; bidirectional self-attention fills an empty cache at once."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    options = {"past_key_values": cache, "attn_implementation": attn_implementation}
    if case.source is None and case.visible[0, 0].all():
        return module(case.hidden, attention_mask=case.mask_for(attn_implementation), **options)[:2]
    outputs, weights, start = [], [], 0
    for stop in range(3, case.hidden.shape[1] + 1):
        mask = case.mask_for(attn_implementation)
        if isinstance(mask, AttentionMask):
            mask = replace(mask, query_len=stop - start)
            if case.source is None:
                real = None if mask.key_padding_mask is None else mask.key_padding_mask[:, :stop]
                mask = replace(mask, key_len=stop, key_padding_mask=real, causal_offset=start)
        elif case.source is None:
            mask = mask[:, :, start:stop, :stop]
        output, step, _ = module(case.hidden[:, start:stop], case.source, attention_mask=mask, **options)
        outputs.append(output)
        if step is not None:
            weights.append(torch.nn.functional.pad(step, (0, case.visible.shape[-1] - step.shape[-1])))
        start = stop
    return torch.cat(outputs, 1), torch.cat(weights, 2) if weights else None


def parameters_of(module, dtype=None) -> dict[str, Tensor]:
    return {name: parameter.to(dtype or parameter.dtype) for name, parameter in module.named_parameters()}


def naive(module, case):
    return reference.multi_head_attention(
        parameters_of(module), module.attention, HEADS, case.hidden, case.visible, case.source
    )


def gradients(output, module, case, direction):
    inputs = [x for x in (case.hidden, case.source, *module.parameters()) if x is not None]
    return torch.autograd.grad(output, inputs, direction.to(output.dtype), materialize_grads=True)


def check(module, case, run=one_shot, **options):
    (output, weights), (expected, expected_weights) = run(module, case, **options), naive(module, case)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    if weights is not None:
        torch.testing.assert_close(weights, expected_weights, rtol=1e-9, atol=1e-9)
        assert not weights[~case.visible[:, None].expand_as(weights)].any()
    direction = torch.randn_like(output)
    pairs = zip(gradients(output, module, case, direction), gradients(expected, module, case, direction), strict=True)
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("run", [one_shot, cached], ids=lambda run: run.__name__)
@all_backends
@all_paddings
@all_sites
@all_presets
def test_preset_is_the_formula(preset, site, padding, backend, run):
    check(build(preset), draw_case(site, padding), run, attn_implementation=backend)


@all_backends
@all_sites
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_is_the_formula(variant, site, backend):
    check(build(VARIANTS[variant]), draw_case(site, "left"), attn_implementation=backend)


@all_backends
@all_paddings
@pytest.mark.parametrize("site", ["self", "causal"])
@pytest.mark.parametrize("attention", EXCLUSIVE.values(), ids=EXCLUSIVE)
def test_exclusive_output_is_the_formula(attention, site, padding, backend):
    module, case = build(attention), draw_case(site, padding)
    check(module, case, attn_implementation=backend)
    check(module, replace(case, mask=case.structured), cached, attn_implementation=backend)


def test_exclusive_output_has_nothing_along_the_own_value():
    module, case = build({"exclusive_output": True}), draw_case("causal", "none")
    with torch.no_grad():
        module.out_proj.weight.copy_(torch.eye(WIDTH))
        module.out_proj.bias.zero_()
    own = module.v_proj(case.hidden).unflatten(-1, (HEADS, -1))
    output = one_shot(module, case)[0].unflatten(-1, (HEADS, -1))
    assert (output * own).sum(-1).abs().max() < 1e-12
    assert not output[:, 0].abs().max() > 1e-12  # the first token sees itself alone


def test_exclusive_output_reads_a_static_cache():
    module, case = build({"exclusive_output": True}), draw_case("causal", "none")
    expected, cache, outputs = one_shot(module, case)[0], static_cache(9), []
    for step in range(LENGTH):
        mask = AttentionMask(1, 9, torch.device("cpu"), causal_offset=torch.tensor(step))
        outputs.append(module(case.hidden[:, step : step + 1], attention_mask=mask, past_key_values=cache)[0])
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [3, LENGTH])
def test_cross_attention_is_not_exclusive(length):
    module = build({"preset": "rela-g", "exclusive_output": True})
    check(module, draw_case("cross", "left", key_len=length))


def test_exclusive_output_of_queries_without_a_place_is_refused():
    module, hidden = build({"exclusive_output": True}), torch.randn(2, 4, WIDTH).double()
    options = {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}
    module(hidden[:, :3], **options)
    with pytest.raises(ValueError, match=r"exclusive_output.*4 values.*1 queries"):
        module(hidden[:, 3:], attention_mask=torch.ones(2, 1, 1, 4).bool(), **options)


def test_a_mask_of_fewer_dimensions_broadcasts_where_queries_are_split(monkeypatch):
    module, hidden = build("softmax"), torch.randn(2, 7, WIDTH).double()
    monkeypatch.setattr("reluformers.modeling.attention.BLOCK_WEIGHTS", 8)
    for shape in [(7,), (7, 7), (1, 1, 7)]:
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.7
        whole = mask.expand(2, 1, 7, 7)
        found, expected = (module(hidden, attention_mask=given)[0] for given in (mask, whole))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("preset", ["softmax", "rela-g", "rela", "reluformer"])
def test_a_query_of_its_own_token_alone_has_nothing_exclusive(preset, dtype):
    """Not the rounding, which an output norm would make as large as any output."""
    module, case = build({"preset": preset, "exclusive_output": True}, bias=False), draw_case("causal", "none")
    expected, half = one_shot(module, case)[0], module.to(dtype)
    found = half(case.hidden.to(dtype), attention_mask=case.structured, attn_implementation="fused")[0]
    assert not found[:, 0].any()
    assert (found - expected).norm() < 0.03 * expected.norm()


@all_presets
def test_projections_without_bias(preset):
    module = build(preset, bias=False)
    assert not any(name.endswith("bias") for name, _ in module.named_parameters())
    check(module, draw_case("causal", "left"))


@pytest.mark.parametrize("size", [(1, 1), (1, 33), (33, 1), (33, 33)], ids="{0[0]}x{0[1]}".format)
@all_presets
def test_odd_sizes(preset, size):
    case = draw_case("cross", "none", query_len=size[0], key_len=size[1])
    check(build(preset), case)


@pytest.mark.parametrize("heads", [1, 10], ids="{}heads".format)
@all_presets
def test_number_of_heads(preset, heads):
    module, case = MultiHeadAttention(WIDTH, heads, preset).double(), draw_case("causal", "left")
    output, weights, _ = module(case.hidden, attention_mask=case.mask)
    expected = reference.multi_head_attention(
        parameters_of(module), module.attention, heads, case.hidden, case.visible
    )
    torch.testing.assert_close((output, weights), expected, rtol=1e-9, atol=1e-9)


@all_backends
@all_sites
@all_presets
def test_float32_is_near(preset, site, backend):
    module, case = build(preset, torch.float32), draw_case(site, "left", torch.float32)
    exact, exact_case = copy.deepcopy(module).double(), copy.copy(case)
    exact_case.hidden = case.hidden.detach().double().requires_grad_()
    exact_case.source = None if case.source is None else case.source.detach().double().requires_grad_()
    (output, _), (expected, _) = one_shot(module, case, backend), naive(exact, exact_case)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)
    direction = torch.randn_like(output)
    pairs = zip(
        gradients(output, module, case, direction), gradients(expected, exact, exact_case, direction), strict=True
    )
    for gradient, expected_gradient in pairs:
        assert (gradient - expected_gradient).norm() <= 1e-4 * expected_gradient.norm() + 1e-4


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@all_backends
@all_sites
@pytest.mark.parametrize("attention", [*ATTENTION_PRESETS, "sigmoid_less_log_n"])  # a threshold for each row
def test_half_precision_is_finite_and_near(attention, site, backend, dtype):
    module, case = build(VARIANTS.get(attention, attention), dtype), draw_case(site, "left", dtype)
    output, weights = one_shot(module, case, backend)
    assert output.dtype == dtype
    expected, expected_weights = reference.multi_head_attention(
        parameters_of(module, torch.float64),
        module.attention,
        HEADS,
        case.hidden.double(),
        case.visible,
        None if case.source is None else case.source.double(),
    )
    tolerance = 16 * torch.finfo(dtype).eps
    if weights is not None:
        assert weights.dtype == dtype
        # of scores near a threshold hardly anything is left
        assert (weights.double() - expected_weights).norm() < tolerance * max(
            expected_weights.norm(), torch.finfo(dtype).eps
        )
    # a null row turns into a unit vector or back when rounding moves a score over 0, so only typical rows must be near
    error = (output.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.median() < tolerance
    assert all(x.isfinite().all() for x in gradients(output, module, case, torch.randn_like(output)))


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # nn.RMSNorm, which then computes the same unfused
@all_backends
@all_sites
@all_presets
def test_autocast_is_finite_and_near(preset, site, backend):
    module, case = build(preset, torch.float32).train(), draw_case(site, "left", torch.float32)
    expected, _ = one_shot(module, case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _, rows = module(
            case.hidden, case.source, case.mask_for(backend), statistics="all", attn_implementation=backend
        )
    error = (output - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.median() < 0.03
    total = output.float().square().sum() + rows.row_sums.sin().sum() + rows.weighted_logs.sin().sum()
    assert all(x.isfinite().all() for x in gradients(total, module, case, torch.ones(())))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("run", [one_shot, cached], ids=lambda run: run.__name__)
@all_presets
def test_row_that_sees_nothing_is_zero(preset, run, dtype):
    module, case = build(preset, dtype), draw_case("causal", "left", dtype)
    case.mask = case.mask.clone()
    case.mask[0, :, 4] = False  # beside the first two rows of the second sequence
    output, weights = run(module, case)
    blind = ~case.mask.any(-1)[:, 0]
    assert blind.sum() == 3
    assert not weights.transpose(1, 2)[blind].any()
    # what is left of a zero vector is the bias of the output projection
    torch.testing.assert_close(output[blind], module.out_proj.bias.expand(3, WIDTH), rtol=0, atol=0)
    assert output.isfinite().all()
    assert all(x.isfinite().all() for x in gradients(output, module, case, torch.ones_like(output)))


@all_backends
@all_presets
def test_sequence_of_padding_alone_is_finite(preset, backend):
    module, case = build(preset), draw_case("cross", "right")
    nothing = torch.zeros(2, 1, 1, SOURCE_LENGTH, dtype=torch.bool)
    options = {"statistics": "sums", "attn_implementation": backend}
    output, weights, rows = module(case.hidden, case.source, nothing, **options)
    assert weights is None or not weights.any()
    assert regularizer_sums(rows, 0, None, None).tolist() == [0, 0, 28, 28]  # rows: each is a null row
    torch.testing.assert_close(output, module.out_proj.bias.expand_as(output), rtol=0, atol=0)
    assert all(x.isfinite().all() for x in gradients(output, module, case, torch.ones_like(output)))


@all_backends
def test_one_mask_serves_attention_of_several_kinds(backend):
    case = draw_case("causal", "left")
    for preset in ("softmax", "relu-vit", "reluformer"):  # of three divisors
        module = build(preset)
        output, _, _ = module(case.hidden, attention_mask=case.structured, attn_implementation=backend)
        torch.testing.assert_close(output, naive(module, case)[0])


@all_sites
@all_presets
def test_masked_keys_are_not_read(preset, site):
    module, case = build(preset), draw_case(site, "right")
    output, _ = one_shot(module, case)
    states = (case.hidden if case.source is None else case.source).detach().clone()
    states[1, -2:] = 1e3
    if case.source is None:
        case.hidden = states
    else:
        case.source = states
    other, _ = one_shot(module, case)
    kept = slice(None) if case.source is not None else slice(0, -2)  # a changed query has another output
    torch.testing.assert_close(other[:, kept], output[:, kept], rtol=0, atol=0)


@pytest.mark.parametrize("padding", ["left", "right"])
@all_sites
@all_presets
def test_padding_changes_nothing(preset, site, padding):
    # n_i counts the visible keys, not the places: a padded sequence gives what it gives alone
    module, case = build(preset), draw_case(site, padding)
    output, _ = one_shot(module, case)
    keys = case.hidden if case.source is None else case.source
    real = slice(2, None) if padding == "left" else slice(0, keys.shape[1] - 2)
    source = None if case.source is None else case.source[1:, real]
    queries = slice(None) if site == "cross" else real
    mask = case.mask[1:, :, real, real] if site == "causal" else None
    alone, _, _ = module(case.hidden[1:, queries], source, attention_mask=mask)
    torch.testing.assert_close(output[1:, queries], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("places", [LENGTH, LENGTH + 5], ids="{}places".format)
@all_paddings
@all_presets
def test_static_cache_gives_the_same(preset, padding, places):
    module, case = build(preset), draw_case("causal", padding)
    expected, _ = one_shot(module, case)
    cache = EncoderDecoderCache(static_cache(places), static_cache(SOURCE_LENGTH))
    mask = torch.nn.functional.pad(case.mask, (0, places - LENGTH))  # False where no token is yet
    outputs, start = [], 0
    with torch.no_grad():
        for stop in range(3, LENGTH + 1):
            hidden, rows = case.hidden[:, start:stop], mask[:, :, start:stop]
            outputs.append(module(hidden, attention_mask=rows, past_key_values=cache)[0])
            start = stop
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@all_presets
def test_cross_attention_reads_its_cache(preset, kind):
    module, case = build(preset), draw_case("cross", "right")
    build_cache = {"dynamic": lambda _: DynamicCache(), "static": static_cache}[kind]
    cache = EncoderDecoderCache(build_cache(LENGTH), build_cache(SOURCE_LENGTH))
    with torch.no_grad():
        first = module(case.hidden[:, :1], case.source, case.mask, past_key_values=cache)[0]
        assert cache.is_updated[0]
        # the states of the encoder are not projected again, so other ones change nothing
        rest = module(case.hidden[:, 1:], case.source + 1, case.mask, past_key_values=cache)[0]
    assert cache.self_attention_cache.get_seq_length() == 0
    torch.testing.assert_close(torch.cat([first, rest], 1), one_shot(module, case)[0], rtol=1e-9, atol=1e-9)


@all_presets
def test_dropout_leaves_the_returned_weights_alone(preset):
    module, case = build(preset, dropout=0.5), draw_case("causal", "left")
    plain, weights = one_shot(module, case)
    module.train()
    dropped, same_weights = one_shot(module, case)
    torch.testing.assert_close(same_weights, weights)
    assert not torch.allclose(dropped, plain)


@pytest.mark.parametrize("bound", [None, 0.7], ids="bound={}".format)
@all_backends
@all_paddings
@all_sites
@all_presets
def test_statistics_in_training(preset, site, padding, bound, backend):
    module, case = build(preset), draw_case(site, padding)
    mask = case.mask_for(backend)
    options = {"attention_mask": mask, "attn_implementation": backend}
    assert module.train()(case.hidden, case.source, **options)[2] is None
    rows = module.train()(case.hidden, case.source, statistics="sums" if bound is None else "all", **options)[2]
    counts = AttentionMask.of(mask, *case.visible.shape[-2:], case.hidden.device).key_counts
    numbers = ()
    if module.length_exponent is None and module.attention.normalizer != "sum":
        numbers = module.attention.length_coefficient, module.attention.length_exponent
    statistics = regularizer_sums(rows, counts, case.queries, bound, *numbers)
    weights = naive(module, case)[1].detach()
    *terms, nulls, rows = reference.regularization(weights, case.visible, case.queries, bound or 0)
    expected = [*terms, nulls, rows] if bound is not None else [0, 0, nulls, rows]
    assert statistics.detach().tolist() == pytest.approx([float(value) for value in expected], rel=1e-5, abs=1e-5)


@all_presets
def test_backend_of_softmax_alone_is_not_taken_for_another_formula(preset):
    module, case = build(preset), draw_case("causal", "left")
    try:
        output, _ = one_shot(module, case, attn_implementation="sdpa")
    except ValueError as error:
        assert "sdpa" in str(error)  # noqa: PT017 - either outcome is right, a wrong result is not
    else:
        torch.testing.assert_close(output, naive(module, case)[0])


@all_presets
def test_module_is_built_from_any_form_of_its_configuration(preset):
    case = draw_case("self", "none")
    config = AttentionConfig.parse(preset)
    outputs = []
    for form in (preset, config, config.to_dict(), {"preset": preset}):
        torch.manual_seed(1)
        outputs.append(build(form)(case.hidden)[0])
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"num_heads is 3.*10"):
        MultiHeadAttention(10, 3)
