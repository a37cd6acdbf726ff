"""One run in a folder at a time, and runs that leave the finite numbers."""

import errno
import json
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from filelock import Timeout

from builders.commands import refusal_of, run_command
from builders.translation_runs import make_recipe
from reluformers.errors import DivergenceError
from reluformers.training.checkpoints import check_checkpoint, checkpoint_to_resume
from reluformers.training.run import only_run
from reluformers.translation.run import train_translation
from reluformers.translation.trainer import TranslationTrainer

HOLD = """
import sys, time
from pathlib import Path
from reluformers.training.run import only_run
with only_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Timeout), only_run(tmp_path, patience=0.1):
            pass
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with only_run(tmp_path, patience=0.1):
            pass
    finally:
        first.kill()
    # and the folder of a run that had not begun to save is still free
    (tmp_path / "tokenizer.json").touch()
    assert checkpoint_to_resume(tmp_path, None) is None


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
        if self.state.global_step == 2:
            if what != "loss":
                with torch.no_grad():
                    next(model.parameters())[0] = math.nan
                return loss
            return loss * math.inf
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


def test_a_run_goes_on_after_a_full_disk(files, tmp_path, monkeypatch, capsys):
    recipe = make_recipe(files, max_steps=3, save_strategy="steps", save_steps=1, max_tokens=200)
    recipe.save(tmp_path / "recipe.yaml")
    command = ["train", tmp_path / "recipe.yaml", "--output_dir", tmp_path / "run"]
    save = TranslationTrainer._save_optimizer_and_scheduler

    def fail(self, folder):
        if self.state.global_step == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "optimizer.pt")
        save(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTrainer, "_save_optimizer_and_scheduler", fail)
        assert "No space left" in refusal_of(capsys, *command)
    run_command(*command, "--resume", "auto")
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 3
