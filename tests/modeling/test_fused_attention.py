"""`rectified_attention` beside the matrix: long windows, dropout, memory, compilers, `torch.func` and refusals."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from reluformers import MultiHeadAttention, rectified_attention
from reluformers_kernels import blockwise_attention, computation


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


def test_half_precision_holds_what_is_divided():
    query, key, value = (
        torch.full((1, 1, length, 4), number).half() for length, number in ((2, 4.0), (4096, 3.0), (4096, 1.0))
    )
    for queries in (2, 1):
        output = rectified_attention(query[:, :, :queries], key, value, length_exponent=1.0)
        torch.testing.assert_close(output, torch.full_like(output, 24.0))
    output = rectified_attention(query, key, value, activation="relu2", normalizer="sum")
    torch.testing.assert_close(output, torch.ones_like(output))


@pytest.mark.parametrize("queries", [1, 3])
def test_without_keys_the_output_is_zero(queries):
    query, key, value = (torch.randn(2, 3, length, 4) for length in (queries, 0, 0))
    assert (rectified_attention(query, key, value, length_exponent=1.0) == 0).all()


def test_one_program_serves_all_lengths_without_a_break_in_its_graph():
    torch.compiler.reset()
    layer = nn.Linear(8, 24)
    counter = CompileCounterWithBackend("aot_eager")

    def step(states):
        query, key, value = layer(states).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return rectified_attention(query, key, value, is_causal=True, length_exponent=0.5).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for length in (7, 9, 12):
        states = torch.randn(2, length, 8)
        expected = step(states)
        actual = compiled(states)
        torch.testing.assert_close(actual, expected)
        wanted = torch.autograd.grad(expected, layer.weight)[0]
        torch.testing.assert_close(torch.autograd.grad(actual, layer.weight)[0], wanted)
    assert counter.frame_count <= 2


def test_autocast_computes_in_its_dtype():
    query, key, value = (torch.randn(2, 3, 9, 4) for _ in range(3))
    expected = rectified_attention(query, key, value)
    with torch.autocast("cpu", torch.bfloat16):
        output = rectified_attention(query, key, value.bfloat16())
        exact = rectified_attention(query.double(), key.double(), value.double())
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(exact.float(), expected)  # autocast leaves float64 alone


@pytest.mark.parametrize("options", [{"dropout": 0.1, "is_causal": True}, {"activation": "gelu"}])
def test_no_tensor_grows_with_the_square_of_the_length(options, monkeypatch):
    monkeypatch.setattr(blockwise_attention, "_ELEMENTS", 2**11)
    monkeypatch.setattr(computation, "native", None)  # whose threads have scratch memory of a fixed size
    with LargestTensor() as largest:
        states = [torch.randn(1, 512, 2, 4).transpose(1, 2).requires_grad_() for _ in range(3)]
        mask = torch.rand(1, 512) > 0.2
        output, rows = rectified_attention(*states, key_padding_mask=mask, **options, return_stats=True)
        (output.sum() + rows.row_sums.sum()).backward()
    assert largest.elements <= 512 * 2 * 4 * 2  # inputs of that length, or a block


def test_derivatives_that_no_pass_computes_are_refused():
    query = torch.randn(1, 2, 9, 4, requires_grad=True)
    output = rectified_attention(query, query, query)
    directions = torch.randn(3, *output.shape)
    (batched,) = torch.autograd.grad(output, query, directions, is_grads_batched=True, retain_graph=True)
    for direction, gradient in zip(directions, batched, strict=True):
        torch.testing.assert_close(torch.autograd.grad(output, query, direction, retain_graph=True)[0], gradient)
    (gradient,) = torch.autograd.grad(output.pow(2).sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(gradient.sum(), query)
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.func.grad(lambda states: rectified_attention(states, states, states).sum())(query.detach())


@pytest.mark.parametrize("name", ["query", "key", "value", "threshold", "length_exponent"])
def test_forward_mode_derivatives_are_refused(name):
    inputs = {name: torch.randn(1, 2, 9, 4) for name in ("query", "key", "value")}
    inputs |= {"threshold": torch.tensor(0.1), "length_exponent": torch.tensor(0.5)}
    with forward_ad.dual_level():
        inputs[name] = forward_ad.make_dual(inputs[name], torch.ones_like(inputs[name]))
        with pytest.raises(NotImplementedError, match="forward mode"):
            rectified_attention(**inputs)


def test_torch_func_differentiates_a_module_by_the_reference():
    module = MultiHeadAttention(8, 2, "reluformer").eval()
    states = torch.randn(1, 5, 8)

    def loss(parameters, backend):
        return torch.func.functional_call(module, parameters, states, {"attn_implementation": backend})[0].sum()

    fused, eager = (torch.func.grad(loss)(dict(module.named_parameters()), name) for name in ("fused", "eager"))
    torch.testing.assert_close(fused, eager)


STATES = torch.zeros(2, 3, 9, 4)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("activation", {"activation": "softmax"}),
        ("dropout", {"dropout": 1.0}),
        ("length_coefficient", {"length_coefficient": 0}),
        ("threshold", {"threshold": torch.zeros(2)}),
        ("length_exponent", {"length_exponent": torch.ones(1, 2)}),
        ("normalizer", {"activation": "gelu", "normalizer": "sum"}),
        ("sparsemax", {"activation": "sparsemax", "normalizer": "sum"}),
        ("sparsemax", {"activation": "sparsemax", "return_stats": True, "query": STATES.clone().requires_grad_()}),
        # compiled code reads memory by these shapes, types and devices
        *(("key", {"key": key}) for key in (torch.zeros(2, 3, 9, 5), STATES.to("meta"))),
        ("value", {"value": STATES[:, :, 1:]}),
        *(("query", {"query": query}) for query in (STATES[:, 1:], STATES[0], torch.zeros(2, 4, 9, 4))),
        ("query", dict.fromkeys(("query", "key", "value"), STATES.long())),
        *(
            ("key_padding_mask", {"key_padding_mask": mask})
            for mask in (torch.ones(2, 8).bool(), torch.ones(2, 9), torch.ones(2, 9, dtype=torch.bool, device="meta"))
        ),
        *(("bounds", {"first_keys": torch.zeros(shape, dtype=torch.int)}) for shape in (9, (2, 8), (3, 9))),
        ("bounds", {"last_keys": torch.zeros(2, 9)}),
    ],
)
def test_what_does_not_fit_is_refused(field, change):
    with pytest.raises(ValueError, match=field):
        rectified_attention(**{"query": STATES, "key": STATES, "value": STATES, **change})
