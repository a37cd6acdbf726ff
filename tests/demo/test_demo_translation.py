"""The demo's steps around the training: what goes in, what it may replace, and the process without reluformers."""

import pytest
from huggingface_hub import DatasetCard

from demo.corpus import DemoCorpus, Row
from demo.digits import write_digits
from demo.translation import write_corpus
from reluformers.translation.loading import load_translation_split
from reluformers.translation.rows import PairColumns


def test_corpus_is_written_as_translation_data(tmp_path):
    corpus = DemoCorpus([Row("date", "May 1", "1. Mai"), Row("money", "1 €", "1 €")], [Row("date", "May 2", "2. Mai")])
    files = write_corpus(corpus, tmp_path / "corpus")
    for split, rows in (("train", corpus.train), ("validation", corpus.held_out)):
        loaded = load_translation_split({split: str(files[split])}, split, PairColumns("en", "de"))
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
