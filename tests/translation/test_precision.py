"""Translating in bfloat16 and in int8."""

import warnings

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

from builders.commands import refusal_of, run_command
from builders.models import build_model
from builders.saved_models import save_translator
from reluformers import quantize_int8
from reluformers.onnx.models import OnnxModel
from reluformers.saved_models import set_precision
from reluformers.translation.decoding import load_translation_model, translate

LINES = ["red green big small", "old dog cat house", "tree runs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("translator"))


def rounded_product(x, weight, bias):
    """x·Wᵀ + b in float64, of integers: weights with a scale a row, activations with one and a zero point."""
    x, weight = x.double(), weight.double()
    row_scales = weight.abs().amax(1, keepdim=True) / 127.5
    integers = (weight / row_scales).round().clamp(-128, 127)
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    scale = (high - low) / 127  # 7 bits: sums of two products of 8 overflow 16 on older CPUs
    zero = round(-low / scale)
    activations = (x / scale + zero).round().clamp(0, 127) - zero
    return scale * activations @ (integers * row_scales).T + bias


def test_a_layer_multiplies_integers():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(64, 48))
    x = torch.randn(5, 64)
    expected = rounded_product(x, layer[0].weight.detach(), layer[0].bias.detach())
    exact = layer(x).detach()
    found = quantize_int8(layer)(x)
    assert isinstance(found, torch.Tensor)
    assert (found - expected).abs().max() < 0.2 * (exact - expected).abs().max()


@pytest.mark.parametrize("preset", ["reluformer", "rela-g", "qknorm"])
def test_logits_stay_near_and_all_linear_layers_are_packed(preset, tmp_path):
    """QKNorm has FixNorm, whose output layer is of a class of its own."""
    model = build_model(preset).eval()
    inputs = {"input_ids": torch.randint(5, 30, (2, 7)), "decoder_input_ids": torch.randint(5, 30, (2, 6))}
    expected = model(**inputs).logits
    number = sum(isinstance(module, nn.Linear) for module in model.modules())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quantize_int8(model) is model
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    with pytest.raises(ValueError, match="packed for this processor"):
        model.save_pretrained(tmp_path)
    assert sum("DynamicQuantized" in module._get_name() for module in model.modules()) == number
    error = (model(**inputs).logits - expected).norm() / expected.norm()
    assert 0 < error < 0.1
    again = model.generate(inputs["input_ids"], num_beams=2, max_new_tokens=4)
    assert again.shape[0] == 2


def test_what_cannot_be_quantized_is_refused():
    with pytest.raises(ValueError, match=r"needs a model in float32 on the CPU, got torch\.bfloat16"):
        quantize_int8(build_model("reluformer").bfloat16())
    with pytest.raises(ValueError, match="is a linear layer"):
        quantize_int8(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="graphs of ONNX"):
        set_precision(OnnxModel(PreTrainedConfig()), "int8")
    with pytest.raises(ValueError, match="dtype is 'int4', but must be one of float32, bfloat16, int8"):
        set_precision(build_model("reluformer"), "int4")


def test_columns_change_strides_alone(folder, tmp_path):
    model, tokenizers = load_translation_model(folder)
    plain = type(model).from_pretrained(folder)
    weight = model.model.decoder.layers[0].mlp.fc1.weight
    assert weight.stride()[0] == 1 < weight.stride()[1]
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert translate(model, tokenizers, LINES) == translate(plain, tokenizers, LINES)
    model.save_pretrained(tmp_path / "again")
    again = type(model).from_pretrained(tmp_path / "again")
    assert all(map(torch.equal, again.parameters(), plain.parameters()))


def test_options_of_the_commands(folder, tmp_path, capsys):
    (tmp_path / "test.tsv").write_text("en\tde\nold dog\told dog\nred cat\tred cat\n")
    for dtype in ("bfloat16", "int8"):
        model, tokenizers = load_translation_model(folder, dtype=dtype)
        assert model.dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
        run_command("translate", "--model", folder, "--dtype", dtype, "--num_beams", 2, "old dog")
        assert capsys.readouterr().out == translate(model, tokenizers, ["old dog"], num_beams=2)[0] + "\n"
        output = tmp_path / f"{dtype}.json"
        languages = ("--source_lang", "en", "--target_lang", "de")
        run_command(
            "evaluate", folder, "--data", tmp_path / "test.tsv", *languages, "--dtype", dtype, "--output", output
        )
        assert f'"dtype": "{dtype}"' in output.read_text()
        capsys.readouterr()
    with pytest.raises(SystemExit):
        run_command("translate", "--model", folder, "--dtype", "int4", "old dog")


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
    assert torch.equal(packed.weight().int_repr(), kept.weight.qdata)
    assert torch.allclose(packed.weight().q_per_channel_scales().float(), kept.weight.scale.flatten())
    inputs = {"input_ids": torch.randint(5, 30, (2, 7)), "decoder_input_ids": torch.randint(5, 30, (2, 6))}
    expected = load_translation_model(folder)[0](**inputs).logits
    assert (opened(**inputs).logits - expected).norm() < 0.1 * expected.norm()
    assert len(translate(opened, tokenizers, LINES)) == 3
    line = refusal_of(capsys, "translate", "--model", tmp_path / "int8", "--dtype", "bfloat16", "old dog")
    assert "is saved in int8, and cannot compute in bfloat16" in line
