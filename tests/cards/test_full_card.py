"""What a card shows by itself: held-out examples, measured attention, pictures, the data in words, the base model."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM

from builders.finished_runs import translation_run
from builders.image_runs import CLASSES, write_images
from builders.image_runs import SIZES as IMAGE_SIZES
from builders.translation_runs import SIZES, write_pairs
from reluformers import seq2seq_config, vision_config
from reluformers.images.processing import build_image_processor
from reluformers.publish.card import known_base_model, known_licence, write_card
from reluformers.publish.data_words import DataWords, data_words
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


def test_data_that_are_elsewhere_are_left_out(folder):
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["data"]["test"] = "/somewhere/else.jsonl"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    text = write_card(folder, "acme/toy").read_text()
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


def test_a_tuned_model_says_from_what(tmp_path):
    path = write_card(translation_run(tmp_path / "run"), "acme/tuned", base_model="acme/base", space="acme/tuned-demo")
    data = ModelCard.load(path).data
    assert (data.pipeline_tag, data.base_model, data.base_model_relation) == ("translation", "acme/base", "finetune")
    text = path.read_text()
    assert "It was fine-tuned from [acme/base](https://huggingface.co/acme/base)." in text
    assert "It has seen its training set and that of acme/base:" in text
    assert "(https://huggingface.co/spaces/acme/tuned-demo)" in text


@pytest.mark.parametrize(
    ("readme", "config", "found"),
    [
        ("---\nbase_model: acme/base\n---\n", {}, "acme/base"),
        ("---\nbase_model:\n- acme/base\n---\n", {"_name_or_path": "acme/other"}, "acme/base"),
        (None, {"_name_or_path": "acme/other"}, "acme/other"),
        (None, {"_name_or_path": "/home/somebody/acme"}, None),
        (None, {"_name_or_path": "acme/tuned"}, None),
        ("no metadata", {}, None),
    ],
)
def test_where_the_base_model_is_found(tmp_path, readme, config, found):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if readme:
        (tmp_path / "README.md").write_text(readme)
    assert known_base_model(tmp_path, "acme/tuned") == found


def test_licences_are_kept(tmp_path):
    assert known_licence(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense:\n- cc-by-nc-4.0\n---\n")
    assert known_licence(tmp_path) == "cc-by-nc-4.0"
    (tmp_path / "README.md").write_text("---\nlicense:\n- mit\n- cc-by-nc-4.0\n---\n")
    with pytest.raises(ValueError, match=r"has several licences, mit, cc-by-nc-4\.0; choose one by --licence"):
        known_licence(tmp_path)


def test_data_are_described_by_the_card_beside_them(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}")
    card = "---\nlicense: cc-by-4.0\npretty_name: Toy\n---\n# Toy\n\nSentences of a\ntoy language.\n\nMore.\n"
    (tmp_path / "README.md").write_text(card)
    data = {"train": {"source": str(tmp_path / "train.jsonl"), "target": "b"}}
    assert data_words(data) == ("Toy", "Sentences of a toy language.", "cc-by-4.0")
    assert data_words(data, DataWords(terms="ours")) == ("Toy", "Sentences of a toy language.", "ours")
    assert data_words({"path": "acme/unknown"}) == (None, None, None)
    # without metadata it may be the README of anything
    (tmp_path / "README.md").write_text("# My project\n\nIt trains.\n")
    assert data_words(data) == (None, None, None)


def test_the_words_stand_in_the_card(tmp_path):
    said = DataWords("Toy", "sentences of a toy language", "CC BY 4.0")
    text = write_card(translation_run(tmp_path / "run"), "acme/toy", data=said).read_text()
    assert "The data are Toy: sentences of a toy language." in text
    assert "The training data: CC BY 4.0." in text
