"""What a run would take, told without a trace, and how long it still takes, in the log."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from builders.image_runs import make_image_recipe, write_images
from builders.translation_runs import make_recipe, training_logs
from reluformers.images import train_image_classification
from reluformers.translation import train_translation


def test_a_dry_run_says_what_the_run_takes_and_leaves_nothing(files, tmp_path, capsys):
    recipe = make_recipe(files, num_train_epochs=9, average_last=2, eval_strategy="epoch")
    lines = []
    told = train_translation(recipe, tmp_path / "run", dry_run=True, report=lines.append)
    assert not list(tmp_path.iterdir())
    assert "step" not in capsys.readouterr().out
    assert told["updates"] == 27
    assert told["parameters"] == 7232
    assert told["memory_bytes"] > 10**8
    assert 0 < told["seconds_per_update"] == pytest.approx(told["seconds"] / 27)
    # 120 rows in 3 updates
    tokens = told["source_tokens_per_second"] * told["seconds_per_update"] * 3
    assert 120 * 3 < tokens < 120 * 12
    assert [line.partition(":")[0] for line in lines[-4:]] == ["model", "memory", "speed", "training"]
    assert lines[-1].startswith("training: 27 updates, ")
    # the recipe itself is as it was
    assert train_translation(recipe, tmp_path / "run")["steps"] == 27


def test_a_dry_run_takes_what_a_run_takes(files, tmp_path):
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2, "max_steps": 3}
    assert train_translation(make_recipe(files, **options), tmp_path / "run", dry_run=True)["updates"] == 3


def test_a_dry_run_of_images_that_ends_before_the_twentieth_update(tmp_path):
    data = {"train": write_images(tmp_path, "train", 24)}
    told = train_image_classification(make_image_recipe(data, max_steps=1), tmp_path / "run", dry_run=True)
    assert told["updates"] == 1
    assert told["images_per_second"] > 0
    assert not (tmp_path / "run").exists()


def test_the_log_says_how_long_training_still_takes(files, tmp_path):
    train_translation(make_recipe(files), tmp_path / "run")
    left = [entry["seconds_left"] for entry in training_logs(tmp_path / "run")]
    assert len(left) == 6
    assert left[-1] == 0 <= min(left)


def test_the_log_goes_to_tensorboard(files, tmp_path):
    train_translation(make_recipe(files, report_to="tensorboard"), tmp_path / "run")
    # the scores of the finished model are in a file of their own, which TensorBoard shows in the same run
    [folder] = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder)).Reload()
    assert {"train/source_tokens_per_second", "train/validation_loss"} <= set(events.Tags()["scalars"])
    logged = [(entry["step"], entry["loss"], entry["seconds_left"]) for entry in training_logs(tmp_path / "run")]
    losses, left = (events.Scalars(f"train/{name}") for name in ("loss", "seconds_left"))
    assert [event.step for event in losses] == [step for step, _, _ in logged]
    assert [event.value for event in losses] == pytest.approx([loss for _, loss, _ in logged])
    assert [event.value for event in left] == [seconds for _, _, seconds in logged]


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb", "nothing"])
def test_what_is_not_installed_is_refused_before_the_data_are_read(files, tmp_path, monkeypatch, name):
    for module in ("tensorboard", "trackio", "wandb"):
        monkeypatch.setattr(f"transformers.integrations.integration_utils.is_{module}_available", lambda: False)
    recipe = make_recipe(files, report_to=name)
    recipe.data.train = "no_such_file"
    with pytest.raises(ValueError, match=f"^training: .*{name}") as caught:
        train_translation(recipe, tmp_path / "run")
    assert "\n" not in str(caught.value)
