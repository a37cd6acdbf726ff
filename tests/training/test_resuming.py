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

from builders.translation_runs import assert_same_weights, check_resuming, make_recipe, training_logs
from reluformers.training.checkpoints import check_checkpoint, checkpoint_to_resume
from reluformers.training.run import check_same_run
from reluformers.translation import run as translation_run
from reluformers.translation.run import train_translation
from reluformers.translation.trainer import TranslationTrainer

PLATEAU = {
    "eval_on_start": True,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "schedule": "warmup_then_plateau",
    "lr_scheduler_kwargs": {"patience": 1, "min_lr": 0.0},
}
ACCUMULATED = {"schedule": "noam", "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run of 2 epochs, its folder and results."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train_translation(make_recipe(files), folder)


def without_time(results: dict) -> dict:
    """What a start from a checkpoint says too: the time of the first start is lost with it."""
    return {name: value for name, value in results.items() if name != "training_seconds"}


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
    whole, resumed = check_resuming(train_translation, make_recipe(files, **options), tmp_path)
    results = [json.loads((folder / "results.json").read_text()) for folder in (whole, resumed)]
    assert results[1].keys() == without_time(results[0]).keys()


def test_an_evaluation_due_at_a_checkpoint_is_saved_with_it(files, tmp_path):
    """A stop at the end of an epoch loses neither its score, on which the rate depends, nor its line of the log."""
    options = PLATEAU | {"eval_on_start": False, "eval_strategy": "epoch", "logging_strategy": "epoch"}
    options |= {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1}
    options |= {"lr_scheduler_kwargs": {"patience": 1, "min_lr": 0.0, "factor": 0.1}}
    whole, resumed = check_resuming(train_translation, make_recipe(files, **options), tmp_path, step=3)
    state = json.loads((whole / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["epoch"] == 1
    assert [entry["step"] for entry in state["log_history"] if "eval_bleu" in entry] == [3]
    scores = [torch.load(folder / "checkpoint-9" / "scheduler.pt")["scores"] for folder in (whole, resumed)]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 3


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"learning_rate": 1e-3}, "training.learning_rate"),
        ({}, "model.d_model"),
    ],
)
def test_another_training_is_refused_by_name(files, finished, options, key):
    before, recipe = (finished[0] / "recipe.yaml").read_bytes(), make_recipe(files, **options)
    recipe.model["d_model"] = 16 if options else 32
    with pytest.raises(ValueError, match=key):
        train_translation(recipe, finished[0], resume="last")
    assert (finished[0] / "recipe.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("named", "split", "change"),
    [
        ("data.train (rows)", "train", lambda lines: lines[:-1]),
        ("data.train (sha256)", "train", lambda lines: lines[::-1]),
        ("data.validation (sha256)", "validation", lambda lines: [lines[-1], *lines[:-1]]),
        (None, "train", lambda lines: lines),  # the same rows under other names are the same data
    ],
)
def test_other_data_are_refused_by_name(files, finished, tmp_path, named, split, change):
    sides = {side: tmp_path / Path(path).name for side, path in files[split].items()}
    for side, path in sides.items():
        path.write_text("\n".join(change(Path(files[split][side]).read_text().splitlines())) + "\n")
    recipe = make_recipe(files | {split: {side: str(path) for side, path in sides.items()}})
    run = shutil.copytree(finished[0], tmp_path / "run")
    if named is None:
        assert train_translation(recipe, run, resume="last") == without_time(finished[1])
    else:
        with pytest.raises(ValueError, match=re.escape(named)):
            train_translation(recipe, run, resume="last")


def test_what_may_change_takes_effect(files, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    options = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 3}
    train_translation(make_recipe(files, **options), tmp_path / "run", resume="last")
    steps = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert steps == {f"checkpoint-{step}" for step in (3, 6, 8, 10, 12)}
    logs = training_logs(tmp_path / "run")
    assert [entry["step"] for entry in logs] == [1, 2, 3, 4, 5, 6, 9, 12]
    # the schedule is that of the new length: 5e-3 · (1 − updates before / 12)
    assert [entry["learning_rate"] for entry in logs[-2:]] == pytest.approx([5e-3 * 4 / 12, 5e-3 / 12])
    with pytest.raises(ValueError, match="12 updates"):
        train_translation(make_recipe(files), tmp_path / "run", resume="last")


def test_other_versions_are_said_and_another_number_of_processes_is_refused(files, finished, tmp_path, caplog):
    checkpoint = finished[0] / "checkpoint-6"
    now = check_checkpoint(checkpoint)
    owner = type(make_recipe(files)).arguments_class
    check_same_run(checkpoint, now, owner)
    assert not caplog.text
    check_same_run(checkpoint, {**now, "versions": {**now["versions"], "torch": "1.0"}}, owner)
    assert str(now["versions"]) in caplog.text
    with pytest.raises(ValueError, match="but 2 is asked for"):
        check_same_run(checkpoint, {**now, "processes": 2}, owner)


def test_a_folder_is_neither_written_over_nor_resumed_without_a_whole_checkpoint(files, finished, tmp_path):
    with pytest.raises(ValueError, match="--resume"):
        train_translation(make_recipe(files), finished[0])
    for wrong in (finished[0], finished[0] / "checkpoint-99", "last"):
        with pytest.raises(ValueError, match="no complete checkpoint"):
            checkpoint_to_resume(tmp_path, wrong)


ENDED_BY_SCHEDULE = PLATEAU | {"eval_steps": 1, "lr_scheduler_kwargs": {"min_lr": 1.0}}


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"max_steps": 3, "average_last": 2}, 3), (ENDED_BY_SCHEDULE, 1)],
    ids=["average", "schedule"],
)
def test_a_finished_run_is_not_trained_on(files, tmp_path, monkeypatch, options, steps):
    options = {"max_steps": 9, "save_strategy": "steps", "save_steps": 1, "max_tokens": 200} | options
    first = train_translation(make_recipe(files, **options), tmp_path / "run")
    assert first["steps"] == steps
    shutil.copy(tmp_path / "run" / "model.safetensors", tmp_path)
    # left behind by a longer run
    shutil.copytree(tmp_path / "run" / "checkpoint-1", tmp_path / "run" / "checkpoint-9")
    (tmp_path / "run" / "checkpoint-9" / "optimizer.pt").unlink()
    monkeypatch.setattr(TranslationTrainer, "training_step", None)
    again = train_translation(make_recipe(files, **options), tmp_path / "run", resume="last")
    assert again == without_time(first)
    assert_same_weights(tmp_path, tmp_path / "run")


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
