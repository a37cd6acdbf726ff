"""The fused attention as models of transformers need it, against float64: shared heads of keys, windows."""

import pytest
import torch

from builders.attention_calls import check_call, draw_call
from reluformers import rectified_attention
from reluformers_kernels import ACTIVATIONS, SPARSE_DISTRIBUTIONS, blockwise_attention, computation
from reluformers_kernels.compiled import native

BUILT = native.usable_instruction_sets() if native is not None and native.is_available() else []


@pytest.fixture(params=["blocks", *BUILT])
def computed_by(request, monkeypatch, threads) -> str:
    """Blocks in PyTorch, so small that even tiny inputs take many, or compiled code."""
    threads(1)
    if request.param == "blocks":
        monkeypatch.setattr(computation, "native", None)
        sizes = {"_ELEMENTS": 2000, "_ROWS": 7, "_CAUSAL_ROWS": 3, "_CAUSAL_PARTS": 4, "_KEYS": 11}
        for name, value in sizes.items():
            monkeypatch.setattr(blockwise_attention, name, value)
    else:
        monkeypatch.setattr(native, "instruction_set", lambda: request.param)
    return request.param


def activations_of(computed_by: str) -> tuple[str, ...]:
    return ACTIVATIONS if computed_by == "blocks" else native.ACTIVATIONS


@pytest.mark.parametrize("seed", range(24))
def test_values_statistics_and_gradients(seed, computed_by):
    torch.manual_seed(seed)
    dtypes = (torch.float32, torch.bfloat16, *[torch.float64] * (computed_by == "blocks"))
    check_call(*draw_call(seed, dtypes[seed % len(dtypes)], activations_of(computed_by)))


@pytest.mark.parametrize("kind", ["causal window", "window", "chunks", "packed", "beyond", "texts", "short"])
@pytest.mark.parametrize("threshold", [0.0, 1.5])  # few weights that are not 0 are multiplied alone
def test_keys_from_a_first_one_on(kind, threshold, computed_by):
    length = 97 if computed_by == "blocks" else 520  # several tasks of a head, and several blocks of keys
    places, window = torch.arange(length)[None], 40
    pieces = torch.tensor([0, 3, 50, length - 30])
    first_keys = {
        "causal window": places - window + 1,
        "window": places - window,
        "chunks": places // window * window,
        "packed": torch.stack([pieces[torch.searchsorted(pieces, places[0], right=True) - 1], places[0] * 0]),
        "beyond": places + 30,
        "texts": pieces[torch.searchsorted(pieces, places, right=True) - 1],
        "short": None,
    }[kind]
    ends = torch.cat([pieces[1:], torch.tensor([length])]) - 1
    last_keys = {
        "texts": torch.stack([ends[torch.searchsorted(pieces, places[0], right=True) - 1], places[0] + length]),
        "short": places // 3 - 4,
    }.get(kind)
    states = [torch.randn(2, heads, length, 16).requires_grad_() for heads in (2, 1, 1)]
    options = {
        "activation": "relu2",
        "scale": 0.25,
        "threshold": threshold,
        "length_exponent": 0.5,
        "key_padding_mask": torch.arange(length) >= torch.tensor([[0], [17]]) if kind == "packed" else None,
        "is_causal": kind not in ("texts", "short"),
        "causal_offset": window if kind in ("window", "beyond") else 0,
        "first_keys": first_keys,
        "last_keys": last_keys,
    }
    check_call(states, options)


@pytest.mark.parametrize("threads_used", [2, 5])
def test_outputs_with_a_window_do_not_depend_on_threads(threads_used, computed_by, threads):
    states = [torch.randn(1, 2, 520, 8) for _ in range(3)]
    options = {"is_causal": True, "first_keys": torch.arange(520)[None] - 100}
    expected = rectified_attention(*states, **options)
    threads(threads_used)
    torch.testing.assert_close(rectified_attention(*states, **options), expected, rtol=0, atol=1e-6)


def test_a_single_query_sees_its_window(computed_by):
    query, key, value = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 30, 8), torch.randn(2, 2, 30, 8)
    options = {"is_causal": True, "length_exponent": 1.0}
    output = rectified_attention(query, key, value, first_keys=torch.tensor([[20], [3]]), **options)
    for row, first in enumerate((20, 3)):
        part = [states[row : row + 1] for states in (query, key[:, :, first:], value[:, :, first:])]
        torch.testing.assert_close(output[row : row + 1], rectified_attention(*part, **options))


