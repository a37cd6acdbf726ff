"""Classifying images, the scores, and the command line that scores a classifier."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification

from builders.commands import run_command
from reluformers import vision_config
from reluformers.evaluation.results import checksum
from reluformers.images.loading import load_image_split
from reluformers.images.processing import build_image_processor
from reluformers.images.scoring import (
    Classified,
    class_results,
    classify,
    image_batches,
    load_image_model,
    top_classes,
)

CLASSES = ["red", "green", "blue", "cyan", "magenta", "yellow", "white"]
SIZES = {
    "image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 8,
}  # fmt: skip


def labels_of(names: list[str]) -> dict:
    return {"id2label": dict(enumerate(names)), "label2id": {name: label for label, name in enumerate(names)}}


def build(preset: str = "relu-vit", names: list[str] = CLASSES, **fields):
    torch.manual_seed(0)
    options = {"initialization": "normal", "initializer_range": 0.5, **SIZES, **labels_of(names), **fields}
    return AutoModelForImageClassification.from_config(vision_config(preset, **options)).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder for the split, with a folder of noisy images of one colour for each of five of the classes."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for number, name in enumerate(CLASSES[:5]):
        (folder / "test" / name).mkdir(parents=True)
        for image in range(3 + number):
            pixels = generator.integers(0, 256, (12, 10, 3), dtype=np.uint8)
            pixels[..., number % 3] = 255
            Image.fromarray(pixels).save(folder / "test" / name / f"{image}.png")
    return folder


@pytest.fixture
def split(data):
    return load_image_split(data, "test", classes=CLASSES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A saved model with its processor."""
    folder, model = tmp_path_factory.mktemp("saved") / "model", build()
    model.save_pretrained(folder)
    build_image_processor(model.config).save_pretrained(folder)
    return folder


def one_by_one(model, processor, dataset) -> torch.Tensor:
    """Each image alone, decoded by Pillow."""
    results = []
    for row in dataset:
        pixels = processor(images=Image.open(row["image"]["path"]).convert("RGB"), return_tensors="pt")
        with torch.no_grad():
            results.append(model(**pixels).logits)
    return torch.cat(results)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_classes_are_those_of_single_images_in_order(folder, split, batch_size):
    model, processor = load_image_model(folder)
    assert not model.training
    found = classify(model, image_batches(split, processor, batch_size=batch_size))
    logits = one_by_one(build(), processor, split)
    assert found.top.tolist() == logits.argsort(-1, descending=True)[:, :5].tolist()
    assert found.labels.tolist() == split["label"]
    assert len(split) == 25
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(found.labels)).item()
    assert found.loss == pytest.approx(expected, rel=1e-5)


def test_sigmoid_loss_is_the_model_own(folder, split):
    model, processor = (
        build(problem_type="multi_label_classification", label_smoothing=0.3),
        load_image_model(folder)[1],
    )
    found = classify(model, image_batches(split, processor, batch_size=8))
    targets = torch.nn.functional.one_hot(torch.tensor(found.labels), len(CLASSES)).float()
    logits = one_by_one(model, processor, split)
    sums = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    assert found.loss == pytest.approx(sums.item() / len(split), rel=1e-5)


def test_scores_by_hand():
    logits = torch.eye(7)[[0, 0, 1, 2, 2, 2, 3]]
    logits[6, 1] = float("nan")
    labels = np.array([0, 0, 0, 2, 2, 6, 3])
    found = Classified(0.5, top_classes(logits).numpy(), labels, 7)
    # 6 is the last of equals
    assert found.scores() == {"accuracy": 4 / 7, "top5_accuracy": 5 / 7, "loss": 0.5}
    assert "top5_accuracy" not in Classified(0.5, top_classes(logits[:5, :5]).numpy(), labels[:5], 5).scores()
    expected = np.zeros((7, 7), int)
    expected[0, 0], expected[0, 1], expected[2, 2], expected[6, 2] = 2, 1, 2, 1
    np.testing.assert_array_equal(found.confusion_matrix(), expected)
    classes = class_results(expected, CLASSES)
    assert [row["images"] for row in classes.values()] == [3, 0, 2, 0, 0, 0, 1]
    assert [row["recall"] for row in classes.values()] == [pytest.approx(2 / 3), None, 1.0, None, None, None, 0.0]
    precisions = [row["precision"] for row in classes.values()]
    assert precisions == [1.0, 0.0, pytest.approx(2 / 3), None, None, None, None]


def test_command_line_scores_and_writes(folder, data, split, tmp_path):
    output, picture = tmp_path / "new" / "results.json", tmp_path / "confusion.svg"
    run_command(
        "evaluate", folder, "--data", data, "--split", "test", "--batch_size", 7, "--attention_report",
        "--output", output, "--confusion_matrix", picture,
    )  # fmt: skip
    model, processor = load_image_model(folder)
    expected = classify(model, image_batches(split, processor)).scores()
    results = json.loads(output.read_text())
    assert {name: score["value"] for name, score in results["scores"].items()} == pytest.approx(expected)
    assert list(results["classes"]) == CLASSES
    files = [(Path(row["image"]["path"]).read_bytes(), CLASSES[row["label"]].encode()) for row in split]
    assert results["data"]["checksum"] == checksum(files)
    assert 0 < results["attention"]["overall"]["zeros"] < 1
    assert "magenta" in picture.read_text()
