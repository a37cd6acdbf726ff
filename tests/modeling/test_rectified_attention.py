"""`rectified_attention` against the naive reference: shapes, strides, masks, dtypes, statistics, dropout, memory."""

import random

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import reference
from reluformers import MultiHeadAttention, rectified_attention
from reluformers.modeling import attention
from reluformers.modeling.kernels import apply_dropout
from reluformers_kernels import ACTIVATIONS, blockwise_attention, computation, fused_attention
from reluformers_kernels.activations import PassOptions

CASES = 60


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that even tiny inputs take many, of every shape."""
    for name, value in {
        "_ELEMENTS": 2000,
        "_ROWS": 7,
        "_CAUSAL_ROWS": 3,
        "_CAUSAL_PARTS": 4,
        "_KEYS": 11,
    }.items():
        monkeypatch.setattr(blockwise_attention, name, value)


def draw(rng: random.Random, dtype=torch.float64) -> tuple[list[torch.Tensor], dict]:
    """Random inputs of random layout, and options."""
    batch, heads, width = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([3, 8])
    query_len, key_len = rng.choice([1, 3, 17, 40]), rng.choice([1, 5, 17, 40])

    def states(length: int, width: int) -> torch.Tensor:
        shape = {
            "heads first": (batch, heads, length, width),
            "length first": (batch, length, heads, width),
            "transposed": (batch, heads, width, length),
            "sliced": (batch, heads, 2 * length, width),
        }
        layout = rng.choice(list(shape))
        made = torch.randn(shape[layout], dtype=torch.float64).to(dtype)
        views = {
            "heads first": made,
            "length first": made.transpose(1, 2),
            "transposed": made.transpose(2, 3),
            "sliced": made[:, :, ::2],
        }
        return views[layout].requires_grad_()

    ragged = torch.arange(key_len) < torch.randint(0, key_len + 1, (batch, 1))
    options = {
        "activation": rng.choice(ACTIVATIONS),
        "scale": rng.choice([None, 0.7, torch.tensor([0.6], dtype=torch.float64).to(dtype).requires_grad_()]),
        "threshold": rng.choice([0.0, 0.2, torch.tensor([0.3], dtype=torch.float64).to(dtype).requires_grad_()]),
        "length_exponent": rng.choice([0.0, 1.0, torch.tensor([0.5], dtype=torch.float64).requires_grad_()]),
        "length_coefficient": rng.choice([1.0, 0.7]),
        "key_padding_mask": rng.choice([None, ragged, ragged.flip(1), torch.rand(batch, key_len) > 0.4]),
        "is_causal": rng.choice([True, False]),
        "causal_offset": rng.choice([None, 0, 2, -3]),
    }
    value_width = rng.choice([width, width + 2])
    return [states(query_len, width), states(key_len, width), states(key_len, value_width)], options


def visible_pairs(query, key, options) -> torch.Tensor:
    visible = torch.ones(query.shape[0], query.shape[2], key.shape[2], dtype=torch.bool)
    if options["key_padding_mask"] is not None:
        visible = visible & options["key_padding_mask"][:, None]
    if options["is_causal"]:
        offset = options["causal_offset"]
        offset = key.shape[2] - query.shape[2] if offset is None else offset
        visible = visible & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(offset)
    return visible


def naive(query, key, value, options):
    scale = options["scale"]
    return reference.attention(
        query,
        key,
        value,
        visible_pairs(query, key, options),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        activation=options["activation"],
        length_coefficient=options["length_coefficient"],
        length_exponent=options["length_exponent"],
        threshold=options["threshold"],
    )


def leaves(inputs, options) -> list[torch.Tensor]:
    return [*inputs, *(v for v in options.values() if isinstance(v, torch.Tensor) and v.requires_grad)]


@pytest.mark.parametrize("seed", range(CASES))
def test_values_and_gradients_are_those_of_the_formula(seed, small_blocks):
    torch.manual_seed(seed)
    inputs, options = draw(random.Random(seed))
    output, statistics = rectified_attention(*inputs, **options, return_stats=True)
    expected, weights = naive(*inputs, options)
    torch.testing.assert_close(output, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(statistics.row_sums, weights.sum(-1), rtol=1e-6, atol=1e-6)
    assert torch.equal(statistics.nonzeros.long(), (weights != 0).sum(-1))
    direction, other = torch.randn_like(output), torch.randn_like(statistics.row_sums)
    total = (output * direction).sum() + (statistics.row_sums * other).sum()
    wanted = (expected * direction).sum() + (weights.sum(-1) * other).sum()
    parts = leaves(inputs, options)
    for part, got, exact in zip(
        parts,
        torch.autograd.grad(total, parts, materialize_grads=True),
        torch.autograd.grad(wanted, parts, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(got, exact, rtol=1e-6, atol=1e-6)
        assert got.dtype == part.dtype


@pytest.mark.parametrize(
    "activation",
    [name for name in ACTIVATIONS if name in ("relu", "relu2", "relu6", "softplus", "sigmoid")],
)
@pytest.mark.parametrize("is_causal", [True, False])
def test_entropy_term_and_its_gradient(activation, is_causal, small_blocks):
    inputs = [torch.randn(2, 3, 19, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    mask = torch.arange(19) < torch.tensor([[19], [11]])
    options = {"activation": activation, "is_causal": is_causal, "key_padding_mask": mask, "length_exponent": 0.5}
    _, statistics = rectified_attention(*inputs, **options, return_stats=True)
    full = {"scale": None, "threshold": 0.0, "length_coefficient": 1.0, "causal_offset": None, **options}
    _, weights = naive(*inputs, full)
    wanted = torch.special.xlogy(weights, weights).sum(-1)
    torch.testing.assert_close(statistics.weighted_logs, wanted, rtol=1e-8, atol=1e-8)
    direction = torch.randn_like(wanted)
    # only positive weights: the derivative of s·log s is unbounded at 0, where relu' is 0
    safe = torch.where(weights > 0, weights, 1.0)
    smooth = (weights * safe.log()).sum(-1)
    got = torch.autograd.grad(statistics.weighted_logs, inputs[:2], direction)
    expected = torch.autograd.grad(smooth, inputs[:2], direction)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
def test_low_precision_is_near_and_keeps_its_dtype(dtype, is_causal, small_blocks):
    inputs = [torch.randn(2, 33, 3, 8).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    mask = torch.arange(33) < torch.tensor([[33], [20]])
    options = {"is_causal": is_causal, "key_padding_mask": mask, "length_exponent": 1.0}
    output, statistics = rectified_attention(*inputs, **options, return_stats=True)
    exact = [states.detach().double().requires_grad_() for states in inputs]
    expected, expected_statistics = rectified_attention(*exact, **options, return_stats=True)
    assert output.dtype == dtype
    assert statistics.row_sums.dtype == torch.float32
    tolerance = 16 * torch.finfo(dtype).eps
    assert (output.double() - expected).norm() < tolerance * expected.norm()
    sums = expected_statistics.row_sums
    assert (statistics.row_sums.double() - sums).norm() < tolerance * sums.norm()
    direction = torch.randn_like(output)
    pairs = zip(
        torch.autograd.grad(output, inputs, direction),
        torch.autograd.grad(expected, exact, direction.double()),
        strict=True,
    )
    for got, wanted in pairs:
        assert got.dtype == dtype
        assert (got.double() - wanted).norm() < 2 * tolerance * wanted.norm()


def test_dropout_is_the_same_in_both_passes_and_keeps_the_mean(small_blocks):
    query, key = (torch.randn(1, 2, 40, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    # values that are unit vectors: the output is the row of dropped weights itself
    value = torch.eye(40, dtype=torch.float64).expand(1, 2, 40, 40).clone().requires_grad_()
    options = {"activation": "softplus", "is_causal": True}
    plain = rectified_attention(query, key, value, **options)
    dropped, statistics = rectified_attention(query, key, value, **options, dropout=0.3, return_stats=True)
    keep = torch.where(plain > 0, dropped / plain, torch.nan)
    kept = keep[~keep.isnan()]
    torch.testing.assert_close(kept[kept > 0], torch.full_like(kept[kept > 0], 1 / 0.7))
    assert (kept == 0).double().mean().item() == pytest.approx(0.3, abs=0.05)
    torch.testing.assert_close(statistics.row_sums, plain.sum(-1))  # before dropout
    explicit = rectified_attention(query, key, value, **options) * keep.nan_to_num().detach()
    direction = torch.randn_like(dropped)
    got = torch.autograd.grad(dropped, [query, key], direction)
    torch.testing.assert_close(got, torch.autograd.grad(explicit, [query, key], direction))
    torch.manual_seed(5)
    first = rectified_attention(query, key, value, dropout=0.5)
    assert not torch.equal(first, rectified_attention(query, key, value, dropout=0.5))
    torch.manual_seed(5)
    assert torch.equal(first, rectified_attention(query, key, value, dropout=0.5))


def test_steps_with_a_cache_are_the_whole():
    query, key, value = (torch.randn(2, 3, 12, 4, dtype=torch.float64) for _ in range(3))
    whole = rectified_attention(query, key, value, is_causal=True, length_exponent=1.0)
    parts = [
        rectified_attention(
            query[:, :, start:stop], key[:, :, :stop], value[:, :, :stop], is_causal=True, length_exponent=1.0
        )
        for start, stop in ((0, 5), (5, 6), (6, 7), (7, 12))
    ]
    torch.testing.assert_close(torch.cat(parts, 2), whole)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.1},
        {"activation": "gelu"},
        {"needed_statistics": "all"},
        {"learned_threshold": torch.tensor(0.1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("causal_offset", [0, None])
@pytest.mark.parametrize("padded", [True, False])
def test_no_tensor_grows_with_the_square_of_the_length(options, causal_offset, padded, monkeypatch):
    monkeypatch.setattr(blockwise_attention, "_ELEMENTS", 2**12)
    monkeypatch.setattr(computation, "native", None)  # whose threads have scratch memory of a fixed size
    largest = {}
    for length in (256, 512, 1024):
        query, key, value, gradient = (torch.randn(1, length, 2, 4).transpose(1, 2) for _ in range(4))
        mask = torch.rand(1, length) > 0.2 if padded else None
        everything = PassOptions(
            scale=0.5, seed=torch.tensor(1), key_padding_mask=mask, causal_offset=causal_offset
        )._replace(**options)
        with LargestTensor() as mode:  # the passes themselves
            blockwise_attention.blockwise_forward(query, key, value, everything)
            sums = torch.ones(1, 2, length) if everything.needed_statistics == "all" else None
            blockwise_attention.blockwise_backward(gradient, sums, sums, query, key, value, everything)
        with mode:  # and what is around them
            inputs = [states.requires_grad_() for states in (query, key, value)]
            rectified_attention(*inputs, key_padding_mask=mask, is_causal=True).sum().backward()
        largest[length] = mode.elements
    assert largest[1024] <= 1024 * 2 * 4 * 2  # inputs of that length, or a block
    assert largest[1024] <= 2 * largest[512] <= 4 * largest[256]


def test_a_matrix_of_all_weights_would_be_noticed():
    with LargestTensor() as mode:
        torch.randn(1, 2, 1024, 4) @ torch.randn(1, 2, 4, 1024)
    assert mode.elements == 2 * 1024**2


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_scalars_may_be_tensors_of_any_shape_with_and_without_gradients(shape, is_trained):
    query, key, value = (torch.randn(2, 3, 9, 4) for _ in range(3))
    numbers = {"scale": 0.4, "threshold": 0.1, "length_exponent": 0.7}
    expected = rectified_attention(query, key, value, **numbers)
    scalars = {name: torch.full(shape, value, requires_grad=is_trained) for name, value in numbers.items()}
    torch.testing.assert_close(rectified_attention(query, key, value, **scalars), expected)
    with torch.no_grad():
        torch.testing.assert_close(rectified_attention(query, key, value, **scalars), expected)


def test_half_precision_holds_what_is_divided():
    query, key, value = (
        torch.full((1, 1, length, 4), number) for length, number in ((2, 4.0), (4096, 3.0), (4096, 1.0))
    )
    states = [tensor.half() for tensor in (query, key, value)]
    for exponent in (1.0, torch.ones(1, requires_grad=True)):
        for queries in (2, 1):
            output = rectified_attention(states[0][:, :, :queries], *states[1:], length_exponent=exponent)
            torch.testing.assert_close(output, torch.full_like(output, 24.0))


@pytest.mark.parametrize("queries", [1, 3])
def test_without_keys_the_output_is_zero(queries):
    query, key, value = (torch.randn(2, 3, length, 4) for length in (queries, 0, 0))
    assert (rectified_attention(query, key, value, length_exponent=1.0) == 0).all()


def test_dropout_does_not_depend_on_strides():
    wide = [torch.randn(2, 9, 3, 4).transpose(1, 2) for _ in range(3)]
    outputs = []
    for states in (wide, [tensor.contiguous() for tensor in wide]):
        torch.manual_seed(1)
        outputs.append(rectified_attention(*states, dropout=0.5))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("is_causal", [True, False])
def test_both_passes_drop_the_same_weights(is_causal, monkeypatch):
    monkeypatch.setattr(blockwise_attention, "_ELEMENTS", 2**12)
    query, key, value, gradient, change = (torch.randn(2, 3, 70, 4, dtype=torch.float64) for _ in range(5))
    value.requires_grad_()
    torch.manual_seed(3)
    output = rectified_attention(query, key, value, dropout=0.4, is_causal=is_causal)
    torch.set_num_threads(torch.get_num_threads() + 1)
    try:
        output.backward(gradient)
    finally:
        torch.set_num_threads(torch.get_num_threads() - 1)
    torch.manual_seed(3)
    changed = rectified_attention(query, key, change, dropout=0.4, is_causal=is_causal)
    # the output is linear in the values: ⟨g, A·v′⟩ = ⟨Aᵀ·g, v′⟩ for the same dropped weights A
    torch.testing.assert_close((value.grad * change).sum(), (gradient * changed).sum())


@pytest.mark.parametrize("preset", ["relu-vit", "softmax"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 9), (2, 3, 1, 9), (2, 1, 9, 1), (1, 3, 9, 9)])
def test_masks_broadcast(preset, shape):
    layer = MultiHeadAttention(12, 3, preset)
    states, mask = torch.randn(2, 9, 12), torch.rand(shape) < 0.7
    expected, _, _ = layer(states, attention_mask=mask.expand(2, 3, 9, 9))
    for backend in ("eager", "fused"):
        output, _, _ = layer(states, attention_mask=mask, attn_implementation=backend)
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(
    ("preset", "dtype", "stays"),
    [
        ("relu-vit", torch.float32, True),
        ("relu-vit", torch.bfloat16, True),
        ("relu-vit", torch.float16, False),  # no processor multiplies it
        ("softmax", torch.float32, False),
        ("softmax", torch.bfloat16, True),
    ],
)
def test_few_keys_stay_eager_on_a_processor_without_compiled_code(preset, dtype, stays, monkeypatch):
    has_bfloat16 = {"avx512_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has_bfloat16)
    monkeypatch.setattr(computation, "native", None)
    for module in (attention, computation):
        monkeypatch.setattr(module, "SHORT_KEYS", 9)
    lengths, eager = [], attention.eager_attention
    monkeypatch.setattr(
        attention, "eager_attention", lambda *a, **kw: lengths.append(a[2].shape[2]) or eager(*a, **kw)
    )
    layer = MultiHeadAttention(12, 3, preset).to(dtype)
    for length in (9, 10):
        layer(torch.randn(2, length, 12, dtype=dtype), attn_implementation="fused")
    assert lengths == ([9] if stays else [])


def test_layout_of_the_output_joins_heads_without_a_copy():
    query, key, value = (torch.randn(2, 3, 9, 4) for _ in range(3))
    output = rectified_attention(query, key, value)
    assert output.transpose(1, 2).is_contiguous()


def test_gradcheck(small_blocks):
    inputs = [torch.randn(1, 2, 6, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def outputs(*states):
        output, statistics = rectified_attention(*states, activation="softplus", is_causal=True, return_stats=True)
        return output, statistics.row_sums, statistics.weighted_logs

    assert torch.autograd.gradcheck(outputs, inputs)


@pytest.mark.parametrize("dynamic", [True, False])
def test_compiles_as_one_graph_without_a_break(dynamic):
    torch.compiler.reset()
    layer = nn.Linear(8, 24)

    def step(states):
        query, key, value = layer(states).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return rectified_attention(query, key, value, is_causal=True, length_exponent=0.5).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (7, 9):
        states = torch.randn(2, length, 8)
        expected, actual = step(states), compiled(states)
        torch.testing.assert_close(actual, expected)
        wanted = torch.autograd.grad(expected, layer.weight)[0]
        torch.testing.assert_close(torch.autograd.grad(actual, layer.weight)[0], wanted)


@pytest.mark.parametrize("power", [1, 2])
def test_gradients_of_gradients_are_refused(power):
    query = torch.randn(1, 2, 9, 4, requires_grad=True)
    loss = rectified_attention(query, query, query).pow(power).sum() + query.pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, query, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(gradient.sum(), query)


def test_gradients_may_be_batched():
    query = torch.randn(1, 2, 9, 4, requires_grad=True)
    output = rectified_attention(query, query, query)
    gradients = torch.randn(3, *output.shape)
    (batched,) = torch.autograd.grad(output, query, gradients, is_grads_batched=True, retain_graph=True)
    for gradient, expected in zip(gradients, batched, strict=True):
        torch.testing.assert_close(torch.autograd.grad(output, query, gradient, retain_graph=True)[0], expected)


def test_modes_see_an_operator():
    query = torch.randn(1, 2, 9, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(rectified_attention(query, query, query), FakeTensor)
    traced = make_fx(lambda query: rectified_attention(query, query, query))(query)
    torch.testing.assert_close(traced(query + 1), rectified_attention(*[query + 1] * 3))


def test_vmap_is_a_loop():
    states = torch.randn(3, 2, 2, 9, 4)
    mapped = torch.vmap(lambda query: rectified_attention(query, query, query, is_causal=True))(states)
    torch.testing.assert_close(
        mapped, torch.stack([rectified_attention(query, query, query, is_causal=True) for query in states])
    )


@pytest.mark.parametrize("name", ["query", "key", "value", "threshold", "length_exponent"])
def test_forward_mode_derivatives_are_refused(name):
    states = {name: torch.randn(1, 2, 9, 4) for name in ("query", "key", "value")}
    states |= {"threshold": torch.tensor(0.1), "length_exponent": torch.tensor(0.5)}
    with forward_ad.dual_level():
        states[name] = forward_ad.make_dual(states[name], torch.ones_like(states[name]))
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            rectified_attention(**states)


def test_autocast_computes_in_its_dtype():
    query, key, value = (torch.randn(2, 3, 9, 4) for _ in range(3))
    expected = rectified_attention(query, key, value)
    with torch.autocast("cpu", torch.bfloat16):
        output = rectified_attention(query, key, value.bfloat16())
        exact = rectified_attention(query.double(), key.double(), value.double())
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(exact.float(), expected)  # autocast leaves float64 alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "softmax"}, r"activation is 'softmax', but must be one of 'relu'"),
        ({"dropout": 1.0}, r"dropout is 1\.0, but must be a number in \[0, 1\)"),
        ({"length_coefficient": 0}, r"length_coefficient is 0, but must be a number above 0"),
        ({"length_coefficient": -1.0}, r"length_coefficient is -1\.0, but must be a number above 0"),
        ({"threshold": torch.zeros(2)}, r"threshold is a tensor \[2\], but must have one element"),
        ({"scale": torch.ones(4)}, r"scale is a tensor \[4\], but must have one element"),
        ({"length_exponent": torch.ones(1, 2)}, r"length_exponent is a tensor \[1, 2\], but must have one element"),
        ({"key": torch.zeros(2, 3, 9, 5)}, r"\[2, 3, 9, 5\].*keys as wide as queries"),
        ({"value": torch.zeros(2, 3, 8, 4)}, r"as many values as keys"),
        ({"query": torch.zeros(2, 2, 9, 4)}, r"same batch and heads"),
        ({"query": torch.zeros(2, 9, 4)}, r"must be \[batch, heads, length, width\]"),
        ({"query": torch.zeros(2, 3, 9, 4, dtype=torch.long)}, r"torch\.int64.*must be floats"),
        ({"key_padding_mask": torch.ones(2, 8, dtype=torch.bool)}, r"\[2, 8\], but must be torch\.bool \[2, 9\]"),
        ({"key_padding_mask": torch.ones(2, 9)}, r"key_padding_mask is torch\.float32"),
    ],
)
def test_bad_input_is_named(change, message):
    states = {name: torch.zeros(2, 3, 9, 4) for name in ("query", "key", "value")}
    with pytest.raises(ValueError, match=message):
        rectified_attention(**{**states, **change})


def test_inputs_on_several_devices_are_refused():
    states = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="key is on meta, but must be on cpu"):
        rectified_attention(states, states.to("meta"), states)
    mask = torch.ones(1, 4, dtype=torch.bool, device="meta")
    with pytest.raises(ValueError, match="key_padding_mask is on meta"):
        rectified_attention(states, states, states, key_padding_mask=mask)


@pytest.mark.parametrize("normalizer", ["none", "sum"])
@pytest.mark.parametrize("heads", [1, 2])
def test_one_query_has_gradients_of_any_power(heads, normalizer):
    query = torch.randn(1, heads, 1, 4, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    options = {"activation": "relu_power", "power": 1.7, "normalizer": normalizer}
    torch.autograd.gradcheck(lambda query: rectified_attention(query, keys, keys, **options), query)


@pytest.mark.parametrize("activation", ["relu", "entmax15", "softplus"])
def test_the_meta_device_has_shapes_alone(activation):
    states = torch.empty(2, 3, 200, 8, device="meta", requires_grad=True)
    output = rectified_attention(states, states[:, :, :, :], states, activation=activation)
    assert (output.shape, output.device.type) == (states.shape, "meta")


def test_torch_func_differentiates_a_module_by_the_reference():
    module = MultiHeadAttention(8, 2, "reluformer").eval()
    states = torch.randn(1, 5, 8)
    parameters = dict(module.named_parameters())

    def loss(parameters, backend):
        return torch.func.functional_call(module, parameters, (states,), {"attn_implementation": backend})[0].sum()

    fused, eager = (torch.func.grad(loss)(parameters, backend) for backend in ("fused", "eager"))
    torch.testing.assert_close(fused, eager)
    with pytest.raises(NotImplementedError, match=r"torch\.func cannot differentiate fused attention"):
        torch.func.grad(lambda states: rectified_attention(states, states, states).sum())(torch.randn(1, 2, 8, 16))


def test_a_mask_of_numbers_is_refused():
    module = MultiHeadAttention(8, 2, "relu").eval()
    for dtype in (torch.int64, torch.float32):
        mask = torch.tensor([[[[1, 1, 0]]]], dtype=dtype)
        for backend in ("fused", "eager"):
            with pytest.raises(ValueError, match="must be bool"):
                module(torch.randn(1, 3, 8), attention_mask=mask, attn_implementation=backend)


def test_a_learned_threshold_costs_no_channel(monkeypatch):
    seen = []
    choose = fused_attention.choose_computation
    record = lambda query, *others, **options: seen.append(query.shape[-1]) or choose(query, *others, **options)  # noqa: E731
    monkeypatch.setattr(fused_attention, "choose_computation", record)
    module = MultiHeadAttention(16, 2, {"activation": "relu", "threshold": 0.1, "learned_threshold": True})
    states = torch.randn(1, 150, 16)
    gradients = []
    for backend in ("fused", "eager"):
        module(states, attn_implementation=backend)[0].square().sum().backward()
        gradients.append(module.threshold.grad.clone())
        module.threshold.grad = None
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert set(seen) == {8}


def test_one_program_serves_all_lengths():
    counter = CompileCounter()
    attend = lambda states: rectified_attention(states, states, states, length_exponent=1.0)  # noqa: E731
    compiled = torch.compile(attend, backend=counter)
    for length in range(5, 14):
        states = torch.randn(1, 2, length, 8)
        wanted = rectified_attention(states, states, states, length_exponent=1.0)
        torch.testing.assert_close(compiled(states), wanted)
    assert counter.frame_count <= 2


def test_dropout_of_a_batched_function():
    draw = torch.func.vmap(lambda states: apply_dropout(states, 0.5), randomness="different")
    assert draw(torch.ones(3, 64)).unique().tolist() == [0.0, 2.0]


def test_compiled_code_of_another_machine_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "foreign.so").write_bytes(b"no library")
    native_code = pytest.importorskip("reluformers_native")
    monkeypatch.setattr(native_code, "_file", lambda name: tmp_path / "foreign.so")
    assert not native_code._is_built("generic")