@pytest.mark.parametrize("activation", SPARSE_DISTRIBUTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_sparse_distributions(seed, activation, computed_by):
    torch.manual_seed(seed)
    dtypes = (torch.float32, torch.bfloat16, *[torch.float64] * (computed_by == "blocks"))
    check_call(*draw_call(seed, dtypes[seed % len(dtypes)], (activation,), lengths=(1, 5, 17, 40)))


@pytest.mark.parametrize("seed", range(6))
def test_powers(seed, computed_by):
    torch.manual_seed(seed)
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    check_call(*draw_call(seed, dtypes[seed % 3], ("relu_power",), lengths=(1, 5, 17, 40)))


def test_powers_that_are_none_are_refused():
    states = torch.zeros(2, 3, 5, 8)
    for options in ({"activation": "relu_power", "power": 0.0}, {"activation": "relu", "power": 3.0}):
        with pytest.raises(ValueError, match=f"power is {options['power']}"):
            rectified_attention(states, states, states, **options)


@pytest.mark.parametrize("activation", SPARSE_DISTRIBUTIONS)
@pytest.mark.parametrize("size", [0.0, 1.0, 100.0])
def test_sparse_rows_sum_to_1(activation, size, computed_by):
    """Weights of a row add up, of uniform rows too, and of large scores."""
    length = 97 if computed_by == "blocks" else 520
    query, key, value = (torch.randn(2, 2, length, 16) for _ in range(3))
    ones = torch.ones_like(value)
    options = {"activation": activation, "is_causal": True, "key_padding_mask": torch.rand(2, length) > 0.3}
    output, statistics = rectified_attention(query * size, key, ones, **options, return_stats=True)
    is_seen = options["key_padding_mask"].cumsum(-1)[:, None] > 0
    torch.testing.assert_close(output[..., 0], is_seen.expand(2, 2, -1).float(), atol=1e-4, rtol=0)
    torch.testing.assert_close(statistics.row_sums, output[..., 0])
    if size == 0:
        counts = options["key_padding_mask"].cumsum(-1)[:, None].expand(2, 2, -1)
        assert torch.equal(statistics.nonzeros.long(), counts)


@pytest.mark.parametrize("activation", SPARSE_DISTRIBUTIONS)
def test_sparse_distributions_with_dropout(activation, computed_by):
    """The gradient is that of the dropped weights, which the unit matrix for values shows."""
    query, key = (torch.randn(1, 2, 30, 8).requires_grad_() for _ in range(2))
    value, direction = torch.eye(30).expand(1, 2, 30, 30), torch.randn(1, 2, 30, 30)
    options = {"activation": activation, "is_causal": True, "scale": 0.3}
    plain = rectified_attention(query, key, value, **options)
    dropped = rectified_attention(query, key, value, dropout=0.3, **options)
    kept = torch.where(plain > 0, dropped / plain, 0.0).detach()
    torch.testing.assert_close(kept[kept > 0], torch.full_like(kept[kept > 0], 1 / 0.7))
    found, expected = (torch.autograd.grad(part, (query, key), direction) for part in (dropped, plain * kept))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_sparse_distributions_do_not_know_is_refused(computed_by):
    states = torch.zeros(2, 3, 5, 8, requires_grad=True)
    for options in ({"threshold": 0.1}, {"threshold": torch.zeros(1)}, {"normalizer": "sum"}, {"return_stats": True}):
        with pytest.raises(ValueError, match="sparsemax"):
            rectified_attention(states, states, states, activation="sparsemax", **options)


@pytest.mark.parametrize("activation", ["relu", "relu2", "relu6", "softplus", "sigmoid"])
@pytest.mark.parametrize("queries", [1, 30])
def test_weights_that_sum_to_1(activation, queries, computed_by):
    states = [torch.randn(2, heads, length, 8).requires_grad_() for heads, length in ((6, queries), (2, 30), (2, 30))]
    with torch.no_grad():
        states[0][0, 0, 0] = 0  # with the threshold a row of zeros, if φ knows any
    options = {
        "activation": activation,
        "scale": 0.4,
        "threshold": 0.3,
        "length_exponent": 0.5,
        "key_padding_mask": torch.arange(30) < torch.tensor([[30], [20]]),
        "is_causal": True,
        "causal_offset": None,
        "first_keys": None,
        "normalizer": "sum",
    }
    check_call(states, options)
    output = rectified_attention(*states[:2], torch.ones_like(states[2]), **options)
    assert ((output - 1).abs() < 1e-5)[1].float().mean() > 0.9
    if activation.startswith("relu"):
        assert (output[0, 0, 0] == 0).all()
        assert torch.autograd.grad(output.sum(), states[0])[0].isfinite().all()


def test_sums_of_weights_of_both_signs_are_refused():
    states = torch.zeros(2, 3, 5, 8)
    for options in ({"activation": "gelu", "normalizer": "sum"}, {"normalizer": "mean"}):
        with pytest.raises(ValueError, match=options["normalizer"]):
            rectified_attention(states, states, states, **options)


def test_half_precision_holds_sums():
    states = [torch.full((1, 1, length, 4), number).half() for length, number in ((2, 9.0), (4096, 3.0), (4096, 1.0))]
    output = rectified_attention(*states, activation="relu2", normalizer="sum")
    torch.testing.assert_close(output, torch.ones_like(output))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_repeated_keys_give_the_same(dropout, computed_by):
    """Dropout is read off the output with the unit matrix for values, and its backward pass by linearity."""
    query, key = torch.randn(2, 6, 40, 8), torch.randn(2, 2, 40, 8)
    value = torch.eye(40).expand(2, 2, 40, 40).clone().requires_grad_()
    plain = rectified_attention(query, *(states.repeat_interleave(3, 1) for states in (key, value)), is_causal=True)
    output = rectified_attention(query, key, value, is_causal=True, dropout=dropout)
    if dropout == 0:
        torch.testing.assert_close(output, plain)
        return
    kept = (output / plain)[plain > 1e-3]
    torch.testing.assert_close(kept[kept > 0], torch.full_like(kept[kept > 0], 1 / 0.7))
    assert abs((kept == 0).double().mean() - 0.3) < 0.04
    direction = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, value, direction)
    # output i = Σ_j w_ij v_j and the values are unit vectors: the output is w itself
    torch.testing.assert_close(gradient, (output.mT @ direction).unflatten(1, (2, 3)).sum(2))


