"""`rectified_attention` beside the matrix: long windows, dropout, memory, compilers, `torch.func` and refusals."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from reluformers import MultiHeadAttention, rectified_attention
from reluformers_kernels import blockwise_attention, computation
from reluformers_kernels.activations import PassOptions


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
    ("options", "causal_offset"),
    [({"dropout": 0.1}, 0), ({"activation": "gelu"}, None), ({"needed_statistics": "all"}, None)],
    ids=str,
)
def test_no_tensor_grows_with_the_square_of_the_length(options, causal_offset, monkeypatch):
    monkeypatch.setattr(blockwise_attention, "_ELEMENTS", 2**11)
    monkeypatch.setattr(computation, "native", None)  # whose threads have scratch memory of a fixed size
    largest = {}
    for length in (256, 512):
        query, key, value, gradient = (torch.randn(1, length, 2, 4).transpose(1, 2) for _ in range(4))
        mask = torch.rand(1, length) > 0.2 if causal_offset is None else None
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
    assert largest[512] <= 512 * 2 * 4 * 2  # inputs of that length, or a block
    assert largest[512] <= 2 * largest[256]


def test_half_precision_holds_what_is_divided():
    query, key, value = (
        torch.full((1, 1, length, 4), number).half() for length, number in ((2, 4.0), (4096, 3.0), (4096, 1.0))
    )
    for exponent in (1.0, torch.ones(1, requires_grad=True)):
        for queries in (2, 1):
            output = rectified_attention(query[:, :, :queries], key, value, length_exponent=exponent)
            torch.testing.assert_close(output, torch.full_like(output, 24.0))
    output = rectified_attention(query, key, value, activation="relu2", normalizer="sum")
    torch.testing.assert_close(output, torch.ones_like(output))


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1)])
def test_scalars_may_be_tensors_of_any_shape(shape):
    states = torch.randn(3, 2, 3, 9, 4)
    numbers = {"scale": 0.4, "threshold": 0.1, "length_exponent": 0.7}
    expected = rectified_attention(*states, **numbers)
    for is_trained in (True, False):
        scalars = {name: torch.full(shape, value, requires_grad=is_trained) for name, value in numbers.items()}
        torch.testing.assert_close(rectified_attention(*states, **scalars), expected)


@pytest.mark.parametrize("queries", [1, 3])
def test_without_keys_the_output_is_zero(queries):
    query, key, value = (torch.randn(2, 3, length, 4) for length in (queries, 0, 0))
    assert (rectified_attention(query, key, value, length_exponent=1.0) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_program_serves_all_lengths_without_a_break_in_its_graph(dtype):
    torch.compiler.reset()
    layer, counter = nn.Linear(8, 24, dtype=dtype), CompileCounterWithBackend("aot_eager")

    def step(states):
        query, key, value = layer(states).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return rectified_attention(query, key, value, is_causal=True, length_exponent=0.5).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for length in (7, 9, 12):
        states = torch.randn(2, length, 8, dtype=dtype)
        expected, actual = step(states), compiled(states)
        torch.testing.assert_close(actual, expected)
        wanted = torch.autograd.grad(expected, layer.weight)[0]
        torch.testing.assert_close(torch.autograd.grad(actual, layer.weight)[0], wanted)
    assert counter.frame_count <= 2


def test_gradients_of_gradients_are_refused():
    query = torch.randn(1, 2, 9, 4, requires_grad=True)
    loss = rectified_attention(query, query, query).pow(2).sum() + query.pow(3).sum()
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


@pytest.mark.parametrize("name", ["query", "key", "value", "threshold", "length_exponent"])
def test_forward_mode_derivatives_are_refused(name):
    states = {name: torch.randn(1, 2, 9, 4) for name in ("query", "key", "value")}
    states |= {"threshold": torch.tensor(0.1), "length_exponent": torch.tensor(0.5)}
    with forward_ad.dual_level():
        states[name] = forward_ad.make_dual(states[name], torch.ones_like(states[name]))
        with pytest.raises(NotImplementedError, match="no derivatives of forward mode"):
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
    with pytest.raises(NotImplementedError, match=r"no derivatives of forward mode or of torch\.func"):
        torch.func.grad(lambda states: rectified_attention(states, states, states).sum())(torch.randn(1, 2, 8, 16))


def test_compiled_code_of_another_machine_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "foreign.so").write_bytes(b"no library")
    native_code = pytest.importorskip("reluformers_native")
    monkeypatch.setattr(native_code, "_file", lambda name: tmp_path / "foreign.so")
    assert not native_code._is_built("generic")


STATES, TRAINED = torch.zeros(2, 3, 9, 4), torch.zeros(2, 3, 9, 4, requires_grad=True)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("activation", {"activation": "softmax"}),
        ("dropout", {"dropout": 1.0}),
        ("length_coefficient", {"length_coefficient": 0}),
        ("threshold", {"threshold": torch.zeros(2)}),
        ("scale", {"scale": torch.ones(4)}),
        ("length_exponent", {"length_exponent": torch.ones(1, 2)}),
        ("normalizer", {"activation": "gelu", "normalizer": "sum"}),
        ("normalizer", {"normalizer": "mean"}),
        ("sparsemax", {"activation": "sparsemax", "normalizer": "sum"}),
        ("sparsemax", {"activation": "sparsemax", "return_stats": True, "query": TRAINED}),
        # compiled code reads memory by these shapes, types and devices
        ("key", {"key": torch.zeros(2, 3, 9, 5)}),
        ("value", {"value": torch.zeros(2, 3, 8, 4)}),
        ("query", {"query": torch.zeros(2, 2, 9, 4)}),
        ("query", {"query": torch.zeros(2, 9, 4)}),
        ("query", dict.fromkeys(("query", "key", "value"), torch.zeros(2, 3, 9, 4, dtype=torch.long))),
        ("query", {"query": torch.zeros(2, 4, 9, 4)}),
        ("key", {"key": torch.zeros(2, 3, 9, 4, device="meta")}),
        ("key_padding_mask", {"key_padding_mask": torch.ones(2, 8, dtype=torch.bool)}),
        ("key_padding_mask", {"key_padding_mask": torch.ones(2, 9)}),
        ("key_padding_mask", {"key_padding_mask": torch.ones(2, 9, dtype=torch.bool, device="meta")}),
        ("bounds", {"first_keys": torch.zeros(9)}),
        ("bounds", {"first_keys": torch.zeros(2, 8).int()}),
        ("bounds", {"first_keys": torch.zeros(3, 9).int()}),
        ("bounds", {"last_keys": torch.zeros(2, 9)}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(field, change):
    with pytest.raises(ValueError, match=field):
        rectified_attention(**{"query": STATES, "key": STATES, "value": STATES, **change})
