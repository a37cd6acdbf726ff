"""What a card shows by itself: held-out examples, pictures, the base model, the licence."""

import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from PIL import Image

from builders.image_runs import CLASSES, write_images
from builders.saved_models import save_classifier, save_translator
from builders.translation_runs import write_pairs
from reluformers.publish.card import known_licence, write_card

LOG = [{"step": step, "epoch": step / 10, "loss": 3.0 - step / 10} for step in (5, 10)]


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = save_translator(tmp_path / "run", "rela")
    recipe = {"data": {"source_lang": "en", "target_lang": "de", "test": write_pairs(tmp_path, "test", 30)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "results.json").write_text(json.dumps({"parameters": 5, "test_bleu": 1.5}))
    (folder / "log_history.json").write_text(json.dumps(LOG))
    return folder


def test_examples_of_the_run_are_shown_and_right_ones_first(folder):
    rows = [
        {"source": f"source {n}", "reference": f"target {n}", "output": f"target {n if n > 2 else 0}"}
        for n in range(1, 6)
    ]
    (folder / "results.json").write_text(json.dumps({"examples": rows}))
    path = write_card(folder, "acme/toy")
    assert str(folder.parent) not in path.read_text()
    shown = [(it["text"], it["output"]["text"]) for it in ModelCard.load(path).data.widget]
    assert shown == [(f"source {number}", f"target {number}") for number in (3, 4, 5)]
    path = write_card(folder, "acme/toy", held_out=False, overwrite=True)
    assert "source 3" not in path.read_text()


def test_a_classifier_shows_images_of_its_data_and_what_it_confuses(tmp_path):
    names = {"id2label": dict(enumerate(CLASSES)), "image_size": 8}
    folder = save_classifier(tmp_path / "run", **names)
    recipe = {"data": {"validation": write_images(tmp_path, "validation", 20)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    Image.new("RGB", (8, 8)).save(folder / "confusion_matrix.png")
    path = write_card(folder, "acme/vit", output=tmp_path / "card")
    assert [it["example_title"] for it in ModelCard.load(path).data.widget] == CLASSES[:3]
    pictures = {*(f"example_{number}.png" for number in (1, 2, 3)), "confusion_matrix.png"}
    assert pictures <= {item.name for item in path.parent.iterdir()}


def test_licences_are_kept(tmp_path):
    assert known_licence(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense:\n- cc-by-nc-4.0\n---\n")
    assert known_licence(tmp_path) == "cc-by-nc-4.0"
    (tmp_path / "README.md").write_text("---\nlicense:\n- mit\n- cc-by-nc-4.0\n---\n")
    with pytest.raises(ValueError, match="several licences"):
        known_licence(tmp_path)
