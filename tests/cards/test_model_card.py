"""Model cards: the whole text, what the Hub reads of it, and what the commands say."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from builders.commands import run_command
from builders.finished_runs import translation_evaluation, translation_run, write_run
from builders.saved_models import save_translator
from reluformers import seq2seq_config
from reluformers.evaluation.results import Example
from reluformers.publish.card import write_card
from reluformers.translation import card as translation_card
from reluformers.translation.decoding import load_translation_model, translate

PINNED = Path(__file__).parent


@pytest.fixture
def fixed_answers(monkeypatch):
    """Answers that no change of weights changes."""

    def translations(folder, texts, output):
        return [Example(text, text.upper(), f"Example {number}") for number, text in enumerate(texts, start=1)]

    monkeypatch.setattr(translation_card, "answer_examples", translations)


def write_full_card(folder: Path, **options) -> Path:
    softmax = translation_run(folder / "softmax", "softmax", bleu=36.57, zeros=0.0)
    return write_card(
        translation_run(folder / "run"),
        "someone/en-de-reluformer",
        baseline=softmax / "evaluation.json",
        dataset="bentrevett/multi30k",
        examples=["Two dogs | two cats."],
        hardware="one core of a CPU",
        notes=["A note on the scores."],
        **options,
    )


@pytest.mark.usefixtures("fixed_answers")
class TestWholeCard:
    def test_of_a_translation_model(self, tmp_path):
        path = write_full_card(tmp_path)
        assert path == tmp_path / "run" / "README.md"
        assert path.read_text(encoding="utf-8") == (PINNED / "card_translation.md").read_text(encoding="utf-8")
        assert {item.name for item in path.parent.iterdir()} >= {"README.md", "attention.png", "config.json"}

    def test_of_a_model_that_nothing_is_known_about(self, tmp_path):
        config = seq2seq_config("qknorm", decoder_attention="softmax")
        path = write_card(write_run(tmp_path / "run", config), "someone/unknown")
        assert path.read_text(encoding="utf-8") == (PINNED / "card_unknown.md").read_text(encoding="utf-8")

    def test_a_card_that_is_there_stays(self, tmp_path):
        path = write_full_card(tmp_path)
        path.write_text("mine")
        with pytest.raises(ValueError, match="there already"):
            write_full_card(tmp_path)
        assert path.read_text() == "mine"
        write_full_card(tmp_path, overwrite=True)
        assert path.read_text() != "mine"

    def test_a_baseline_scored_otherwise_is_refused(self, tmp_path):
        other = tmp_path / "evaluation.json"
        other.write_text(json.dumps({**translation_evaluation(36, 0), "decoding": {"num_beams": 4}}))
        with pytest.raises(ValueError, match="decoding"):
            write_card(translation_run(tmp_path / "run"), "someone/x", baseline=other)
        assert not (tmp_path / "run" / "README.md").exists()


def test_the_command_shows_what_the_model_answers(tmp_path, monkeypatch, capsys):
    folder = save_translator(tmp_path / "model")
    output = tmp_path / "card"
    run_command("card", folder, "--repo_id", "a/b", "--example", "red dog", "--output", output)
    assert capsys.readouterr().out.strip() == str(output / "README.md")
    (widget,) = ModelCard.load(output / "README.md").data.widget
    model, tokenizers = load_translation_model(folder)
    assert widget["text"] == "red dog"
    assert widget["output"]["text"] == translate(model, tokenizers, ["red dog"], num_beams=1)[0]
