"""What a card shows by itself: held-out examples, measured attention, pictures, the data in words, the base model."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM

from builders.image_runs import CLASSES, write_images
from builders.image_runs import SIZES as IMAGE_SIZES
from builders.translation_runs import SIZES, write_pairs
from reluformers import seq2seq_config, vision_config
from reluformers.images.processing import build_image_processor
from reluformers.publish.card import known_licence, write_card
from reluformers.translation.tokenization import train_tokenizer

LOG = [{"step": step, "epoch": step / 10, "loss": 3.0 - step / 10} for step in (5, 10)]


def translation_folder(folder: Path, data: Path, **results) -> Path:
    train_tokenizer([["red dog", "green tree"]], 100).save_pretrained(folder)
    AutoModelForSeq2SeqLM.from_config(seq2seq_config("rela", **{**SIZES, "vocab_size": 100})).save_pretrained(folder)
    recipe = {"data": {"source_lang": "en", "target_lang": "de", "test": write_pairs(data, "test", 30)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "results.json").write_text(json.dumps({"parameters": 5, "test_bleu": 1.5, **results}))
    (folder / "log_history.json").write_text(json.dumps(LOG))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("translation")
    return translation_folder(root / "run", root)


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def widgets(path: Path) -> list[tuple[str, str]]:
    return [(it["text"], it["output"]["text"]) for it in ModelCard.load(path).data.widget]


def test_examples_of_the_run_are_shown_and_right_ones_first(folder):
    rows = [
        {
            "source": f"source {number}",
            "reference": f"target {number}",
            "output": f"target {number if number > 2 else 0}",
        }
        for number in range(1, 6)
    ]
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**results, "examples": rows}))
    path = write_card(folder, "acme/toy")
    assert widgets(path) == [(f"source {number}", f"target {number}") for number in (3, 4, 5)]
    assert "| source 3 | target 3 | target 3 |" in path.read_text()


def test_held_out_pairs_are_translated_and_measured(folder):
    path = write_card(folder, "acme/toy")
    text = path.read_text()
    sources = (
        Path(yaml.safe_load((folder / "recipe.yaml").read_text())["data"]["test"]["source"]).read_text().split("\n")
    )
    assert len(widgets(path)) == 3
    assert {source for source, _ in widgets(path)} <= set(sources)
    assert "| input | output | reference |" in text
    assert "Measured on 30 pairs of `test`, with teacher forcing" in text
    assert "model.generate(**inputs" in text
    assert {"attention.png", "curves.png"} <= {item.name for item in folder.iterdir()}
    assert "](curves.png)" in text
    assert str(folder.parent) not in text


def test_held_out_rows_stay_at_home_where_that_is_asked_for(folder):
    path = write_card(folder, "acme/toy", held_out=False)
    text = path.read_text()
    assert ModelCard.load(path).data.get("widget") is None
    assert "### Examples" not in text
    assert "Attention of this checkpoint" not in text


def test_a_classifier_shows_images_of_its_data_and_what_it_confuses(tmp_path):
    folder, names = tmp_path / "run", dict(enumerate(CLASSES))
    config = vision_config("relu-vit", **IMAGE_SIZES, id2label=names, label2id={name: i for i, name in names.items()})
    AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    build_image_processor(config).save_pretrained(folder)
    recipe = {"data": {"validation": write_images(tmp_path, "validation", 20)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    Image.new("RGB", (8, 8)).save(folder / "confusion_matrix.png")
    path = write_card(folder, "acme/vit", output=tmp_path / "card")
    text = path.read_text()
    assert [it["example_title"] for it in ModelCard.load(path).data.widget] == CLASSES[:3]
    assert "| image | answer | truth |" in text
    assert "Measured on 20 images of `validation`" in text
    assert "AutoImageProcessor.from_pretrained" in text
    assert {f"example_{n}.png" for n in (1, 2, 3)} | {"confusion_matrix.png", "attention.png"} <= {
        item.name for item in path.parent.iterdir()
    }


def test_licences_are_kept(tmp_path):
    assert known_licence(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense:\n- cc-by-nc-4.0\n---\n")
    assert known_licence(tmp_path) == "cc-by-nc-4.0"
    (tmp_path / "README.md").write_text("---\nlicense:\n- mit\n- cc-by-nc-4.0\n---\n")
    with pytest.raises(ValueError, match=r"has several licences, mit, cc-by-nc-4\.0; choose one by --licence"):
        known_licence(tmp_path)
