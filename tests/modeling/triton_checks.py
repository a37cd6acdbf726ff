"""The Triton kernels against float64 in triton's interpreter.

`test_triton_attention.py` starts this file in a process of its own, as the interpreter must be chosen before triton is
imported (TRITON_INTERPRET=1). It cannot compute in bfloat16: that, real tiles and long sequences are left to
`test_triton_on_gpu.py`.
"""

import math

import pytest
import torch
from torch import Tensor

import reference
from builders.attention_calls import check_call, draw_call
from builders.triton_inputs import (
    ACTIVATIONS,
    SHARE,
    assert_near,
    compare,
    dense_attention,
    draw,
    draw_options,
    pass_options,
    visible_keys,
)
from reluformers import rectified_attention
from reluformers_kernels import SPARSE_DISTRIBUTIONS, triton_attention
from reluformers_kernels import fused_attention as fused
from reluformers_kernels.activations import PassOptions
from reluformers_kernels.triton_attention import triton_backward, triton_forward


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_everything_at_once(activation):
    query, key, *others = draw()
    compare((query, key, *others), activation=activation, **draw_options(query, key))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_float16(activation):
    query, key, *others = draw(dtype=torch.float16)
    compare((query, key, *others), activation=activation, **draw_options(query, key))


def test_float16_weights_are_divided_before_they_are_rounded():
    query, *others = draw(dtype=torch.float16)
    options = {"activation": "relu2", "scale": 100.0, "row_factors": torch.full((1, 20), 2.0**-12)}
    assert (100.0 * query.double() @ others[0].double().mT).square().max() > 2.0**17
    compare((query, *others), **options)


def test_row_sums_alone():
    states = draw()
    options = {**draw_options(*states[:2]), "activation": "gelu"}
    whole = triton_forward(*states[:3], pass_options(**options))
    sums = triton_forward(*states[:3], pass_options(**{**options, "needed_statistics": "sums"}))
    assert torch.equal(sums[0], whole[0])
    assert torch.equal(sums[1], whole[1])
    assert sums[2:] == (None, None)


@pytest.mark.parametrize("lengths", [(32, 48), (1, 1), (33, 5)], ids=str)
def test_nothing_but_the_products(lengths):
    states = draw(1, 1, *lengths)
    compare(states, activation="sigmoid", scale=0.3, threshold=torch.tensor(0.2))
    compare(states, activation="relu", scale=0.3, row_factors=torch.rand(1, lengths[0]))


def test_relu_of_a_negative_scale():
    compare(draw(1), activation="relu", scale=-0.3)


@pytest.mark.parametrize(
    ("query_len", "key_len", "offset"),
    [
        (48, 48, 0),
        (40, 40, -7),
        (20, 50, 30),
        (20, 50, -30),
        (50, 20, 5),
        (33, 17, 100),
        (32, 64, 32),
        (16, 48, 31),
        (20, 30, -(2**31)),
    ],
)
def test_causal_offsets(query_len, key_len, offset):
    states = draw(1, 1, query_len, key_len)
    compare(states, activation="sigmoid", scale=0.3, causal_offset=offset)


def test_null_rows_are_zero():
    query, key, value, grad_output = draw(2, 1, 20, 20)
    key_padding_mask = torch.zeros(2, 20, dtype=torch.bool)
    key_padding_mask[1, 4:] = True
    options = {
        "activation": "sigmoid",
        "scale": 1.0,
        "key_padding_mask": key_padding_mask,
        "causal_offset": 0,
        "needed_statistics": "all",
    }
    output, row_sums, weighted_logs, nonzeros = compare((query, key, value, grad_output), **options)
    for part in (output, row_sums, weighted_logs, nonzeros):
        assert (part[0] == 0).all()
        assert (part[1, :, :4] == 0).all()
    assert nonzeros[1, 0].tolist() == [max(i - 3, 0) for i in range(20)]


def test_hidden_keys_are_never_read():
    query, key, value, grad_output = draw(2, 1, 5, 40)
    options = draw_options(query, key, activation="softplus")
    hidden = ~options["key_padding_mask"][:, None, :, None]
    expected = compare((query, key, value, grad_output), **options)
    key, value = key.masked_fill(hidden, math.nan), value.masked_fill(hidden, math.inf)
    for part, right in zip(triton_forward(query, key, value, pass_options(**options)), expected, strict=True):
        assert torch.equal(part, right)
    gradients = triton_backward(grad_output, None, None, query, key, value, pass_options(**options))
    assert all(part.isfinite().all() for part in gradients)


