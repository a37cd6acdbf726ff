"""A training step dispatches little more than with softmax: on a GPU each operation is a launch."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig

import reluformers
from builders.operations import CountOperations
from reluformers_kernels.compiled import native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native is None or not native.is_available(), reason="needs compiled code"),
]


def count(model: torch.nn.Module, **inputs) -> int:
    """Operations of a second step, in which what is made once is there."""
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with CountOperations() as counted:
            model(**inputs).loss.backward()
    return len(counted.names)


def count_translation(preset: str) -> int:
    torch.manual_seed(0)
    numbers = {"layers": 6, "attention_heads": 4, "ffn_dim": 64}
    sizes = {f"{side}_{name}": number for side in ("encoder", "decoder") for name, number in numbers.items()}
    still = {"attention_dropout": 0, "activation_dropout": 0}
    config = reluformers.seq2seq_config(preset, vocab_size=999, d_model=64, **sizes, **still)
    ids = torch.randint(5, 99, (16, 32))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    return count(AutoModelForSeq2SeqLM.from_config(config).train(), input_ids=ids, attention_mask=mask, labels=ids)


def count_llama(attention: str) -> int:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=99, num_key_value_heads=2, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()
    ids = torch.randint(5, 99, (4, 160))  # so many that compiled code takes them
    return count(model, input_ids=ids, labels=ids, use_cache=False)


@pytest.mark.parametrize(
    ("preset", "most"), {"reluformer": 1.08, "rela-g": 1.01, "qknorm": 1.11, "relu-sum": 1.11, "entmax15": 1.0}.items()
)
def test_operations_of_translation(preset, most):
    assert count_translation(preset) <= most * count_translation("softmax")


@pytest.mark.parametrize(("attention", "most"), {"relu": 1.03, "entmax15": 1.03, "softmax1": 1.1, "tda": 1.07}.items())
def test_operations_of_llama(attention, most):
    assert count_llama(f"{attention}_attention") <= most * count_llama("sdpa")
