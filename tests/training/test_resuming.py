"""Runs that go on from a checkpoint: the same weights as without a stop, and refusals of what does not fit."""

import copy
import json
import multiprocessing
import random
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from builders.translation_runs import (
    assert_same_weights,
    check_resuming,
    copy_as_interrupted,
    make_recipe,
    training_logs,
)
from reluformers.training.checkpoints import check_checkpoint, checkpoint_to_resume
from reluformers.training.run import check_same_run
from reluformers.translation import run as translation_run
from reluformers.translation.run import train_translation
from reluformers.translation.trainer import TranslationTrainer

pytestmark = pytest.mark.xdist_group("resuming")

PLATEAU = {
    "eval_on_start": True,
    "schedule": "warmup_then_plateau",
    "lr_scheduler_kwargs": {"patience": 1, "min_lr": 0.0},
    "max_tokens": 200,
    "save_strategy": "steps",
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run of 2 epochs, its folder and results."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train_translation(make_recipe(files, average_last=2), folder)


def without_time(results: dict) -> dict:
    """What a start from a checkpoint says too: the time of the first start is lost with it."""
    return {name: value for name, value in results.items() if name != "training_seconds"}


def test_a_resumed_run_ends_with_the_same_weights(files, tmp_path):
    """A stop at the end of an epoch loses neither its score, on which the rate depends, nor its line of the log."""
    options = PLATEAU | {"eval_strategy": "epoch", "logging_strategy": "epoch", "warmup_steps": 1}
    recipe = make_recipe(files, gradient_accumulation_steps=2, **options)
    whole, resumed = check_resuming(train_translation, recipe, tmp_path, step=3)
    results = [json.loads((folder / "results.json").read_text()) for folder in (whole, resumed)]
    assert results[1].keys() == without_time(results[0]).keys()
    state = json.loads((whole / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["epoch"] == 1
    assert [entry["step"] for entry in state["log_history"] if "eval_bleu" in entry] == [0, 3]
    within = copy_as_interrupted(whole, tmp_path / "within", step=2)
    train_translation(recipe, within, resume="last")
    assert_same_weights(whole, within)
    for folder in (whole, resumed, within):
        assert len(torch.load(folder / "checkpoint-6" / "scheduler.pt")["scores"]) == 2


@pytest.mark.parametrize(
    ("named", "split", "change"),
    [
        ("data.train (rows)", "train", lambda lines: lines[:-1]),
        ("data.train (sha256)", "train", lambda lines: lines[::-1]),
        ("data.validation (sha256)", "validation", lambda lines: [lines[-1], *lines[:-1]]),
    ],
)
def test_other_data_are_refused_by_name(files, finished, tmp_path, named, split, change):
    sides = {side: tmp_path / Path(path).name for side, path in files[split].items()}
    for side, path in sides.items():
        path.write_text("\n".join(change(Path(files[split][side]).read_text().splitlines())) + "\n")
    recipe = make_recipe(files | {split: {side: str(path) for side, path in sides.items()}})
    before = (finished[0] / "recipe.yaml").read_bytes()
    with pytest.raises(ValueError, match=re.escape(named)):
        train_translation(recipe, finished[0], resume="last")
    assert (finished[0] / "recipe.yaml").read_bytes() == before


def test_what_may_change_takes_effect(files, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    for name in ("README.md", "evaluation.json"):
        (tmp_path / "run" / name).write_text("of the shorter training")
    options = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 3}
    train_translation(make_recipe(files, **options), tmp_path / "run", resume="last")
    steps = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert steps == {f"checkpoint-{step}" for step in (3, 6, 8, 10, 12)}
    for name in ("README.md", "evaluation.json"):  # Otherwise the old scores would pass for those of the new weights.
        assert not (tmp_path / "run" / name).exists()
        assert (tmp_path / "run" / f"{name}.old").read_text() == "of the shorter training"
    logs = training_logs(tmp_path / "run")
    assert [entry["step"] for entry in logs] == [1, 2, 3, 4, 5, 6, 9, 12]
    # the schedule is that of the new length: 5e-3 · (1 − updates before / 12)
    assert [entry["learning_rate"] for entry in logs[-2:]] == pytest.approx([5e-3 * 4 / 12, 5e-3 / 12])
    with pytest.raises(ValueError, match="12 updates"):
        train_translation(make_recipe(files), tmp_path / "run", resume="last")


def test_other_versions_are_said_and_another_training_is_refused(files, finished, caplog):
    checkpoint = finished[0] / "checkpoint-6"
    now = check_checkpoint(checkpoint)
    owner = type(make_recipe(files)).arguments_class
    check_same_run(checkpoint, now, owner)
    assert not caplog.text
    check_same_run(checkpoint, {**now, "versions": {**now["versions"], "torch": "1.0"}}, owner)
    assert str(now["versions"]) in caplog.text
    rate, width = copy.deepcopy(now["recipe"]), copy.deepcopy(now["recipe"])
    rate["training"]["learning_rate"] = 1e-3
    width["model"]["d_model"] = 32
    for change, named in (
        ({"processes": 2}, "but 2 is asked for"),
        ({"recipe": rate}, "training.learning_rate"),
        ({"recipe": width}, "model.d_model"),
    ):
        with pytest.raises(ValueError, match=named):
            check_same_run(checkpoint, now | change, owner)


def test_a_folder_is_neither_written_over_nor_resumed_without_a_whole_checkpoint(files, finished, tmp_path):
    with pytest.raises(ValueError, match="--resume"):
        train_translation(make_recipe(files), finished[0])
    for wrong in (finished[0], finished[0] / "checkpoint-99", "last"):
        with pytest.raises(ValueError, match="no complete checkpoint"):
            checkpoint_to_resume(tmp_path, wrong)


def test_a_finished_run_is_not_trained_on(files, finished, tmp_path, monkeypatch):
    """Take the same rows under other names for the same data."""
    monkeypatch.setattr(TranslationTrainer, "training_step", None)
    run = shutil.copytree(finished[0], tmp_path / "run")
    # left behind by a longer run
    shutil.copytree(run / "checkpoint-3", run / "checkpoint-9")
    (run / "checkpoint-9" / "optimizer.pt").unlink()
    renamed = {side: shutil.copy(path, tmp_path) for side, path in files["train"].items()}
    recipe = make_recipe(files | {"train": renamed}, average_last=2)
    assert train_translation(recipe, run, resume="last") == without_time(finished[1])
    assert_same_weights(finished[0], run)


def test_a_run_that_its_schedule_ended_is_not_trained_on(files, tmp_path, monkeypatch):
    options = {"eval_strategy": "steps", "eval_steps": 1, "lr_scheduler_kwargs": {"min_lr": 1.0}}
    recipe = make_recipe(files, **PLATEAU | options)
    first = train_translation(recipe, tmp_path)
    assert first["steps"] == 1
    monkeypatch.setattr(TranslationTrainer, "training_step", None)
    assert train_translation(recipe, tmp_path, resume="last") == without_time(first)


def test_the_measured_length_of_qknorm_is_read_from_the_checkpoint(files, tmp_path, monkeypatch):
    recipe = make_recipe(files, preset="qknorm", max_steps=1, save_strategy="steps", save_steps=1)
    recipe.model["attention"] = {"preset": "qknorm"}
    given = copy.deepcopy(recipe)
    train_translation(recipe, tmp_path / "run")
    assert recipe == given
    assert "scale_length:" not in (tmp_path / "run" / "recipe.yaml").read_text()
    length = AutoConfig.from_pretrained(tmp_path / "run").attention.scale_length
    monkeypatch.setattr(translation_run, "scale_length", lambda train: length + 7)
    recipe.training["max_steps"] = 2
    train_translation(recipe, tmp_path / "run", resume="last")
    assert AutoConfig.from_pretrained(tmp_path / "run").attention.scale_length == length


def train_on(recipe, folder: Path) -> None:
    train_translation(recipe, folder, resume="auto", report=lambda line: None)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_weights(files, tmp_path):
    options = {"max_steps": 12, "save_strategy": "steps", "save_steps": 1, "max_tokens": 200, "evaluate_bleu": False}
    recipe, context, rng = make_recipe(files, **options), multiprocessing.get_context("fork"), random.Random(5)
    folders = [tmp_path / name for name in ("whole", "killed")]
    for step in range(0, 12, 2):
        process = context.Process(target=train_on, args=(recipe, folders[1]))
        process.start()
        while process.is_alive() and not (folders[1] / f"checkpoint-{step + 1}").exists():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))  # perhaps while a checkpoint is written
        process.kill()
        process.join()
    for folder in folders:
        process = context.Process(target=train_on, args=(recipe, folder))
        process.start()
        process.join()
        assert process.exitcode == 0
    assert_same_weights(*folders)
