"""Translating in bfloat16 and in int8."""

import pytest
import torch
from torch import nn

from builders.commands import refusal_of, run_command
from builders.models import build_model
from builders.saved_models import save_translator
from reluformers import quantize_int8
from reluformers.translation.decoding import load_translation_model, translate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("translator"))


def rounded_product(x, weight, bias):
    """x·Wᵀ + b in float64, of integers: both with a scale a row, activations with their least value too."""
    x, weight = x.double(), weight.double()
    row_scales = weight.abs().amax(1, keepdim=True) / 127.5
    rounded = (weight / row_scales).round().clamp(-128, 127) * row_scales
    low = x.amin(-1, keepdim=True)
    step = (x.amax(-1, keepdim=True) - low) / 127  # 7 bits: sums of two products of 8 overflow 16 on older CPUs
    return (((x - low) / step).round() * step + low) @ rounded.T + bias


def test_a_layer_multiplies_integers():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(64, 48))
    x = torch.randn(2, 5, 64) * torch.logspace(-3, 3, 5)[:, None]
    expected = rounded_product(x, layer[0].weight.detach(), layer[0].bias.detach())
    exact = layer(x).detach()
    found = quantize_int8(layer)(x)
    errors = ((one - expected).abs().amax(-1) for one in (found, exact))
    assert all((ours < 0.2 * rounding).all() for ours, rounding in [tuple(errors)])
    assert torch.equal(layer(torch.zeros(1, 64)), layer[0].bias[None])


def test_a_sentence_does_not_hang_on_those_beside_it():
    """One row is a thousand times as large as the others, which lose all of their bits to a scale of the call."""
    layer = quantize_int8(nn.Sequential(nn.Linear(64, 48)))
    x = torch.randn(6, 64) * torch.tensor([1, 1, 1000, 1, 1, 1])[:, None]
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


@pytest.mark.parametrize("preset", ["reluformer", "rela-g", "qknorm"])
def test_logits_stay_near_and_all_linear_layers_are_packed(preset, tmp_path):
    """QKNorm has FixNorm, whose output layer is of a class of its own."""
    model = build_model(preset).eval()
    inputs = {"input_ids": torch.randint(5, 30, (2, 7)), "decoder_input_ids": torch.randint(5, 30, (2, 6))}
    expected = model(**inputs).logits
    quantize_int8(model)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    with pytest.raises(ValueError, match="packed for this processor"):
        model.save_pretrained(tmp_path)
    error = (model(**inputs).logits - expected).norm() / expected.norm()
    assert 0 < error < 0.1
    again = model.generate(inputs["input_ids"], num_beams=2, max_new_tokens=4)
    assert again.shape[0] == 2


def test_options_of_the_commands(folder, capsys):
    for dtype in ("bfloat16", "int8"):
        model, tokenizers = load_translation_model(folder, dtype=dtype)
        assert model.dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
        run_command("translate", "--model", folder, "--dtype", dtype, "--num_beams", 2, "old dog")
        assert capsys.readouterr().out == translate(model, tokenizers, ["old dog"], num_beams=2)[0] + "\n"


def test_a_folder_of_torchao_is_saved_opened_and_packed(folder, tmp_path, capsys):
    pytest.importorskip("torchao")
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TorchAoConfig

    config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=config)
    model.save_pretrained(tmp_path / "int8")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "int8")
    opened, tokenizers = load_translation_model(tmp_path / "int8")
    assert not any(isinstance(module, nn.Linear) for module in opened.modules())
    packed, kept = (one.model.encoder.layers[0].self_attn.q_proj for one in (opened, model))
    weight, _ = torch.ops.quantized.linear_unpack(packed.packed)
    assert torch.equal(weight.int_repr(), kept.weight.qdata)
    assert torch.allclose(weight.q_per_channel_scales().float(), kept.weight.scale.flatten())
    inputs = {"input_ids": torch.randint(5, 30, (2, 7)), "decoder_input_ids": torch.randint(5, 30, (2, 6))}
    expected = load_translation_model(folder)[0](**inputs).logits
    assert (opened(**inputs).logits - expected).norm() < 0.1 * expected.norm()
    assert translate(opened, tokenizers, ["old dog"])
    line = refusal_of(capsys, "translate", "--model", tmp_path / "int8", "--dtype", "bfloat16", "old dog")
    assert "is saved in int8" in line
