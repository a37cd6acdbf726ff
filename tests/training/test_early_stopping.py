"""Runs that stop when evaluations get no better, and what is seen of a run on its way."""

import json
import shutil

import pytest

from builders.translation_runs import make_recipe
from reluformers.translation.run import train_translation

pytestmark = pytest.mark.xdist_group("patience")

# nothing is learned, so that no evaluation is better than the first
PATIENT = {
    "early_stopping_patience": 2,
    "learning_rate": 0.0,
    "num_train_epochs": 8,
    "eval_strategy": "epoch",
    "evaluate_bleu": False,
}


@pytest.fixture(scope="module")
def stopped(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    return folder, train_translation(make_recipe(files, **PATIENT), folder)


def losses(folder) -> list[dict]:
    return [entry for entry in json.loads((folder / "log_history.json").read_text()) if "eval_loss" in entry]


def test_a_run_stops_after_evaluations_without_a_better_one(stopped):
    folder, results = stopped
    assert [entry["epoch"] for entry in losses(folder)] == [1, 2, 3]
    assert results["steps"] == losses(folder)[-1]["step"]
    assert not any("eval_bleu" in entry for entry in losses(folder))  # nor was anything translated


def test_a_stopped_run_is_at_its_end(files, stopped, tmp_path):
    folder, results = stopped
    copy, lines = shutil.copytree(folder, tmp_path / "copy"), []
    again = train_translation(make_recipe(files, **PATIENT), copy, resume="auto", report=lines.append)
    assert again["steps"] == results["steps"]
    assert any("at its end" in line for line in lines)


def test_a_resumed_run_counts_on(files, stopped, tmp_path):
    folder, results = stopped
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / f"checkpoint-{results['steps']}")
    again = train_translation(make_recipe(files, **PATIENT | {"early_stopping_patience": 3}), copy, resume="auto")
    assert again["steps"] > results["steps"]
    assert [entry["epoch"] for entry in losses(copy)] == [1, 2, 3, 4]
