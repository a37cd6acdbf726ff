"""Runs that go on from a checkpoint: the same weights as without a stop, and refusals of what does not fit."""

import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from builders.translation_runs import copy_as_interrupted, make_recipe, training_logs, write_toy_files
from reluformers.errors import UserError
from reluformers.training.checkpoints import check_checkpoint, checkpoint_to_resume
from reluformers.translation import TranslationTrainer, preparation, train_translation
from reluformers.translation.tokenization import train_tokenizer

PLATEAU = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "schedule": "warmup_then_plateau",
    "lr_scheduler_kwargs": {"patience": 1, "min_lr": 0.0},
}
ACCUMULATED = {"schedule": "noam", "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_toy_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run of 2 epochs, its folder and results."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train_translation(make_recipe(files), folder)


@pytest.mark.parametrize("options", [PLATEAU, ACCUMULATED], ids=["plateau", "accumulated"])
def test_a_resumed_run_ends_with_the_same_weights(files, tmp_path, options):
    options = {
        "save_strategy": "steps",
        "save_steps": 2,
        "warmup_steps": 1,
        "max_tokens": 200,
        "num_train_epochs": 1.5,
        **options,
    }
    train_translation(make_recipe(files, **options), tmp_path / "whole")
    copy_as_interrupted(tmp_path / "whole", tmp_path / "resumed")
    train_translation(make_recipe(files, **options), tmp_path / "resumed", resume="last")
    results = {name: json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "resumed")}
    # the time of the first start is lost with it
    assert results["resumed"].keys() == results["whole"].keys() - {"training_seconds"}
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert whole.keys() == resumed.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, resumed[name]), name
    rates = [[entry["learning_rate"] for entry in training_logs(tmp_path / name)] for name in ("whole", "resumed")]
    assert rates[0] == rates[1]


def test_a_folder_that_is_in_use_is_refused(files, finished, tmp_path):
    with pytest.raises(UserError, match="is not empty; go on with --resume"):
        train_translation(make_recipe(files), finished[0])
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        train_translation(make_recipe(files), tmp_path / "file")


def test_resuming_needs_a_checkpoint_of_the_same_model(files, finished, tmp_path):
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        train_translation(make_recipe(files), tmp_path / "nothing", resume="last")
    other = make_recipe(files)
    other.model["d_model"] = 32
    with pytest.raises(UserError, match=r"the run has model.d_model 16, but 32 is asked for"):
        train_translation(other, finished[0], resume="last")


def test_a_checkpoint_of_another_folder_is_enough(files, finished, tmp_path):
    checkpoint = max(finished[0].glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    recipe = make_recipe(files)
    results = train_translation(recipe, tmp_path / "run", resume=tmp_path / checkpoint.name)
    assert results["steps"] == finished[1]["steps"]
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        assert torch.equal(weights[name], weight), name


def test_resuming_with_another_tokenizer_is_refused(files, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    for checkpoint in (tmp_path / "run").glob("checkpoint-*"):
        train_tokenizer([["a b c"]], 30).save_pretrained(checkpoint)
    recipe = make_recipe(files)
    with pytest.raises(UserError, match="vocab_size 100, but the tokenizer beside it makes"):
        train_translation(recipe, tmp_path / "run", resume="last")


def test_a_finished_run_is_not_trained_on(files, tmp_path, monkeypatch):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "average_last": 2, "max_tokens": 200}
    first = train_translation(make_recipe(files, **options), tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    # left behind by a longer run
    shutil.copytree(tmp_path / "run" / "checkpoint-1", tmp_path / "run" / "checkpoint-9")
    (tmp_path / "run" / "checkpoint-9" / "optimizer.pt").unlink()
    monkeypatch.setattr(TranslationTrainer, "train", None)
    again = train_translation(make_recipe(files, **options), tmp_path / "run", resume="last")
    assert again == first
    for name, weight in load_file(tmp_path / "run" / "model.safetensors").items():
        assert torch.equal(weights[name], weight), name


def test_a_run_that_its_schedule_ended_is_not_trained_on(files, tmp_path, monkeypatch):
    options = PLATEAU | {"eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 9}
    options["lr_scheduler_kwargs"] = {"min_lr": 1.0}
    first = train_translation(make_recipe(files, **options), tmp_path / "run")
    assert first["steps"] == 1
    monkeypatch.setattr(TranslationTrainer, "train", None)
    assert train_translation(make_recipe(files, **options), tmp_path / "run", resume="last") == first


def test_the_measured_length_of_qknorm_is_read_from_the_checkpoint(files, tmp_path, monkeypatch):
    recipe = make_recipe(files, preset="qknorm", max_steps=1, save_strategy="steps", save_steps=1)
    recipe.model["attention"] = {"preset": "qknorm"}
    given = copy.deepcopy(recipe)
    train_translation(recipe, tmp_path / "run")
    assert recipe == given
    assert "scale_length:" not in (tmp_path / "run" / "recipe.yaml").read_text()
    length = AutoConfig.from_pretrained(tmp_path / "run").attention.scale_length
    monkeypatch.setattr(preparation, "scale_length", lambda train: length + 7)
    recipe.training["max_steps"] = 2
    train_translation(recipe, tmp_path / "run", resume="last")
    assert AutoConfig.from_pretrained(tmp_path / "run").attention.scale_length == length
    other = copy.deepcopy(recipe)
    other.model["attention"] = {"preset": "qknorm", "score": "dot"}
    with pytest.raises(UserError, match=r"the run has model.attention"):
        train_translation(other, tmp_path / "run", resume="last")


def test_only_a_checkpoint_is_one(finished, tmp_path):
    for wrong in (finished[0], "training.max_steps=10", finished[0] / "checkpoint-99"):
        with pytest.raises(UserError, match="is no checkpoint") as caught:
            checkpoint_to_resume(tmp_path, wrong)
        assert "delete" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
@pytest.mark.parametrize("damage", ["cut short", "missing"])
def test_a_damaged_checkpoint_is_named_and_passed_over(finished, tmp_path, caplog, name, damage):
    shutil.copytree(finished[0], tmp_path / "run")
    *_, intact, newest = sorted((tmp_path / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    check_checkpoint(newest)
    if damage == "missing":
        (newest / name).unlink()
    else:
        content = (newest / name).read_bytes()
        (newest / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"{name}: is (missing|cut short).*resume from another") as caught:
        checkpoint_to_resume(tmp_path / "run", newest)
    assert "\n" not in str(caught.value)
    assert checkpoint_to_resume(tmp_path / "run", "last") == intact
    assert "passing over a damaged checkpoint" in caplog.text