@pytest.mark.parametrize("threshold", [0.3, torch.full((1, 6, 1, 1), 0.3), torch.linspace(0, 1, 5).view(1, 1, 5, 1)])
@pytest.mark.parametrize("queries", [1, 5])
def test_thresholds_and_divisors_of_each_query(threshold, queries, computed_by):
    from reluformers_kernels import attention

    query, key, value = torch.randn(2, 6, queries, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    if isinstance(threshold, torch.Tensor):
        threshold = threshold[:, :, :queries]
    options = {
        "activation": "relu",
        "scale": 0.4,
        "threshold": threshold,
        "divisor": torch.rand(2, 1, queries, 1) + 0.5,
        "key_padding_mask": torch.arange(9) < torch.tensor([[9], [6]]),
        "causal_offset": 4,
    }
    repeated = [states.repeat_interleave(2, 1) for states in (key, value)]
    for found, right in zip(
        attention(query, key, value, **options), attention(query, *repeated, **options), strict=True
    ):
        if found is not None:
            torch.testing.assert_close(found, right)


@pytest.mark.parametrize("activation", ["relu", "entmax15"])
def test_compiles_as_one_graph(activation, computed_by):
    torch.compiler.reset()

    def step(query, states):
        options = {"activation": activation, "is_causal": True, "length_exponent": 0.5}
        return rectified_attention(query, states, states, **options).square().sum()

    query, states = torch.randn(2, 6, 9, 8, requires_grad=True), torch.randn(2, 2, 9, 8, requires_grad=True)
    expected = step(query, states)
    actual = torch.compile(step, fullgraph=True, backend="aot_eager")(query, states)
    torch.testing.assert_close(actual, expected)
    for one, other in zip(*(torch.autograd.grad(part, (query, states)) for part in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "given", [torch.zeros(5), torch.zeros(2, 4).int(), torch.zeros(3, 5).int(), torch.zeros(2, 5)]
)
def test_first_keys_that_do_not_fit_are_refused(given):
    states = torch.zeros(2, 3, 5, 8)
    with pytest.raises(ValueError, match=r"first_keys is torch.*must be integers \[2, 5\]"):
        rectified_attention(states, states, states, first_keys=given)


@pytest.mark.parametrize(("heads", "key_heads"), [(6, 4), (2, 4), (6, 0)])
def test_heads_that_do_not_divide_are_refused(heads, key_heads):
    query, key = torch.zeros(2, heads, 5, 8), torch.zeros(2, key_heads, 5, 8)
    with pytest.raises(ValueError, match="divide those of queries"):
        rectified_attention(query, key, key)