def test_numbers_that_are_none_stay():
    query, key, value, _ = draw(1, 1, 4, 4)
    query[0, 0, 2, 0] = math.nan
    for activation in ACTIVATIONS:
        output = triton_forward(query, key, value, pass_options(activation=activation, scale=1.0))[0]
        assert output.isnan().all(-1).squeeze().tolist() == [False, False, True, False], activation


@pytest.mark.parametrize("head_dim", [1, 16, 33, 80])
def test_head_sizes(head_dim):
    compare(draw(1, 2, 17, 18, head_dim), activation="relu", scale=0.3, causal_offset=1)


def test_strides():
    query, key, value, grad_output = draw(2, 2, 5, 6, 12)
    dense = [part.contiguous() for part in (query, key, value)]
    options = {"activation": "gelu", "scale": 0.4}
    expected = triton_forward(*dense, pass_options(**options))[0]
    packed = torch.cat(dense[:1] * 3, -1).split(12, -1)[1]  # heads of a joined projection
    sparse = torch.stack([dense[1], dense[1]], -1)[..., 0]  # last dimension with stride 2
    turned = dense[2].permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert torch.equal(triton_forward(packed, sparse, turned, pass_options(**options))[0], expected)
    ones = torch.ones(()).expand(grad_output.shape)
    for part, right in zip(
        triton_backward(ones, None, None, packed, sparse, turned, pass_options(**options))[:3],
        triton_backward(ones.contiguous(), None, None, *dense, pass_options(**options))[:3],
        strict=True,
    ):
        assert part.transpose(1, 2).is_contiguous()
        assert torch.equal(part, right)


@pytest.mark.parametrize("name", ["row_sums", "weighted_logs"])
def test_one_gradient_of_the_statistics(name):
    query, key, value, _ = draw(1)
    options = {"activation": "softplus", "scale": 0.5, "threshold": 0.3}
    leaves = [part.double().requires_grad_() for part in (query, key, value)]
    index = {"row_sums": 1, "weighted_logs": 2}[name]
    part = dense_attention(*leaves, **options)[index]
    grad = torch.randn(())
    right = torch.autograd.grad((grad.double() * part).sum(), leaves[:2])
    grads = [torch.zeros_like(query), None, None]
    grads[index] = grad.expand(part.shape)
    gradients = triton_backward(*grads, query, key, value, pass_options(**options))
    for actual, expected in zip(gradients, right, strict=False):
        assert_near(actual, expected, 2e-6)
    assert (gradients[2] == 0).all()


def test_faint_weights_of_softplus_count():
    query, key, value, _ = draw(1, 1, 4, 5, 2)
    options = {"activation": "softplus", "scale": 0.0, "threshold": 30.0, "needed_statistics": "all"}
    _, row_sums, _, nonzeros = triton_forward(query, key, value, pass_options(**options))
    assert (nonzeros == 5).all()
    torch.testing.assert_close(row_sums, torch.full_like(row_sums, 5 * math.exp(-30)))


def test_agreement_with_the_naive_rows():
    query, key, value, _ = draw(2, 2, 5, 6, 4)
    visible = visible_keys(query, key, None, 1).expand(2, 1, 5, 6)[:, 0]
    kwargs = {"activation": "relu", "scale": 0.4, "threshold": -0.2}
    expected, _ = reference.attention(
        *(part.double() for part in (query, key, value)),
        visible,
        length_coefficient=2.0,
        length_exponent=0.5,
        **kwargs,
    )
    row_factors = 1 / (2 * visible[:1].sum(-1).float() ** 0.5)
    output = triton_forward(query, key, value, pass_options(causal_offset=1, row_factors=row_factors, **kwargs))[0]
    assert_near(output, expected, 2e-6)


def draw_kept(*seeds: int) -> list[Tensor]:
    """D of calls on 2 × 2 heads of 15 queries and 32 keys, read off the output with the unit matrix for values."""
    query, key, value, _ = draw(2, 2, 15, 32, 32)
    value = torch.eye(32).expand_as(value)
    options = {"activation": "sigmoid", "scale": 0.1}
    whole = triton_forward(query, key, value, pass_options(**options))[0]
    options["dropout"] = SHARE
    return [
        triton_forward(query, key, value, pass_options(seed=torch.tensor([seed]), **options))[0] / whole
        for seed in seeds
    ]


