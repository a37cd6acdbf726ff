"""Models of every preset as ONNX: the logits, tokens and attention weights of PyTorch."""

import json

import pytest
import torch
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM

from builders.commands import run_command
from builders.image_runs import write_images
from builders.models import all_presets
from builders.pictures import picture
from builders.saved_models import TEXTS, disturb, save_classifier, save_translator
from reluformers.export.endpoint import EndpointHandler
from reluformers.export.onnx_folder import export_onnx
from reluformers.files import write_json
from reluformers.images.onnx_model import OnnxClassifier
from reluformers.modeling.pipeline_translation import TranslationPipeline
from reluformers.serving.server import load_handler
from reluformers.translation.decoding import load_translation_model, translate
from reluformers.translation.onnx_runtime import load_onnx_translator


def assert_same_attentions(found: tuple, wanted: tuple) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert torch.equal(one == 0, other == 0)


def check_translator(folder, tmp_path) -> dict:
    model = disturb(folder, AutoModelForSeq2SeqLM, attn_implementation="eager")
    record = export_onnx(folder, tmp_path / "onnx", attentions=True)
    assert record["precisions"]["fp32"]["differing_drawn"] == {"greedy": 0, "5 beams": 0}
    assert not [name for name in record["operators"] if "." in name]  # those of the standard alone
    found, tokenizers = load_onnx_translator(tmp_path / "onnx")
    loaded = load_translation_model(folder)
    for beams in (1, 4):
        search = {"num_beams": beams, "max_length": 20}
        assert translate(found, tokenizers, TEXTS, **search) == translate(*loaded, TEXTS, **search)
    inputs = {
        "input_ids": torch.tensor([[5, 9, 14, 7, 2], [8, 21, 2, 0, 0], [4, 2, 0, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]),
        "decoder_input_ids": torch.tensor([[1, 6, 9], [1, 17, 4], [1, 5, 5]]),
        "output_attentions": True,
    }
    with torch.no_grad():
        outputs, wanted = found(**inputs), model(**inputs)
    torch.testing.assert_close(outputs.logits, wanted.logits, rtol=1e-3, atol=1e-4)
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        assert_same_attentions(outputs[kind], wanted[kind])
    return record


@pytest.mark.slow
@all_presets
def test_translation(preset, tmp_path):
    check_translator(save_translator(tmp_path / "model", preset), tmp_path)
    assert json.loads((tmp_path / "onnx" / "export.json").read_text())["precisions"].keys() == {"fp32", "int8"}


SITES = {
    "sites": {"cross_attention": "softmax", "encoder_attention": "rela-g", "decoder_attention": "qknorm"},
    "softmax1": {"attention": {"activation": "softmax1", "learned_threshold": True, "threshold_per_head": True}},
    "softpick": {"attention": {"activation": "softpick", "output_gate": "sigmoid", "exclusive_output": True}},
    "forms": {
        "attention": {
            "activation": "sigmoid",
            "scale_form": "log_length",
            "threshold": 1.0,
            "threshold_form": "log_length",
            "query_key_norm": "layer_norm",
            "value_norm": "l2",
            "learned_length_exponent": True,
            "output_norm": "gated_layer_norm",
        }
    },
    "fix_norm": {"embedding_norm": "fix_norm", "activation_function": "swiglu", "norm_type": "scale_norm"},
}


@pytest.mark.slow
@pytest.mark.parametrize("fields", SITES.values(), ids=SITES)
def test_translation_with_other_fields(fields, tmp_path):
    check_translator(save_translator(tmp_path / "model", **fields), tmp_path)


@pytest.mark.slow
def test_two_vocabularies_and_the_commands(tmp_path, capsys):
    folder = save_translator(tmp_path / "model", separate=True)
    check_translator(folder, tmp_path)
    run_command("translate", "--model", tmp_path / "onnx", "--runtime", "onnx", "--alignments", "--", TEXTS[0])
    found = capsys.readouterr().out
    run_command("translate", "--model", folder, "--alignments", "--", TEXTS[0])
    assert json.loads(found)["translation_text"] == json.loads(capsys.readouterr().out)["translation_text"]
    answer = EndpointHandler(str(tmp_path / "onnx"))({"inputs": TEXTS[0], "parameters": {"num_beams": 2}})
    model, tokenizers = load_translation_model(folder)
    assert answer == TranslationPipeline(model, *tokenizers)(TEXTS[0], num_beams=2)
    handler = load_handler(tmp_path / "onnx", precision="int8")
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[1, 8]])}
    fine, coarse = (load_onnx_translator(tmp_path / "onnx", name)[0](**inputs).logits for name in ("fp32", "int8"))
    assert torch.equal(handler.pipeline.model(**inputs).logits, coarse)
    assert not torch.equal(fine, coarse)


@pytest.mark.slow
@all_presets
def test_images(preset, tmp_path):
    folder = save_classifier(tmp_path / "model", preset)
    picture().save(folder / "mine.py", format="PNG")
    write_json(folder / "results.json", {"examples": [{"src": "mine.py"}]})
    model = disturb(folder, AutoModelForImageClassification, attn_implementation="eager")
    rows = {"data": write_images(tmp_path, "test", 6, ["cat", "dog", "horse"])}
    record = export_onnx(folder, tmp_path / "onnx", attentions=True, data=rows)
    assert record["about"]["examples"] == ["example_1.png"]
    assert not (tmp_path / "onnx" / "mine.py").exists()
    assert record["precisions"]["fp32"]["differing_drawn"] == {"class": 0}
    assert record["precisions"]["fp32"]["answers"]["class"]["differing"] == 0
    pixels = torch.randn(3, 3, 8, 12, generator=torch.manual_seed(4))
    with torch.no_grad():
        wanted = model(pixels, output_attentions=True)
        found = OnnxClassifier.from_folder(tmp_path / "onnx", "fp32")(pixels, output_attentions=True)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-3, atol=1e-5)
    assert_same_attentions(found.attentions, wanted.attentions)


def test_a_folder_is_not_written_over(tmp_path):
    folder = save_translator(tmp_path / "model")
    with pytest.raises(ValueError, match="choose another folder"):
        export_onnx(folder, folder)
