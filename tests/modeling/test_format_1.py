"""Folders of config.json format 1, written before the library was cut by task, open and compute the same logits.

Each file in format_1/ holds what such a folder had: config.json whole, the names and shapes of its weights, and a
checksum of the logits for weights and inputs that are made here, in float64.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM

import reluformers

FORMAT_1 = Path(__file__).parent / "format_1"
CIRCUMSTANCES = {"transformers_version", "dtype", "auto_map", "custom_pipelines"}
AUTO_CLASSES = {"seq2seq": AutoModelForSeq2SeqLM, "vision": AutoModelForImageClassification}


def make_weights(shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    weights = {}
    for number, (name, shape) in enumerate(sorted(shapes.items()), start=1):
        places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        weights[name] = ((places * 0.7 + number).sin() * 0.3).view(shape)
    return weights


def make_inputs(kind: str) -> dict[str, torch.Tensor]:
    if kind == "vision":
        return {"pixel_values": torch.arange(2 * 3 * 8 * 12, dtype=torch.float64).sin().view(2, 3, 8, 12)}
    return {
        "input_ids": torch.tensor([[5, 9, 14, 7, 2], [8, 21, 2, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "decoder_input_ids": torch.tensor([[1, 6, 11, 4], [1, 17, 3, 9]]),
    }


@pytest.fixture(params=AUTO_CLASSES)
def old_folder(request, tmp_path) -> tuple[str, dict, Path]:
    content = json.loads((FORMAT_1 / f"{request.param}.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content["config"]))
    save_file(make_weights(content["shapes"]), tmp_path / "model.safetensors", metadata={"format": "pt"})
    return request.param, content, tmp_path


@pytest.mark.parametrize("implementation", ["eager", "fused"])
def test_logits_are_those_of_before(old_folder, implementation):
    kind, content, folder = old_folder
    model, info = AUTO_CLASSES[kind].from_pretrained(
        folder, dtype=torch.float64, attn_implementation=implementation, output_loading_info=True
    )
    assert type(model).__module__.startswith(reluformers.__name__)
    assert not any(info.values())
    with torch.no_grad():
        logits = model.eval()(**make_inputs(kind)).logits
    expected = content["logits"]
    assert list(logits.shape) == expected["shape"]
    found = [logits.sum(), logits.abs().sum(), *logits.flatten()[:6], *logits.flatten()[-6:]]
    wanted = [expected["sum"], expected["absolute_sum"], *expected["first"], *expected["last"]]
    torch.testing.assert_close(torch.stack(found), torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-11)


def test_saving_again_keeps_names_and_shapes(old_folder, tmp_path_factory):
    kind, content, folder = old_folder
    model = AUTO_CLASSES[kind].from_pretrained(folder)
    again = tmp_path_factory.mktemp("again")
    model.save_pretrained(again)
    config = json.loads((again / "config.json").read_text())
    # where the code lies, and what wrote it, may change
    for name in content["config"].keys() - CIRCUMSTANCES:
        before = content["config"][name]
        if isinstance(before, dict):  # later fields have their defaults
            assert before.items() <= config[name].items()
        else:
            assert config[name] == before, name
    assert AUTO_CLASSES[kind].from_pretrained(again).state_dict().keys() == model.state_dict().keys()
