"""The command `train` with a recipe of translation: from files to a model, its errors, and several processes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from builders.commands import launch, refusal_of
from builders.translation_runs import make_recipe


@pytest.fixture
def recipe_file(tmp_path):
    """A recipe with one batch to the epoch."""
    pairs = {"red dog runs": "nur dog", "big cat eats": "ste tac", "one red cat": "tac der", "two big dogs": "sgo gib"}
    rows = [{"translation": {"en": source, "de": target}} for source, target in pairs.items()] * 2
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text(text)
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "validation")}
    training = {"max_steps": 2, "learning_rate": 1e-2, "save_strategy": "no", "evaluate_bleu": False}
    recipe = make_recipe(files, max_tokens=1000, max_grad_norm=1.0, **training)
    recipe.model |= {"dropout": 0.0, "attention_dropout": 0.0}
    recipe.tokenizer.vocab_size = 60
    recipe.save(tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.train=no_such_file.jsonl"], "no_such_file.jsonl"),
        (["data.validation=null"], "validation"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(recipe_file, tmp_path, capsys, arguments, message):
    assert message in refusal_of(capsys, "train", recipe_file, "--output_dir", tmp_path / "out", *arguments)


@pytest.mark.slow
def test_two_processes_train_like_one(recipe_file, tmp_path):
    """Compare loss, gradient norm and weights from one batch of 8 rows and from 2 × 4 rows."""
    histories, weights, printed = {}, {}, {}
    for name, processes in (("one", 1), ("two", 2)):
        printed[name] = launch("train.py", processes, recipe_file, "--output_dir", tmp_path / name)
        history = json.loads((tmp_path / name / "log_history.json").read_text())
        histories[name] = [entry for entry in history if "loss" in entry]
        weights[name] = load_file(tmp_path / name / "model.safetensors")
    assert len(histories["two"]) == 2
    for one, two in zip(histories["one"], histories["two"], strict=True):
        for key in ("loss", "grad_norm", "regularization_loss", "null_rate", "learning_rate"):
            assert two[key] == pytest.approx(one[key], rel=1e-4), key
    for name, weight in weights["one"].items():
        torch.testing.assert_close(weights["two"][name], weight, rtol=1e-3, atol=1e-5)
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-4)
    assert two["validation_bleu"] == pytest.approx(one["validation_bleu"], abs=0.01)
    assert printed["two"].count("training set: kept") == 1
