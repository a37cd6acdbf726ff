"""`reluformers evaluate`: what it scores, in which languages, and by which measures."""

import json

import pytest
import sacrebleu

from builders.commands import refusal_of, run_command
from builders.saved_models import TEXTS, save_translator
from reluformers.data.names import named_split, source_name

PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))


@pytest.fixture
def folder(tmp_path):
    """A model whose recipe says its languages."""
    folder = save_translator(tmp_path / "model")
    (folder / "recipe.yaml").write_text("data: {source_lang: en, target_lang: de}\n")
    return folder


@pytest.fixture
def rows(tmp_path):
    """The pairs as JSON lines, and as two files of text."""
    lines = [json.dumps({"translation": {"en": source, "de": target, "fr": "non"}}) for source, target in PAIRS]
    (tmp_path / "validation.jsonl").write_text("\n".join(lines) + "\n")
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"test.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    return tmp_path


def evaluated(folder, *arguments) -> dict:
    output = folder / "evaluation.json"
    run_command("evaluate", folder, "--data", *arguments, "--num_beams", 1, "--output", output)
    return json.loads(output.read_text())


def test_languages_are_those_of_the_folder_unless_options_say_others(folder, rows):
    found = evaluated(folder, rows / "validation.jsonl")
    assert (found["data"]["source_lang"], found["data"]["target_lang"]) == ("en", "de")
    assert found["data"]["split"] == "validation"  # as its file is named
    other = evaluated(folder, rows / "validation.jsonl", "--target_lang", "fr")
    assert (other["data"]["source_lang"], other["data"]["target_lang"]) == ("en", "fr")


def test_two_text_files_are_scored_as_their_rows_are(folder, rows, capsys):
    found = evaluated(folder, rows / "test.en", rows / "test.de")
    same = evaluated(folder, rows / "validation.jsonl")
    assert found["scores"] == same["scores"]
    assert found["data"]["checksum"] == same["data"]["checksum"]
    given = ("--data", rows / "test.en", rows / "test.de")
    assert "test.en" in refusal_of(capsys, "evaluate", folder, *given, "--output", rows / "test.en")


def test_scores_outlast_what_is_written_behind_them_and_replace_no_model(folder, rows, monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("reluformers.evaluation.scorer.attention_report", fail)
    refusal_of(
        capsys, "evaluate", folder, "--data", rows / "validation.jsonl", "--attention_report", "--output", rows / "a"
    )
    assert json.loads((rows / "a").read_text())["scores"]["bleu"]["value"] >= 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        line = refusal_of(capsys, "evaluate", folder, "--data", rows / "validation.jsonl", "--output", folder / name)
        assert name in line


def test_scores_are_those_of_sacrebleu(folder, rows):
    found = evaluated(folder, rows / "test.en", rows / "test.de", "--predictions", rows / "out.txt")
    outputs, references = (rows / "out.txt").read_text().splitlines(), [[target for _, target in PAIRS]]
    expected = {
        "bleu": sacrebleu.corpus_bleu(outputs, references, force=True),
        "chrf": sacrebleu.corpus_chrf(outputs, references),
        "chrf++": sacrebleu.corpus_chrf(outputs, references, word_order=2),
        "ter": sacrebleu.corpus_ter(outputs, references),
    }
    assert {name: score["value"] for name, score in found["scores"].items()} == {
        name: score.score for name, score in expected.items()
    }
    assert "nw:2" in found["scores"]["chrf++"]["signature"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a/validation.jsonl.gz", "validation"),
        ({"source": "dev.en", "target": "dev.de"}, "dev"),
        ("devices.jsonl", "test"),
        ("org/validation", "test"),
        (None, "test"),
    ],
)
def test_names_of_files_name_splits(source, name):
    assert named_split(source, "test") == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (r"C:\data\pictures", "pictures"),
        ("runs/data/", "data"),
        ("someone/pictures", "someone/pictures"),
        ({"source": "/a/b/train.en", "target": "/a/b/train.de"}, "train.en, train.de"),
    ],
)
def test_sources_are_named_without_their_place(source, name):
    assert source_name(source) == name
