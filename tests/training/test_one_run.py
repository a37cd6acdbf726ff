"""One run in a folder at a time, and runs that leave the finite numbers."""

import math
import multiprocessing
import time

import pytest
import torch
from filelock import Timeout

from builders.translation_runs import make_recipe
from reluformers.errors import DivergenceError
from reluformers.training.checkpoints import check_checkpoint
from reluformers.training.run import only_run
from reluformers.translation.run import train_translation
from reluformers.translation.trainer import TranslationTrainer

FORK = multiprocessing.get_context("fork")


def hold(folder, is_held) -> None:
    with only_run(folder):
        is_held.set()
        time.sleep(60)


def test_a_second_run_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    is_held = FORK.Event()
    first = FORK.Process(target=hold, args=(tmp_path, is_held), daemon=True)
    first.start()
    assert is_held.wait(60)
    with pytest.raises(Timeout), only_run(tmp_path, patience=0.1):
        pass
    first.kill()
    first.join()
    with only_run(tmp_path, patience=0.1):
        pass


def test_a_run_keeps_others_out_until_it_ends(files, tmp_path, monkeypatch):
    def try_a_second(self, *args, **options):
        with pytest.raises(Timeout), only_run(tmp_path / "run", patience=0.1):
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(TranslationTrainer, "train", try_a_second)
    with pytest.raises(KeyboardInterrupt):
        train_translation(make_recipe(files, max_steps=1), tmp_path / "run")
    with only_run(tmp_path / "run", patience=0.1):
        pass


@pytest.mark.parametrize("what", ["loss", "weights", "last update"])
def test_divergence_stops_and_the_last_finite_checkpoint_stays(files, tmp_path, monkeypatch, what):
    step = TranslationTrainer.training_step

    def diverge(self, model, *args, **options):
        loss = step(self, model, *args, **options)
        if self.state.global_step != 2:
            return loss
        if what == "loss":
            return loss * math.inf
        with torch.no_grad():
            next(model.parameters())[0] = math.nan
        return loss

    options = {"max_steps": 3 if what == "last update" else 6, "save_strategy": "steps", "save_steps": 2}
    options["logging_steps"] = 1 if what == "loss" else 100
    if what == "last update":
        options |= {"save_strategy": "no"}
    monkeypatch.setattr(TranslationTrainer, "training_step", diverge)
    with pytest.raises(DivergenceError, match=r"training diverged: .* at update \d") as caught:
        train_translation(make_recipe(files, max_tokens=200, **options), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    if what != "last update":
        assert str(tmp_path / "run" / "checkpoint-2") in str(caught.value)
        assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
        check_checkpoint(tmp_path / "run" / "checkpoint-2")
