"""The command line that puts runs side by side."""

import json
from pathlib import Path

import pytest

from builders.commands import run_command

ATTENTION = {"overall": {"zeros": 0.5, "null_rate": 0.0, "entropy": None, "row_sum": 1.0, "rows": 10}}
TRANSLATION = {
    "task": "translation",
    "scores": {"bleu": {"value": 30.0, "signature": "BLEU|x"}, "chrf": {"value": 50.0, "signature": "chrF|x"}},
}
IMAGES = {
    "task": "image-classification",
    "data": {"split": "test", "rows": 10000, "unit": "images"},
    "scores": {"accuracy": {"value": 0.8125}, "top5_accuracy": {"value": 0.99}, "loss": {"value": 0.6}},
}


def finished_run(folder: Path, history: list[dict], scored: dict = TRANSLATION, **more) -> Path:
    folder.mkdir(parents=True)
    evaluation = {"format_version": 2, "data": {"split": "test"}, "attention": ATTENTION, **scored, **more}
    files = {"evaluation": evaluation, "results": {"parameters": 1000}, "log_history": history}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def compare(capsys):
    def run(*arguments):
        run_command("compare", *arguments)
        return capsys.readouterr().out.splitlines()

    return run


def test_other_conditions_are_named(compare, tmp_path):
    runs = [
        finished_run(tmp_path / "greedy", [{"epoch": 1.0}], decoding={"num_beams": 1}),
        finished_run(
            tmp_path / "beam", [{"epoch": 1.0}], decoding={"num_beams": 5}, data={"split": "test", "rows": 7}
        ),
    ]
    assert compare(*runs)[-1] == "greedy and beam were scored in other ways: rows, decoding"


def test_image_runs_have_accuracies_and_images_a_second(compare, tmp_path):
    history = [
        {"epoch": 0.5, "loss": 2.0, "images_per_second": 100.0},
        {"epoch": 0.875, "eval_accuracy": 0.75, "eval_loss": 1.0},
        {"epoch": 1.5, "loss": 1.5, "images_per_second": 300.0},
        {"epoch": 2.0, "eval_accuracy": 0.7, "eval_loss": 1.1},
    ]
    first = finished_run(tmp_path / "relu-vit", history, IMAGES)
    scores = {name: score for name, score in IMAGES["scores"].items() if name != "top5_accuracy"}
    second = finished_run(tmp_path / "softmax", history[:1], IMAGES, scores=scores)
    picture = tmp_path / "curves.svg"
    _, _, *rows, _ = compare(first, second, "--curves", picture)
    assert rows[0] == "| relu-vit | 81.25% | 99.00% | 0.600 | 75.00% (0.88) | 1,000 | 200 | 50.0% | 0.0% | – |"
    assert rows[1] == "| softmax | 81.25% | – | 0.600 | – | 1,000 | 100 | 50.0% | 0.0% | – |"
    assert "evaluation accuracy" in picture.read_text()
