"""Runs of both tasks from the command line, in one process and in two: the same numbers, and going on."""

import json

import pytest
import torch
from safetensors.torch import load_file

from builders.commands import launch
from builders.image_runs import make_image_recipe, write_images
from builders.translation_runs import make_recipe, training_logs


def translation_recipe(folder):
    """A recipe with one batch to the epoch."""
    pairs = {"red dog runs": "nur dog", "big cat eats": "ste tac", "one red cat": "tac der", "two big dogs": "sgo gib"}
    rows = [{"translation": {"en": source, "de": target}} for source, target in pairs.items()] * 2
    files = {name: str(folder / f"{name}.jsonl") for name in ("train", "validation")}
    for path in files.values():
        with open(path, "w") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    options = {"max_steps": 2, "learning_rate": 1e-2, "evaluate_bleu": False, "max_grad_norm": 1.0}
    recipe = make_recipe(files, max_tokens=1000, save_strategy="steps", save_steps=1, **options)
    recipe.model |= {"dropout": 0.0, "attention_dropout": 0.0}
    recipe.tokenizer.vocab_size = 60
    return recipe


def image_recipe(folder):
    """A recipe whose 61 images make seven batches of 8 and one of 5, which two processes share as 3 + 2."""
    files = {name: write_images(folder, name, rows) for name, rows in (("train", 61), ("validation", 9))}
    return make_image_recipe(files, max_steps=8, ema_decay=0.8, save_strategy="steps", save_steps=5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [translation_recipe, image_recipe])
def test_two_processes_train_like_one(make, tmp_path):
    """Loss, gradient norm and weights of whole batches and of halves, and of a run that goes on."""
    is_images = make is image_recipe
    make(tmp_path).save(tmp_path / "recipe.yaml")
    logs, weights, results = [], [], []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        size = [f"training.per_device_train_batch_size={8 // processes}"] if is_images else []
        command = ("train.py", processes, tmp_path / "recipe.yaml", *size, "--output_dir", folder)
        launch(*command)
        logs.append(training_logs(folder))
        weights.append(load_file(folder / "model.safetensors"))
        results.append(json.loads((folder / "results.json").read_text()))
    launch(*command, "--resume", folder / f"checkpoint-{5 if is_images else 1}")
    for name, weight in load_file(folder / "model.safetensors").items():
        assert torch.equal(weight, weights[1][name]), name
    # the processes of the last batch of images weigh the same, whatever they hold
    for one, two in list(zip(*logs, strict=True))[: 7 if is_images else 2]:
        for key in ("loss", "grad_norm", "null_rate", "learning_rate"):
            assert two[key] == pytest.approx(one[key], rel=1e-4), key
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-2, atol=1e-3 if is_images else 1e-5)
    assert results[1]["validation_loss"] == pytest.approx(results[0]["validation_loss"], rel=1e-2)
    score = "validation_accuracy" if is_images else "validation_bleu"
    assert results[1][score] == pytest.approx(results[0][score], abs=0.01)
