"""Models on a GPU: what they compute, learn and generate on a processor."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from builders.models import MODELS, build_model, draw_images, draw_pairs
from builders.triton_inputs import assert_near
from reluformers import exchange_attention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(autouse=True)
def exact_convolutions():
    """Convolutions in float32 as they are, as products of matrices are: TF32 keeps 10 bits."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def check_same(model: nn.Module, batch: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    """Logits, loss and gradients of both devices."""
    expected = model(**batch)
    gradients = torch.autograd.grad(expected.loss, list(model.parameters()), materialize_grads=True)
    model.cuda()
    found = model(**{name: tensor.cuda() for name, tensor in batch.items()})
    assert_near(found.logits.cpu(), expected.logits, tolerance)
    assert_near(found.loss.cpu(), expected.loss, tolerance)
    largest = max(part.abs().max() for part in gradients)
    for part, right in zip(
        torch.autograd.grad(found.loss, list(model.parameters()), materialize_grads=True), gradients, strict=True
    ):
        assert (part.cpu() - right).abs().max() <= tolerance * largest


@pytest.mark.parametrize(("kind", "preset"), MODELS)
def test_both_devices_learn_the_same(kind, preset):
    torch.manual_seed(0)
    batch = draw_pairs() if kind == "seq2seq" else draw_images()
    check_same(build_model(preset, kind).eval(), batch)


@pytest.mark.parametrize(
    "attention",
    [
        "reluformer",
        "rela-g",
        "qknorm",
        "relu-sum",
        "entmax15",
        "sparsemax",
        {"scale_form": "log_length", "learned_scale": True},
        {"activation": "softmax1", "learned_threshold": True, "threshold_per_head": True},
        {"activation": "sigmoid", "threshold": 1.0, "threshold_form": "log_length"},
        {"activation": "softpick"},
        {"exclusive_output": True},
        {"score": "cosine", "activation": "relu2", "threshold": 0.5, "threshold_form": "sqrt_log_length"},
    ],
)
def test_exchanged_attention_on_both_devices(attention):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes)
    model = exchange_attention(LlamaForCausalLM(config), attention).eval()
    tokens = torch.randint(50, (3, 40))
    check_same(model, {"input_ids": tokens, "labels": tokens})


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("preset", ["softmax", "reluformer", "rela-g", "qknorm"])
def test_both_devices_generate_the_same(preset, beams):
    model = build_model(preset).eval()
    batch = {name: tensor for name, tensor in draw_pairs().items() if name != "labels"}
    options = {"num_beams": beams, "max_new_tokens": 12}
    expected = model.generate(**batch, **options)
    found = model.cuda().generate(**{name: tensor.cuda() for name, tensor in batch.items()}, **options)
    assert found.tolist() == expected.tolist()
