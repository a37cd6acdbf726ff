"""A saved folder opens anywhere: its code comes along, and computes with its own functions."""

import ast
import re
import symtable
from pathlib import Path

import pytest
import torch
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from builders.clean_processes import run_clean
from builders.models import FAMILY_MODELS, KINDS, MODELS, build_model, draw_pairs
from reluformers import ReLUFormerConfig
from reluformers.families import FAMILIES
from reluformers.saved_code.payload import payload_files


@pytest.mark.parametrize("models", [FAMILY_MODELS, pytest.param(MODELS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_preset_opens_in_a_clean_process_with_equal_logits(tmp_path, models):
    for kind, preset in models:
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
        assert not {"reluformers", "reluformers_kernels"} & set(sys.modules)
    """
    output = run_clean(code, tmp_path, *(str(tmp_path / f"{kind}-{preset}") for kind, preset in models))
    assert set(output.split()[1::2]) == {config_class.model_type for config_class in FAMILIES}


CLOSURES = {
    "seq2seq": {"configuration_seq2seq.py", "attention.py", "modeling_seq2seq.py", "pipeline_translation.py"},
    "vision": {"configuration_vision.py", "attention.py", "modeling_vision.py"},
}


@pytest.mark.parametrize("kind", CLOSURES)
def test_folder_holds_the_closure_and_nothing_else(kind, tmp_path):
    build_model("relu", kind).save_pretrained(tmp_path)
    written = {path.name for path in tmp_path.glob("*.py")}
    assert written == CLOSURES[kind]
    for path in tmp_path.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path.name
                assert f"{node.module}.py" in written, path.name


def test_configuration_alone_brings_the_code_too(tmp_path):
    ReLUFormerConfig().save_pretrained(tmp_path)
    assert (tmp_path / "modeling_seq2seq.py").is_file()


def test_two_versions_of_the_code_side_by_side(tmp_path):
    """The old export doubles its weights; each model must go on with the function of its own files."""
    model, batch = build_model("relu", attention={"activation": "relu2"}), draw_pairs()
    new, old = tmp_path / "new", tmp_path / "old"
    for folder in (new, old):
        model.save_pretrained(folder)
    path = old / "attention.py"
    text = path.read_text()
    line = "functional.relu(z).square()"
    assert text.count(line) == 1
    path.write_text(text.replace(line, f"2 * {line}"))

    def load(folder: Path) -> torch.nn.Module:
        name = "modeling_seq2seq.Seq2SeqTransformerForConditionalGeneration"
        return get_class_from_dynamic_module(name, str(folder)).from_pretrained(folder).eval()

    batch["output_attentions"] = True  # else compiled code computes activations of its names
    expected = model(**batch).logits
    first = load(new)
    second = load(old)
    for loaded, is_equal in ((first, True), (second, False), (load(new), True), (first, True)):
        assert torch.equal(loaded(**batch).logits, expected) == is_equal
    torch.testing.assert_close(second(**batch).encoder_attentions[0], 2 * first(**batch).encoder_attentions[0])


HEADING = re.compile(r"^# -+\n# ((?:configuration|modeling)/\w+\.py)$", re.MULTILINE)


def sections_of(text: str) -> dict[str, str]:
    """Text by the source file that a section names, and what stands before the first one under "imports"."""
    first, *rest = HEADING.split(text)
    return {"imports": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def collisions(text: str) -> set[str]:
    """Names that mean different things in two parts of a file, or in two of its imports."""
    meanings = {}
    for part, section in sections_of(text).items():
        for statement in map(ast.unparse, ast.parse(section).body):
            for symbol in symtable.symtable(statement, part, "exec").get_symbols():
                if symbol.is_assigned() or symbol.is_imported():
                    meanings.setdefault(symbol.get_name(), {})[statement] = part
    return {
        name
        for name, parts in meanings.items()
        if len(parts) > 1 and (len(set(parts.values())) > 1 or "imports" in parts.values())
    }


@pytest.mark.parametrize("kind", [*CLOSURES, "exchanged"])
def test_no_name_means_two_things_in_one_file(kind):
    for name, text in payload_files([f"configuration_{kind}", f"modeling_{kind}"]).items():
        assert not collisions(text), name
    section = "# ---\n# modeling/{}.py\nlogger = 1\nLIMIT = {}\n"
    assert collisions(section.format("one", 1) + section.format("two", 2)) == {"LIMIT"}
    assert collisions("from a import LIMIT\n" + section.format("one", 1)) == {"LIMIT"}
    assert collisions("from a import logging\nimport logging\n") == {"logging"}
