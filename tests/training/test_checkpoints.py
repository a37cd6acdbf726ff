"""Checkpoints: whole or absent, every damage named and passed over, deleted by their steps."""

import os
import re
import shutil
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from builders.image_runs import make_image_recipe, write_images
from builders.translation_runs import assert_same_weights, make_recipe
from reluformers.images import train_image_classification
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
from reluformers.translation import train_translation

EACH_STEP = {"save_strategy": "steps", "save_steps": 1, "max_tokens": 200}


@pytest.fixture(scope="module")
def translation(files, tmp_path_factory):
    """A run with two tokenizers and a moving average, with checkpoints 2 and 3."""
    recipe = make_recipe(files, max_steps=3, save_total_limit=2, ema_decay=0.5, **EACH_STEP)
    recipe.model["tying"] = "decoder"
    recipe.tokenizer.shared = False
    folder = tmp_path_factory.mktemp("runs") / "translation"
    train_translation(recipe, folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    data = {"train": write_images(folder, "train", 24)}
    recipe = make_image_recipe(data, max_steps=3, save_total_limit=2, save_strategy="steps", save_steps=1)
    train_image_classification(recipe, folder / "run")
    return folder / "run"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def zero_tail(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 2])


DAMAGES = {"flipped bit": flip, "zeroed tail": zero_tail, "cut short": cut, "missing": Path.unlink}


@pytest.mark.parametrize("kind", ["translation", "images"])
def test_any_damage_of_any_file_is_named_and_passed_over(request, tmp_path, caplog, kind):
    whole = request.getfixturevalue(kind)
    names = sorted(path.relative_to(whole / "checkpoint-3") for path in (whole / "checkpoint-3").rglob("*.*"))
    assert {"config.json", "scheduler.pt", "model.safetensors", "optimizer.pt"} < set(map(str, names))
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for name, damage in product(names, DAMAGES.values()):
        path = run / "checkpoint-3" / name
        content = path.read_bytes()
        damage(path)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            checkpoint_to_resume(run, run / "checkpoint-3")
        caplog.clear()
        assert checkpoint_to_resume(run, "last") == run / "checkpoint-2"
        assert str(path) in caplog.text
        path.write_bytes(content)
    check_checkpoint(run / "checkpoint-3")


def test_other_weights_of_the_same_size_are_not_taken(translation, tmp_path):
    shutil.copytree(translation, tmp_path / "run")
    newest, before = (tmp_path / "run" / f"checkpoint-{step}" for step in (3, 2))
    shutil.copy(before / "model.safetensors", newest)
    with pytest.raises(ValueError, match=r"model.safetensors: is not what was written"):
        check_checkpoint(newest)
    assert checkpoint_to_resume(tmp_path / "run", "last") == before
    shutil.copytree(before, tmp_path / "run" / "checkpoint-7")
    with pytest.raises(ValueError, match=r"checkpoint-7"):
        check_checkpoint(tmp_path / "run" / "checkpoint-7")


def test_a_run_goes_on_from_the_newest_whole_checkpoint(files, tmp_path):
    recipe = make_recipe(files, max_steps=4, **EACH_STEP)
    train_translation(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    flip(tmp_path / "run" / "checkpoint-3" / "optimizer.pt")
    train_translation(recipe, tmp_path / "run", resume="last")
    assert_same_weights(tmp_path / "whole", tmp_path / "run")
    # the damaged one has made room for a new one
    check_checkpoint(tmp_path / "run" / "checkpoint-3")
    assert (tmp_path / "run" / "set_aside-1" / "checkpoint-3").is_dir()


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


@pytest.mark.parametrize("part", ["weights", "state", "manifest"])
def test_a_stop_while_saving_leaves_no_checkpoint(files, tmp_path, monkeypatch, part):
    """As a kill would, at three places; nothing of the unfinished one is taken for a checkpoint."""

    def stop(*args, **options):
        raise KeyboardInterrupt

    place = {
        "weights": (trainer.Trainer, "_save_optimizer_and_scheduler"),
        "state": (trainer, "complete_checkpoint"),
        "manifest": (checkpoints, "write_text"),
    }[part]
    recipe = make_recipe(files, max_steps=2, **EACH_STEP)
    with monkeypatch.context() as patch:
        patch.setattr(*place, stop)
        with pytest.raises(KeyboardInterrupt):
            train_translation(recipe, tmp_path / "run")
    unfinished = tmp_path / "run" / "checkpoint-1"
    assert (unfinished / "model.safetensors").is_file()
    assert not checkpoints_of(tmp_path / "run")
    assert checkpoint_to_resume(tmp_path / "run", "auto") is None
    for use in (checkpoints.check_model, check_checkpoint, lambda folder: checkpoint_to_resume(tmp_path, folder)):
        with pytest.raises(ValueError, match="checkpoint-1"):
            use(unfinished)
    assert train_translation(recipe, tmp_path / "run")["steps"] == 2
    assert not list((tmp_path / "run").rglob(UNFINISHED_FILE))
    assert len(checkpoints_of(tmp_path / "run")) == 2


def test_old_checkpoints_go_by_step_whatever_the_clock_says(files, tmp_path):
    train_translation(make_recipe(files, max_steps=2, save_total_limit=2, **EACH_STEP), tmp_path / "run")
    for folder in (tmp_path / "run").glob("checkpoint-*"):
        os.utime(folder, (time.time() + 10**6,) * 2)
    options = {"max_steps": 5, "save_total_limit": 2, "average_last": 2}
    train_translation(make_recipe(files, **options, **EACH_STEP), tmp_path / "run", resume="last")
    folders = sorted((tmp_path / "run").glob("checkpoint-*"))
    assert [folder.name for folder in folders] == ["checkpoint-4", "checkpoint-5"]
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    for name, weight in load_file(tmp_path / "run" / "model.safetensors").items():
        torch.testing.assert_close(weight, (first[name] + second[name]) / 2)


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [(None, None, "1234"), (0, None, "1234"), (2, None, "34"), (2, 1, "14"), (1, 2, "24"), (1, 4, "4"), (3, 1, "134")],
)
def test_rotation_spares_the_last_and_the_best(tmp_path, limit, best, left):
    for name in ("1", "2", "3", "4", "10-of-mine"):
        (tmp_path / f"checkpoint-{name}").mkdir()
    rotate_checkpoints(tmp_path, limit, None if best is None else str(tmp_path / f"checkpoint-{best}"))
    assert [step_of(folder) for folder in checkpoints_of(tmp_path)] == [int(step) for step in left]
    assert (tmp_path / "checkpoint-10-of-mine").is_dir()


