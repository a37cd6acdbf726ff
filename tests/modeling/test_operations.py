"""A training step dispatches little more than with softmax: on a GPU each operation is a launch."""

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func, min_cut_rematerialization_partition
from transformers import AutoModelForCausalLM, LlamaConfig

import reluformers
from builders.operations import CountOperations
from reluformers_kernels.compiled import native

needs_code = pytest.mark.skipif(native is None or not native.is_available(), reason="needs compiled code")


def count(model: torch.nn.Module, **inputs) -> int:
    """Operations of a second step, in which what is made once is there."""
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with CountOperations() as counted:
            model(**inputs).loss.backward()
    return len(counted.names)


def count_translation(preset: str) -> int:
    torch.manual_seed(0)
    config = reluformers.seq2seq_config(
        preset, vocab_size=999, d_model=64, encoder_layers=6, decoder_layers=6, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, attention_dropout=0, activation_dropout=0,
    )  # fmt: skip
    ids = torch.randint(5, 99, (16, 32))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    model = reluformers.ReLUFormerForConditionalGeneration(config).train()
    return count(model, input_ids=ids, attention_mask=mask, labels=ids)


def tiny_llama(attention: str, layers: int, inner: int) -> torch.nn.Module:
    config = LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()


def count_llama(attention: str) -> int:
    torch.manual_seed(0)
    ids = torch.randint(5, 99, (4, 160))  # so many that compiled code takes them
    return count(tiny_llama(attention, 6, 64), input_ids=ids, labels=ids, use_cache=False)


@needs_code
@pytest.mark.parametrize(
    ("preset", "most"),
    {"reluformer": 1.08, "rela": 1.01, "rela-g": 1.01, "qknorm": 1.11, "relu-sum": 1.11, "entmax15": 1.0}.items(),
)
def test_operations_of_translation(preset, most):
    assert count_translation(preset) <= most * count_translation("softmax")


@needs_code
@pytest.mark.parametrize(
    ("attention", "most"),
    {"relu": 1.03, "relu_sum": 1.08, "entmax15": 1.03, "softmax1": 1.1, "sigmoid": 1.05, "tda": 1.07}.items(),
)
def test_operations_of_llama(attention, most):
    assert count_llama(f"{attention}_attention") <= most * count_llama("sdpa")


def count_saved_bytes(attention: str) -> int:
    """Bytes that the compiled forward pass of a Llama keeps for its backward pass, beside its inputs."""
    kept = []

    def compile_forward(graph, _):
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        tensors = [node.meta["val"] for node in outputs if node is not None and node.op != "placeholder"]
        kept.extend(part.numel() * part.element_size() for part in tensors if isinstance(part, torch.Tensor))
        return make_boxed_func(graph.forward)

    def backend(graph, inputs):
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=compile_forward,
            bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
            partition_fn=min_cut_rematerialization_partition,
        )

    torch._dynamo.reset()
    ids = torch.randint(5, 99, (2, 192))
    inputs = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    torch.compile(tiny_llama(attention, 2, 128), backend=backend, fullgraph=True)(**inputs).loss.backward()
    return sum(kept)


@needs_code
@pytest.mark.skipif(torch.__version__ < "2.13", reason="older compilers keep more of sums over rows")
def test_a_compiled_step_keeps_no_more_than_with_softmax():
    assert count_saved_bytes("relu_sum_attention") <= 1.1 * count_saved_bytes("sdpa")