def test_dropout_leaves_its_share():
    kept, *others = draw_kept(1, 2, 1 + 2**32)
    is_kept = kept > 0
    torch.testing.assert_close(kept[is_kept], torch.full_like(kept[is_kept], 1 / (1 - SHARE)))
    assert abs(is_kept.double().mean() - (1 - SHARE)) < 0.05
    for other in (*others, *(kept.roll(1, axis) for axis in range(4))):  # two fair draws agree in 57 %
        assert abs((is_kept == (other > 0)).double().mean() - SHARE**2 - (1 - SHARE) ** 2) < 0.06


def test_dropout_is_the_same_in_every_tile(monkeypatch):
    (kept,) = draw_kept(5)
    for queries, keys in ((32, 16), (16, 32), (16, 64), (16, 128)):
        monkeypatch.setattr(triton_attention, "INTERPRETER_TILE", {"QUERIES": queries, "KEYS": keys})
        torch.testing.assert_close(draw_kept(5)[0] > 0, kept > 0)


def test_dropout_is_rounded_to_what_a_byte_can_say():
    query, key, _, _ = draw(1, 1, 100, 128, 128)
    options = {"activation": "sigmoid", "scale": 0.1}
    unit = torch.eye(128).expand(1, 1, -1, -1)
    whole = triton_forward(query, key, unit, pass_options(**options))[0]
    kept = triton_forward(query, key, unit, pass_options(dropout=0.1, seed=torch.tensor(3), **options))[0] / whole
    torch.testing.assert_close(kept[kept > 0], torch.full_like(kept[kept > 0], 256 / 230))
    assert abs((kept > 0).double().mean() - 230 / 256) < 0.01
    # every bit of a byte is drawn, of every place in a word: no key and no row is dropped more often than others
    assert ((kept == 0).double().mean(-2) < 0.25).all()
    for dropped in (0.001, 0.9999):  # none at all, and all but a 256th
        part = triton_forward(query, key, unit, pass_options(dropout=dropped, seed=torch.tensor(3), **options))[0]
        assert (part != 0).double().mean() == pytest.approx(1 - min(round(dropped * 256), 255) / 256, abs=0.002)


@pytest.mark.parametrize("everything", [False, True])
def test_gradients_drop_what_the_output_dropped(everything):
    query, key, *others = draw(2, 2, 15, 32)
    kept = (draw_kept(7)[0] > 0).double() / (1 - SHARE)
    options = draw_options(query, key) if everything else {"scale": 0.5}
    compare((query, key, *others), kept, activation="relu", dropout=SHARE, seed=torch.tensor([7]), **options)


@pytest.mark.parametrize("shape", [(0, 1, 4, 4), (1, 0, 4, 4), (1, 1, 0, 4), (1, 1, 4, 0)], ids=str)
def test_empty_tensors(shape):
    compare(draw(*shape), activation="sigmoid", scale=1.0, causal_offset=0, needed_statistics="all")


@pytest.mark.parametrize("dropout", [0.0, SHARE])
@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_rectified_attention_by_the_kernels(activation, dropout, monkeypatch):
    monkeypatch.setattr(fused, "choose_computation", lambda *call, **options: "triton")
    leaves = [part.requires_grad_() for part in draw(2, 2, 15, 32, 32)[:3]]
    threshold, exponent = torch.tensor([0.1], requires_grad=True), torch.tensor([0.5], requires_grad=True)
    mask = torch.arange(32) < torch.tensor([[32], [20]])

    def attend(value):
        torch.manual_seed(3)
        return rectified_attention(
            *leaves[:2],
            value,
            activation=activation,
            threshold=threshold,
            length_exponent=exponent,
            key_padding_mask=mask,
            is_causal=True,
            dropout=dropout,
            return_stats=True,
        )

    output, sums = attend(leaves[2])
    exact = [part.detach().double().requires_grad_() for part in (*leaves, threshold, exponent)]
    visible = visible_keys(*leaves[:2], mask, 17)
    divisor = visible.sum(-1, keepdim=True) ** exact[4]
    scores = exact[0] @ exact[1].mT * 32**-0.5 - exact[3]
    weights = reference.ACTIVATIONS[activation](scores).masked_fill(~visible, 0.0) / divisor
    kept = (attend(torch.eye(32).expand_as(leaves[2]))[0] != 0) | (weights == 0)  # the unit matrix shows the weights
    is_dropped = ~kept[weights != 0]
    assert abs(is_dropped.double().mean() - dropout) < 0.1
    expected = (weights * kept / (1 - dropout)) @ exact[2]
    assert_near(output, expected.detach(), 5e-6)
    assert_near(sums.row_sums, weights.sum(-1).detach(), 5e-6)
    assert_near(sums.nonzeros, (weights != 0).sum(-1), 0.0)
    logs = torch.where(weights > 0, weights, 1.0).log()
    assert_near(sums.weighted_logs, (weights * logs).sum(-1).detach(), 5e-6)
    directions = [torch.randn_like(part) for part in (output, sums.row_sums, sums.weighted_logs)]
    got = torch.autograd.grad((output, sums.row_sums, sums.weighted_logs), [*leaves, threshold, exponent], directions)
    wanted = torch.autograd.grad(
        (expected, weights.sum(-1), (weights * logs).sum(-1)), exact, [part.double() for part in directions]
    )
    for name, part, right in zip(("query", "key", "value", "threshold", "exponent"), got, wanted, strict=True):
        assert_near(part, right, 2e-5, name)


