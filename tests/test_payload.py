"""A saved folder opens anywhere: its code comes along, and computes with its own functions."""

import ast
import json
from pathlib import Path

import pytest
import torch
from reluformers.modeling import attention
from transformers import AutoModelForSeq2SeqLM
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from builders.clean_processes import run_clean
from builders.models import FAMILY_MODELS, KINDS, build_model, draw_pairs
from reluformers import ReLUFormerConfig
from reluformers.families import FAMILIES
from reluformers.payload import find_payload_file, payload_files


@pytest.fixture(autouse=True)
def limit_of_the_copies(monkeypatch):
    """Logits are compared bit by bit, and copies of the code know nothing of what tests have changed here."""
    monkeypatch.setattr(attention, "SHORT_KEYS", 128)


def test_every_family_opens_in_a_clean_process_with_equal_logits(tmp_path):
    for kind, preset in FAMILY_MODELS:
        folder = tmp_path / f"{kind}-{preset}"
        model, batch = build_model(preset, kind), KINDS[kind].draw()
        model.save_pretrained(folder)
        torch.save({"batch": batch, "logits": model(**batch).logits}, folder / "expected.pt")
    code = """
        import torch
        from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, AutoModelForSeq2SeqLM

        for folder in sys.argv[1:]:
            expected = torch.load(folder + "/expected.pt")
            is_vision = "pixel_values" in expected["batch"]
            auto_class = AutoModelForImageClassification if is_vision else AutoModelForSeq2SeqLM
            for path in (folder, folder + "-again"):
                model = auto_class.from_pretrained(path, trust_remote_code=True)
                torch.testing.assert_close(model(**expected["batch"]).logits, expected["logits"])
                if not is_vision:
                    model.generate(input_ids=expected["batch"]["input_ids"], num_beams=2, max_new_tokens=4)
                model.save_pretrained(folder + "-again")
            AutoModel.from_pretrained(path, trust_remote_code=True)
            print(type(model).__name__, AutoConfig.from_pretrained(path, trust_remote_code=True).model_type)
            files = type(model).__module__.rpartition(".")[0]  # kernels load where they cannot run
            assert importlib.import_module(f"{files}.triton_attention").triton is None
        assert "reluformers" not in sys.modules
    """
    output = run_clean(code, tmp_path, *(str(tmp_path / f"{kind}-{preset}") for kind, preset in FAMILY_MODELS))
    assert output.split()[1::2] == [config_class.model_type for config_class in FAMILIES]


CLOSURES = {
    "seq2seq": (
        "reluformer",
        {
            "AutoConfig": "configuration_seq2seq.ReLUFormerConfig",
            "AutoModel": "modeling_seq2seq.ReLUFormerModel",
            "AutoModelForSeq2SeqLM": "modeling_seq2seq.ReLUFormerForConditionalGeneration",
        },
        {"configuration_vision.py", "modeling_vision.py", "patch_embeddings.py"},
        {"pipeline_translation.py", "handler.py"},
    ),
    "vision": (
        "relu-vit",
        {
            "AutoConfig": "configuration_vision.ReLUViTConfig",
            "AutoModel": "modeling_vision.ReLUViTModel",
            "AutoModelForImageClassification": "modeling_vision.ReLUViTForImageClassification",
        },
        {"configuration_seq2seq.py", "modeling_seq2seq.py", "cache.py", "embeddings.py", "pipeline_translation.py"},
        {"handler.py"},
    ),
}


@pytest.mark.parametrize("kind", CLOSURES)
def test_folder_holds_the_closure_and_nothing_else(kind, tmp_path):
    preset, auto_map, foreign, own = CLOSURES[kind]
    build_model(preset, kind).save_pretrained(tmp_path)
    written = {path.name for path in tmp_path.glob("*.py")}
    assert written == set(payload_files([target.partition(".")[0] for target in auto_map.values()]))
    assert own <= written
    assert not written & foreign
    for path in tmp_path.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path.name
                assert f"{node.module}.py" in written, path.name
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == auto_map


def test_configuration_alone_brings_the_code_too(tmp_path):
    ReLUFormerConfig().save_pretrained(tmp_path)
    assert (tmp_path / "modeling_seq2seq.py").is_file()
    with pytest.raises(FileNotFoundError, match=r"no_such_module\.py"):
        find_payload_file("no_such_module")


@pytest.mark.parametrize("folder", ["configuration", "modeling"])
def test_every_file_says_under_which_licence_it_travels(folder):
    files = sorted((Path(__file__).parents[1] / folder).glob("*.py"))
    assert len(files) > 2
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()[:2]
        assert lines == ["# Copyright 2026 the reluformers authors", "# SPDX-License-Identifier: Apache-2.0"], path


def test_weights_are_safetensors_alone(tmp_path):
    build_model("rela-g").save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".py", ".json", ".safetensors"}


def test_two_versions_of_the_code_side_by_side(tmp_path):
    """The old export doubles its weights; each model must go on with the function of its own files."""
    model, batch = build_model("relu", attention={"activation": "relu2"}), draw_pairs()
    new, old = tmp_path / "new", tmp_path / "old"
    for folder in (new, old):
        model.save_pretrained(folder)
    path = old / "attention_functions.py"
    text = path.read_text()
    line = "_apply(lambda z: functional.relu(z).square(), scores, mask)"
    assert text.count(line) == 1
    path.write_text(text.replace(line, f"2 * {line}"))

    def load(folder: Path) -> torch.nn.Module:
        name = "modeling_seq2seq.Seq2SeqTransformerForConditionalGeneration"
        return get_class_from_dynamic_module(name, str(folder)).from_pretrained(folder).eval()

    expected = model(**batch).logits
    first = load(new)
    second = load(old)
    for loaded, is_equal in ((first, True), (second, False), (load(new), True), (first, True)):
        assert torch.equal(loaded(**batch).logits, expected) == is_equal
    doubled = second(**batch, output_attentions=True).encoder_attentions[0]
    torch.testing.assert_close(doubled, 2 * first(**batch, output_attentions=True).encoder_attentions[0])


def test_installed_library_opens_a_folder_without_trust(tmp_path):
    model = build_model("qknorm")
    model.save_pretrained(tmp_path)
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is type(model)
