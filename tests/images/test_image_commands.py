"""The command `train` with a recipe of images: from files to a model, its errors, and several processes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from builders.commands import launch, run_command
from builders.image_runs import make_image_recipe, write_images
from builders.translation_runs import training_logs


@pytest.fixture
def recipe_file(tmp_path):
    """A recipe whose 61 images make seven batches of 8 and one of 5."""
    files = {name: write_images(tmp_path, name, rows) for name, rows in (("train", 61), ("validation", 9))}
    recipe = make_image_recipe(files, max_steps=8, ema_decay=0.8, save_strategy="steps", save_steps=5)
    recipe.save(tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


def test_a_run_from_files_to_a_model(recipe_file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    options = ("training.max_steps=1", "model.preset=rela-g", "augmentation.crop=pad", "data.train=train.parquet")
    monkeypatch.chdir(tmp_path)
    run_command("train", recipe_file, "--output_dir", out, *options)
    assert "validation: accuracy" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["model_type"] == "rela_vit"
    assert json.loads((out / "results.json").read_text())["steps"] == 1


@pytest.mark.slow
def test_two_processes_train_like_one(recipe_file, tmp_path):
    """Compare loss, gradient norm and averaged weights from batches of 8 images and of 2 × 4, and a resumed run."""
    histories, weights, results = {}, {}, {}
    for name, processes in (("one", 1), ("two", 2)):
        size = f"training.per_device_train_batch_size={8 // processes}"
        command = ("train.py", processes, recipe_file, size, "--output_dir", tmp_path / name)
        launch(*command)
        histories[name] = training_logs(tmp_path / name)
        weights[name] = load_file(tmp_path / name / "model.safetensors")
        results[name] = json.loads((tmp_path / name / "results.json").read_text())
    launch(*command, "--resume", tmp_path / name / "checkpoint-5")
    for key, weight in load_file(tmp_path / name / "model.safetensors").items():
        assert torch.equal(weight, weights[name][key]), key
    assert len(histories["two"]) == 8
    # the last batch holds 3 + 2 images, whose processes weigh the same
    for one, two in zip(histories["one"][:-1], histories["two"], strict=False):
        for key in ("loss", "grad_norm", "null_rate", "learning_rate"):
            assert two[key] == pytest.approx(one[key], rel=1e-4), key
    for key, weight in weights["one"].items():
        torch.testing.assert_close(weights["two"][key], weight, rtol=1e-2, atol=1e-3)
    assert results["two"]["validation_loss"] == pytest.approx(results["one"]["validation_loss"], rel=1e-2)
    assert results["two"]["validation_accuracy"] == results["one"]["validation_accuracy"]
