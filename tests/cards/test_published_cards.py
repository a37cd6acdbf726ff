"""The cards of model_cards/ and the numbers of docs/research/results.md."""

import re
from pathlib import Path

import pytest

from reluformers.publish.card_check import check_card

ROOT = Path(__file__).resolve().parents[2]
ALPHA_ROWS = {
    "relu-vit-alpha0": "relu (α = 0)",
    "relu-vit-alpha0.5": "relu · L^−½",
    "relu-vit-alpha1.5": "relu · L^−1½",
}
PUBLISHED = sorted((ROOT / "model_cards").glob("*/README.md"))


def documented_score(name: str) -> float:
    """The first number of a model's row in docs/research/results.md."""
    text = (ROOT / "docs" / "research" / "results.md").read_text(encoding="utf-8")
    _, translation, images = text.split("## Longer runs: ")
    preset = name.removeprefix("multi30k-en-de-").removeprefix("cifar10-")
    row = ALPHA_ROWS.get(preset, f"`{preset}`")
    section = images if name.startswith("cifar10") else translation
    return float(re.search(rf"^\| {re.escape(row)} \| ([\d.]+)", section, re.MULTILINE)[1])


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_cards_of_the_repository_are_valid_and_agree_with_the_results(path):
    card = check_card(path)
    assert card.data.model_name == path.parent.name
    score = card.data.eval_results[0]
    if score.metric_type == "accuracy":  # the document has that of the trainer, in bf16
        assert 100 * score.metric_value == pytest.approx(documented_score(path.parent.name), abs=0.1)
    else:
        assert score.metric_value == documented_score(path.parent.name)
    assert f'"reluformers/{path.parent.name}", revision="v1"' in card.text


def test_every_result_has_a_card():
    names = {path.parent.name for path in PUBLISHED}
    assert names >= {f"multi30k-en-de-{preset}" for preset in ("softmax", "reluformer", "rela-g", "qknorm", "relu")}
    assert names >= {f"cifar10-{preset}" for preset in ("softmax", "relu-vit", "rela-g", "qknorm")}
    assert len(names) == 12
