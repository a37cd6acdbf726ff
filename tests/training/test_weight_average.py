"""The moving average of the weights: what it is, where it is used, and that a resumed run keeps it."""

import json

import pytest
import torch
from safetensors.torch import load_file

from builders.image_runs import make_image_recipe, write_images
from builders.translation_runs import check_resuming
from reluformers.images.run import train_image_classification
from reluformers.training.averaging import WEIGHT_AVERAGE_FILE

pytestmark = pytest.mark.xdist_group("weight average")

DECAY = 0.7
EACH_STEP = {"save_strategy": "steps", "save_steps": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {name: write_images(folder, name, rows) for name, rows in (("train", 60), ("validation", 10))}


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run of 4 updates with a checkpoint and an evaluation at each: folder, results, options."""
    options = {"max_steps": 4, "ema_decay": DECAY, "eval_strategy": "steps", "eval_steps": 1, **EACH_STEP}
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train_image_classification(make_image_recipe(files, **options), folder), options


def test_the_finished_weights_are_the_average_of_all_updates(finished):
    folder, *_ = finished
    steps = [load_file(folder / f"checkpoint-{step}" / "model.safetensors") for step in (1, 2, 3, 4)]
    for name, weight in load_file(folder / "model.safetensors").items():
        average = steps[0][name]
        for step in steps[1:]:
            average = DECAY * average + (1 - DECAY) * step[name]
        torch.testing.assert_close(weight, average)
    assert not torch.equal(weight, steps[-1][name])


def test_training_is_the_same_without_an_average(finished, files, tmp_path):
    folder, _, options = finished
    train_image_classification(make_image_recipe(files, **options | {"ema_decay": None}), tmp_path / "run")
    for name, weight in load_file(folder / "checkpoint-4" / "model.safetensors").items():
        assert torch.equal(load_file(tmp_path / "run" / "model.safetensors")[name], weight), name
    assert not (tmp_path / "run" / "checkpoint-4" / WEIGHT_AVERAGE_FILE).exists()


def test_evaluations_are_of_the_average(finished):
    folder, results, _ = finished
    history = json.loads((folder / "log_history.json").read_text())
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    assert losses[-1] == results["validation_loss"]
    assert len(set(losses)) == 4


def test_a_resumed_run_ends_with_the_same_weights(files, tmp_path):
    recipe = make_image_recipe(
        files,
        model={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "drop_path_rate": 0.2},
        augmentation={"crop": "pad", "padding": 2, "flip": True, "mixup": 0.2},
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        ema_decay=DECAY,
        dataloader_num_workers=1,
        gradient_accumulation_steps=2,
        bf16=True,
    )
    check_resuming(train_image_classification, recipe, tmp_path)
