"""The demo's steps around the training: what goes in, what it may replace, and the process without reluformers."""

import re
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from builders.models import build_model
from demo.corpus import DemoCorpus, Row, build_corpus
from demo.digits import write_digits
from demo.translation import (
    translate_in_clean_process,
    write_corpus,
)
from reluformers.translation.loading import load_translation_split
from reluformers.translation.tokenization import train_tokenizer

# make, the shell or Python could each take a part of it for their own
AWKWARD_TEXT = """a "b" 'c' `d` $HOME $(shell e) ${f} ; # & | \\ -- 100 % Åland €"""


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory) -> Path:
    """An untrained model as the demo saves it."""
    folder = tmp_path_factory.mktemp("model")
    corpus = build_corpus(6_000, 10)
    tokenizer = train_tokenizer([row.source for row in corpus.train], 200)
    model = build_model("reluformer", vocab_size=len(tokenizer), max_position_embeddings=256)
    model.generation_config.max_length = 6
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_corpus_is_written_as_translation_data(tmp_path):
    corpus = DemoCorpus([Row("date", "May 1", "1. Mai"), Row("money", "1 €", "1 €")], [Row("date", "May 2", "2. Mai")])
    files = write_corpus(corpus, tmp_path / "corpus")
    for split, rows in (("train", corpus.train), ("validation", corpus.held_out)):
        loaded = load_translation_split({split: str(files[split])}, split, source_lang="en", target_lang="de")
        assert [(row["source"], row["target"]) for row in loaded] == [(row.source, row.target) for row in rows]
    card = DatasetCard.load(files["train"].with_name("README.md"))
    assert "CLDR" in card.data.pretty_name
    assert card.data.license == "Unicode-3.0"


@pytest.mark.parametrize("write", [write_digits, lambda folder: write_corpus(DemoCorpus([], []), folder)])
def test_a_foreign_folder_is_not_replaced(tmp_path, write):
    write(tmp_path / "own")
    write(tmp_path / "own")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=str(tmp_path)):
        write(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.slow
def test_folder_opens_where_the_library_is_not(saved_model):
    answer = translate_in_clean_process(saved_model, AWKWARD_TEXT)
    assert isinstance(answer["translation_text"], str)
    assert answer["warning"]
    assert translate_in_clean_process(saved_model, "in 5 days")["warning"] == ""
    # the code of the folder, not of the installed package
    assert re.fullmatch(r"transformers_modules\..*\.ReLUFormerForConditionalGeneration", answer["model_class"])
