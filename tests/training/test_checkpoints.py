"""Checkpoints: whole or absent, every damage named and passed over, deleted by their steps."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builders.translation_runs import assert_same_weights, make_recipe
from reluformers.training import checkpoints, trainer
from reluformers.training.checkpoints import (
    MANIFEST_FILE,
    UNFINISHED_FILE,
    check_checkpoint,
    checkpoint_to_resume,
    checkpoints_of,
    rotate_checkpoints,
    set_aside_later,
    step_of,
)
from reluformers.translation.run import train_translation

pytestmark = pytest.mark.xdist_group("checkpoints")

EACH_STEP = {"save_strategy": "steps", "save_steps": 1, "max_tokens": 200}


def make(files, **training):
    """A recipe with two tokenizers and a checkpoint of each update."""
    recipe = make_recipe(files, **{"max_steps": 4, **EACH_STEP, **training})
    recipe.model["tying"], recipe.tokenizer.shared = "decoder", False
    return recipe


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """A run with checkpoints 1 to 4."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train_translation(make(files), folder)
    return folder


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 2])


DAMAGES = {"flipped bit": flip, "cut short": cut, "missing": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_of_any_file_is_named_and_passed_over(run, caplog, damage):
    names = sorted(path.relative_to(run / "checkpoint-4") for path in (run / "checkpoint-4").rglob("*.*"))
    expected = {"config.json", "scheduler.pt", "model.safetensors", "optimizer.pt", "target_tokenizer/tokenizer.json"}
    assert expected < set(map(str, names))
    for name in names:
        path = run / "checkpoint-4" / name
        content = path.read_bytes()
        DAMAGES[damage](path)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            checkpoint_to_resume(run, run / "checkpoint-4")
        caplog.clear()
        assert checkpoint_to_resume(run, "last") == run / "checkpoint-3"
        assert str(path) in caplog.text
        path.write_bytes(content)
    check_checkpoint(run / "checkpoint-4")


def test_other_weights_of_the_same_size_and_another_step_are_not_taken(run):
    shutil.copy(run / "checkpoint-3" / "model.safetensors", run / "checkpoint-4")
    shutil.copytree(run / "checkpoint-3", run / "checkpoint-7")
    for name in ("checkpoint-4", "checkpoint-7"):
        with pytest.raises(ValueError, match=name):
            check_checkpoint(run / name)
    assert checkpoint_to_resume(run, "last") == run / "checkpoint-3"


def test_a_run_goes_on_from_the_newest_whole_checkpoint(files, whole, run):
    shutil.rmtree(run / "checkpoint-4")
    flip(run / "checkpoint-3" / "optimizer.pt")
    train_translation(make(files), run, resume="last")
    assert_same_weights(whole, run)
    # the damaged one has made room for a new one
    check_checkpoint(run / "checkpoint-3")
    assert (run / "set_aside-1" / "checkpoint-3").is_dir()


def test_everything_is_on_the_disk_before_a_checkpoint_counts(tmp_path, monkeypatch):
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    folder = tmp_path / "checkpoint-1"
    checkpoints.begin_checkpoint(folder)
    (folder / "inner").mkdir()
    for name in ("a", "inner/b"):
        (folder / name).write_text(name)
    parts = {path.stat().st_ino for path in folder.rglob("*") if path.name != UNFINISHED_FILE}
    write = checkpoints.write_text

    def write_last(path, text):
        assert parts <= synced
        write(path, text)

    monkeypatch.setattr(checkpoints, "write_text", write_last)
    with pytest.raises(ValueError, match="is no complete checkpoint"):
        check_checkpoint(folder)
    checkpoints.complete_checkpoint(folder, {"who": "test"})
    assert check_checkpoint(folder) == {"who": "test"}
    assert {path.stat().st_ino for path in (tmp_path, folder, folder / MANIFEST_FILE)} <= synced


def test_a_stop_while_saving_leaves_no_checkpoint(files, tmp_path, monkeypatch):
    """As kills would, at three points; nothing of the unfinished one is taken for a checkpoint."""

    def stop(*args, **options):
        raise KeyboardInterrupt

    recipe = make_recipe(files, max_steps=2, **EACH_STEP)
    unfinished = tmp_path / "run" / "checkpoint-1"
    for point in (
        (trainer.Trainer, "_save_optimizer_and_scheduler"),
        (trainer, "complete_checkpoint"),
        (checkpoints, "write_text"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*point, stop)
            with pytest.raises(KeyboardInterrupt):
                train_translation(recipe, tmp_path / "run")
        assert (unfinished / "model.safetensors").is_file()
        assert not checkpoints_of(tmp_path / "run")
        assert checkpoint_to_resume(tmp_path / "run", "auto") is None
        for use in (checkpoints.check_model, check_checkpoint, lambda folder: checkpoint_to_resume(tmp_path, folder)):
            with pytest.raises(ValueError, match="checkpoint-1"):
                use(unfinished)
    assert train_translation(recipe, tmp_path / "run")["steps"] == 2
    assert not list((tmp_path / "run").rglob(UNFINISHED_FILE))
    assert len(checkpoints_of(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("limit", "best", "left"), [(None, None, "1234"), (2, None, "34"), (2, 1, "14"), (1, 2, "24"), (1, 4, "4")]
)
def test_rotation_spares_the_last_and_the_best_whatever_the_clock_says(tmp_path, limit, best, left):
    for age, name in enumerate(("1", "2", "3", "4", "10-of-mine")):
        (tmp_path / f"checkpoint-{name}").mkdir()
        os.utime(tmp_path / f"checkpoint-{name}", (time.time() - 1000 * age,) * 2)
    rotate_checkpoints(tmp_path, limit, None if best is None else str(tmp_path / f"checkpoint-{best}"))
    assert [step_of(folder) for folder in checkpoints_of(tmp_path)] == [int(step) for step in left]
    assert (tmp_path / "checkpoint-10-of-mine").is_dir()


def test_checkpoints_of_another_course_are_neither_counted_nor_averaged(files, run):
    """Going on from checkpoint 1 leaves 2 to 4 behind, which are set aside and not deleted."""
    kept = ["checkpoint-1-keep", "averaged"]  # what somebody keeps beside them is left alone
    for name in kept:
        shutil.copytree(run / "checkpoint-1", run / name)
    recipe = make(files, max_steps=3, save_total_limit=2, average_last=2)
    train_translation(recipe, run, resume=run / "checkpoint-1")
    folders = sorted(path.name for path in run.iterdir() if path.is_dir() and path.name != "target_tokenizer")
    assert folders == sorted([*kept, "checkpoint-2", "checkpoint-3", "set_aside-1"])
    first, second = (load_file(run / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3))
    for name, weight in load_file(run / "model.safetensors").items():
        torch.testing.assert_close(weight, (first[name] + second[name]) / 2)
    aside = run / "set_aside-1"
    assert sorted(path.name for path in aside.iterdir()) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    for folder in aside.iterdir():
        check_checkpoint(folder)
    assert set_aside_later(run, run / "checkpoint-3") is None
    # and in another folder nothing goes on
    assert set_aside_later(run, aside / "checkpoint-2") == run / "set_aside-2"


def test_a_damaged_checkpoint_is_not_averaged(files, run):
    flip(run / "checkpoint-3" / "model.safetensors")
    with pytest.raises(ValueError, match=r"checkpoint-3/model.safetensors"):
        train_translation(make(files, average_last=2), run, resume="last")


def test_a_run_goes_on_from_a_link(files, whole, run, tmp_path):
    """What was moved to a bigger disk, with a link left behind."""
    for step in (3, 4):
        shutil.rmtree(run / f"checkpoint-{step}")
    (tmp_path / "big").mkdir()
    moved = shutil.move(run / "checkpoint-2", tmp_path / "big" / "checkpoint-2")
    (run / "checkpoint-2").symlink_to(os.path.relpath(moved, run))
    train_translation(make(files), run, resume=moved)
    assert_same_weights(whole, run)
    assert [step_of(folder) for folder in checkpoints_of(run)] == [1, 2, 3, 4]
    for folder in checkpoints_of(run):
        check_checkpoint(folder)
    assert not list(run.glob("set_aside-*"))