def test_checkpoints_of_another_course_are_neither_counted_nor_averaged(files, tmp_path):
    """Going on from checkpoint 1 leaves 2 to 4 behind, which are set aside and not deleted."""
    train_translation(make_recipe(files, max_steps=4, **EACH_STEP), tmp_path / "run")
    kept = ["checkpoint-1-keep", "averaged"]  # what somebody keeps beside them is left alone
    for name in kept:
        shutil.copytree(tmp_path / "run" / "checkpoint-1", tmp_path / "run" / name)
    options = {"max_steps": 3, "save_total_limit": 2, "average_last": 2}
    recipe = make_recipe(files, **options, **EACH_STEP)
    train_translation(recipe, tmp_path / "run", resume=tmp_path / "run" / "checkpoint-1")
    folders = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert folders == sorted([*kept, "checkpoint-2", "checkpoint-3", "set_aside-1"])
    aside = tmp_path / "run" / "set_aside-1"
    assert sorted(path.name for path in aside.iterdir()) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    for folder in aside.iterdir():
        check_checkpoint(folder)
    assert set_aside_later(tmp_path / "run", tmp_path / "run" / "checkpoint-3") is None
    # and in another folder nothing goes on
    assert set_aside_later(tmp_path / "run", aside / "checkpoint-2") == tmp_path / "run" / "set_aside-2"


def test_a_damaged_checkpoint_is_not_averaged(files, tmp_path):
    recipe = make_recipe(files, max_steps=3, average_last=2, **EACH_STEP)
    train_translation(recipe, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint-2" / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(path).items()}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"checkpoint-2/model.safetensors"):
        train_translation(recipe, tmp_path / "run", resume="last")


def link(place: Path, big: Path, way: str) -> None:
    """Move a folder to a bigger disk and leave a link behind."""
    big.mkdir(exist_ok=True)
    target = shutil.move(place, big / place.name)
    if way == "relative":
        target = os.path.relpath(target, place.parent)
    elif way == "of a link":
        (big / "other").symlink_to(target)
        target = big / "other"
    place.symlink_to(target)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """A run with checkpoints 1 to 4."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train_translation(make_recipe(files, max_steps=4, **EACH_STEP), folder)
    return folder


@pytest.fixture
def stopped(whole, tmp_path):
    """Run it again, stopped behind its second update."""
    shutil.copytree(whole, tmp_path / "run")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("linked", "way", "resume"),
    [
        ("checkpoint-2", "relative", "last"),
        ("checkpoint-2", "of a link", "big/checkpoint-2"),
        ("", "absolute", "auto"),
    ],
)
def test_a_run_goes_on_from_a_link(files, whole, stopped, tmp_path, linked, way, resume):
    link(stopped / linked, tmp_path / "big", way)
    resume = tmp_path / resume if "/" in resume else resume
    train_translation(make_recipe(files, max_steps=4, **EACH_STEP), stopped, resume=resume)
    assert_same_weights(whole, stopped)
    assert [step_of(folder) for folder in checkpoints_of(stopped)] == [1, 2, 3, 4]
    for folder in checkpoints_of(stopped):
        check_checkpoint(folder)
    assert not list(stopped.glob("set_aside-*"))
