"""The demo's steps around the training: what goes in, what it may replace, and the process without reluformers."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.corpus import KINDS, DemoCorpus, Row, build_corpus
from demo.digits import write_digits
from demo.translation import (
    LENGTHS,
    MAX_TEXT_LENGTH,
    check_text,
    count_right,
    first_of_each_kind,
    translate_in_clean_process,
    translate_rows,
    write_corpus,
)
from reluformers import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformers.publish.data_words import data_words
from reluformers.translation import TranslationRecipe
from reluformers.translation.loading import load_translation_split
from reluformers.translation.tokenization import train_tokenizer

ROOT = Path(__file__).parents[2]
# make, the shell or Python could each take a part of it for their own
AWKWARD_TEXT = """a "b" 'c' `d` $HOME $(shell e) ${f} ; # & | \\ -- 100 % Åland €"""


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory) -> Path:
    """An untrained model as the demo saves it."""
    folder = tmp_path_factory.mktemp("model")
    corpus = build_corpus(6_000, 10)
    tokenizer = train_tokenizer([row.source for row in corpus.train], 200)
    config = ReLUFormerConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=256,
    )
    model = ReLUFormerForConditionalGeneration(config)
    model.generation_config.max_length = 6
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_text_is_stripped():
    assert check_text("  in 5\n days ") == "in 5 days"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TEXT is empty"),
        (" \n\t", "TEXT is empty"),
        ("x" * (MAX_TEXT_LENGTH + 1), f"TEXT has {MAX_TEXT_LENGTH + 1} characters"),
        ("\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}" * 20, "TEXT has 360 characters"),
        ("in 5 \udcff", "TEXT is not valid UTF-8 at character 6"),
    ],
    ids=["empty", "blank", "long", "long after NFKC", "not Unicode"],
)
def test_bad_text_is_refused(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        check_text(text)
    assert "\n" not in str(caught.value)


def test_recipe_has_a_position_for_every_character():
    recipe = TranslationRecipe.load(ROOT / "scripts" / "recipes" / "demo.yaml")
    # one more for the mark before the first word, one for </s>
    assert recipe.model_config().max_position_embeddings >= MAX_TEXT_LENGTH + 2


def test_corpus_is_written_as_translation_data(tmp_path):
    corpus = DemoCorpus([Row("date", "May 1", "1. Mai"), Row("money", "1 €", "1 €")], [Row("date", "May 2", "2. Mai")])
    files = write_corpus(corpus, tmp_path / "corpus")
    for split, rows in (("train", corpus.train), ("validation", corpus.held_out)):
        loaded = load_translation_split({split: str(files[split])}, split, source_lang="en", target_lang="de")
        assert [(row["source"], row["target"]) for row in loaded] == [(row.source, row.target) for row in rows]
    words = data_words({"train": str(files["train"])})
    assert "CLDR" in words.name
    assert words.terms == "Unicode-3.0"


@pytest.mark.parametrize("write", [write_digits, lambda folder: write_corpus(DemoCorpus([], []), folder)])
def test_a_foreign_folder_is_not_replaced(tmp_path, write):
    write(tmp_path / "own")
    write(tmp_path / "own")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=str(tmp_path)):
        write(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_examples_are_of_different_kinds(saved_model):
    rows = build_corpus(6_000, 60).held_out
    translations = translate_rows(saved_model, rows)
    examples = first_of_each_kind(rows, translations, 10)
    assert [row.kind for row, _ in examples] == list(KINDS)[:10]
    assert all(translations[rows.index(row)] == text for row, text in examples)
    assert len(first_of_each_kind(rows, translations)) == len(KINDS)


def test_right_translations_are_counted_by_kind_and_by_length():
    rows = [
        Row("date", "May 1", "1. Mai"),
        Row("entry", "x" * LENGTHS[0], "y"),
        Row("entry", "x" * (LENGTHS[0] + 1), "y"),
        Row("date", "x" * (LENGTHS[-1] + 1), "y"),
    ]
    counts = count_right(rows, ["1. Mai", "y", "Y", "y"])
    assert counts["kind"] == {"entry": (1, 2), "date": (2, 2)}
    assert list(counts["kind"]) == ["entry", "date"]
    assert counts["length"] == {"up to 20": (2, 2), "up to 40": (0, 1), "over 120": (1, 1)}
    assert str(counts["kind"]["entry"]) == "  1 of   2 (50%)"


def test_folders_are_shown_as_no_model_of_the_hub():
    shown = runpy.run_path(str(ROOT / "scripts" / "demo.py"))["shown"]
    assert shown(Path("runs/demo")) == shown(Path("./runs/demo")) == "./runs/demo"
    assert [shown(Path(name)) for name in ("/runs/demo", "../demo")] == ["/runs/demo", "../demo"]


@pytest.mark.slow
def test_folder_opens_where_the_library_is_not(saved_model):
    answer = translate_in_clean_process(saved_model, AWKWARD_TEXT)
    assert isinstance(answer.text, str)
    assert answer.warning.startswith("the tokenizer does not know ")
    assert translate_in_clean_process(saved_model, "in 5 days").warning == ""
    # the code of the folder, not of the installed package
    assert answer.model_class.startswith("transformers_modules.")
    assert answer.model_class.endswith(".ReLUFormerForConditionalGeneration")


def test_a_folder_without_its_code_fails_in_the_clean_process(saved_model, tmp_path):
    folder = shutil.copytree(saved_model, tmp_path / "model")
    (folder / "attention.py").unlink()
    with pytest.raises(RuntimeError, match="without reluformers"):
        translate_in_clean_process(folder, "in 5 days")


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model; run make demo first"):
        translate_in_clean_process(tmp_path, "in 5 days")


def test_command_answers_bad_text_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", "--text=", f"--output_dir={tmp_path / 'model'}"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "scripts" / "demo.py"), run_name="__main__")
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("error: TEXT is empty")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("way", ["argument", "environment"])
@pytest.mark.parametrize("target", ["demo", "translate"])
def test_make_hands_text_on_untouched(tmp_path, way, target):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / ".installed").touch()
    given = [f"TEXT={AWKWARD_TEXT}"] if way == "argument" else []
    # the tests may run under make themselves
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    process = subprocess.run(
        ["make", "--no-print-directory", target, f"VENV={tmp_path}", *given],
        cwd=ROOT,
        env=environment | ({"TEXT": AWKWARD_TEXT} if way == "environment" else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = process.stdout.splitlines()
    assert lines[0] == ("scripts/demo.py" if target == "demo" else "-m")
    assert lines[-1] == (f"--text={AWKWARD_TEXT}" if target == "demo" else AWKWARD_TEXT)
