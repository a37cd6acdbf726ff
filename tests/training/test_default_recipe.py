"""Training without a recipe: one that follows from the pairs, and a validation set that is held out of them."""

import json

import pytest
import yaml
from datasets import Dataset

from builders.commands import run_command
from builders.translation_runs import SIZES, make_recipe, write_pairs
from reluformers.translation.loading import hold_out
from reluformers.translation.recipe import TranslationRecipe

SMALL = [f"model.{name}={value}" for name, value in SIZES.items()]
LANGUAGES = ("--source_lang", "en", "--target_lang", "de")


def read(path) -> dict:
    return yaml.safe_load(path.read_text())


def test_two_files_are_enough_and_the_recipe_repeats_the_run(tmp_path):
    files = write_pairs(tmp_path, "train", 120)
    changes = [*SMALL, "training.num_train_epochs=1", "training.logging_steps=1"]
    run_command("train", "--data", *files.values(), *LANGUAGES, *changes, "--output_dir", tmp_path / "first")
    recipe = read(tmp_path / "first" / "recipe.yaml")
    assert recipe["data"]["train"] == files
    assert recipe["data"]["held_out"] == 6
    held_out = [json.loads(line) for line in (tmp_path / "first" / "validation.jsonl").read_text().splitlines()]
    assert len(held_out) == 6
    run_command("train", tmp_path / "first" / "recipe.yaml", "--output_dir", tmp_path / "second")
    names = ("recipe.yaml", "validation.jsonl", "tokenizer.json")
    assert all((tmp_path / "first" / name).read_text() == (tmp_path / "second" / name).read_text() for name in names)
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("first", "second")]
    assert results[0]["validation_loss"] == results[1]["validation_loss"]
    again = ("train", "--data", *files.values(), *LANGUAGES, *changes, "--resume", "auto")
    run_command(*again, "--output_dir", tmp_path / "first")


def test_no_source_is_on_both_sides_and_the_draw_is_that_of_the_seed():
    rows = Dataset.from_dict({"source": ["a", "b", "c", "", "d"] * 9, "target": [f"{row}" for row in range(45)]})
    train, held_out = hold_out(rows, 2, 1)
    assert len(held_out) == 2
    assert not set(train["source"]) & set(held_out["source"])
    assert "" not in held_out["source"][:]
    assert hold_out(rows, 2, 1)[1]["target"][:] == held_out["target"][:]
    assert len({tuple(hold_out(rows, 3, seed)[1]["target"]) for seed in range(5)}) > 1


@pytest.mark.parametrize("changes", [{"held_out": 5}, {"held_out": 5, "validation": None, "streaming": True}])
def test_what_cannot_be_held_out(changes):
    sections = make_recipe({"train": {"source": "a", "target": "b"}, "validation": "c.jsonl"}).to_dict()
    with pytest.raises(ValueError, match="held_out"):
        TranslationRecipe.from_dict({**sections, "data": {**sections["data"], **changes}})