@pytest.mark.parametrize("has_statistics", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 15, 1), (1, 6, 1, 1), (2, 6, 15, 1)], ids=str)
@pytest.mark.parametrize("heads", [6, 2])
def test_thresholds_of_rows(heads, shape, has_statistics, monkeypatch):
    query, key, value = (part.requires_grad_() for part in draw(2, 6, 15, 32, 24)[:3])
    key, value = key[:, :heads], value[:, :heads]
    threshold = torch.rand(shape).requires_grad_()
    divisor = torch.rand(2, 1, 15, 1) + 0.5

    def attend(query, key, value, threshold):
        found = fused.attention(
            query,
            key,
            value,
            activation="relu2",
            scale=0.4,
            threshold=threshold,
            divisor=divisor.to(query.dtype),
            key_padding_mask=None,
            causal_offset=5,
            needed_statistics="sums" if has_statistics else "none",
        )
        return [part for part in found if part is not None]

    leaves = (query, key, value, threshold)
    expected = with_gradients(attend, [part.detach().double().requires_grad_() for part in leaves])  # by blocks
    monkeypatch.setattr(fused, "choose_computation", lambda *call, **options: "triton")
    for part, right in zip(with_gradients(attend, leaves), expected, strict=True):
        assert_near(part, right, 1e-5)


def with_gradients(attend, inputs):
    """Call a function; what it gives, and the gradients of its inputs for fixed directions."""
    outputs = attend(*inputs)
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(part.shape, generator=generator).to(part) for part in outputs]
    return [part.detach() for part in (*outputs, *torch.autograd.grad(outputs, inputs, directions))]


@pytest.mark.parametrize("computation", ["triton", "blocks"])
@pytest.mark.parametrize("needed", ["all", "sums", "none"])
def test_fake_tensors_are_laid_out_like_the_true_ones(computation, needed):
    query, key, value, grad_output = draw(2, 3, 5, 7, 8)
    tensors = (torch.tensor([0.1]), torch.rand(2, 5), torch.rand(2, 7) < 0.8, torch.tensor(3))
    options = PassOptions(*tensors, scale=0.3, causal_offset=1, dropout=0.25, needed_statistics=needed)
    inputs = (query, key, value, computation, *options)
    torch.library.opcheck(fused._operator, inputs, test_utils=("test_schema", "test_faketensor"))
    sums = torch.rand(2, 3, 5) if needed == "all" else None
    inputs = (grad_output, sums, None, *inputs)
    torch.library.opcheck(fused._backward_operator, inputs, test_utils=("test_schema", "test_faketensor"))
    if computation == "triton":
        of_rows = (*inputs[:7], torch.rand(2, 3, 5), *inputs[8:])
        torch.library.opcheck(fused._backward_operator, of_rows, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("activations", [ACTIVATIONS, SPARSE_DISTRIBUTIONS], ids=["elementwise", "sparse"])
@pytest.mark.parametrize("seed", range(14))
def test_shared_keys_and_windows(seed, activations, monkeypatch):
    monkeypatch.setattr(fused, "choose_computation", lambda *call, **options: "triton")
    torch.manual_seed(seed)
    check_call(*draw_call(seed, torch.float32, activations, lengths=(1, 5, 17, 70)))
