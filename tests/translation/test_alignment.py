"""Which layer's links are the best: the formula by hand, and on models that look where they are told to."""

import pytest
import torch
from datasets import Dataset

from builders.models import build_model
from reluformers.translation import alignment
from reluformers.translation.alignment import LEAST_LINKS, LayerAgreement, measure_layers, same_words
from reluformers.translation.tokenization import tokenize_pairs, train_tokenizer

WORDS = ["Anna", "Berlin", "2024", "12", "Oslo", "77", "Rome", "Paul"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join(WORDS)] * 3, 60, min_frequency=1)


@pytest.fixture(scope="module")
def pairs(tokenizer):
    sources = [" ".join(WORDS[(start + step) % 8] for step in range(3 + start % 4)) for start in range(20)]
    # the words of the target stand the other way round
    targets = [" ".join(reversed(source.split())) for source in sources]
    rows = Dataset.from_dict({"source": sources, "target": targets})
    return tokenize_pairs(rows, tokenizer, tokenizer)


def test_words_that_are_the_same_once_on_both_sides():
    source = ["12", "cats", "in", "Rome", ".", "in", "2"]
    target = ["Rome", ":", "12", "in", "Katzen", ".", "2", "2"]
    assert same_words(source, target) == [(0, 3), (2, 0)]


@pytest.mark.parametrize(
    ("shares", "links", "layer"),
    [
        ([0.2, 0.3, 0.9], 100, 2),
        ([0.9, 0.3, 0.2], 100, 0),
        ([0.9, 0.9, 0.9], 100, 1),
        ([0.9, 0.1, 0.9], 100, 0),
        ([1.0], 100, 0),
        ([0.2, 0.3, 0.9], LEAST_LINKS - 1, None),
    ],
)
def test_the_best_layer(shares, links, layer):
    assert LayerAgreement(shares, links).layer == layer


def test_a_layer_that_looks_at_the_same_word_has_all_links(tokenizer, pairs, monkeypatch):
    """One layer looks at the tokens that are the same, one at the first, one at nothing."""

    def look(model, batch):
        same = (batch["labels"][:, :, None] == batch["input_ids"][:, None, :]).float()
        first = torch.zeros_like(same)
        first[:, :, 0] = 1
        return tuple(weights[:, None].expand(-1, 2, -1, -1) for weights in (first, same, torch.zeros_like(same)))

    monkeypatch.setattr(alignment, "_cross_attentions", look)
    model = build_model("softmax", vocab_size=len(tokenizer))
    agreement = measure_layers(model, (tokenizer, tokenizer), pairs)
    assert agreement.links == sum(len(source.split()) for source in pairs["source"])
    assert agreement.layer == 1
    assert agreement.shares == pytest.approx([20 / agreement.links, 1, 0])


def test_measured_on_the_model_itself(tokenizer, pairs):
    model = build_model("reluformer", vocab_size=len(tokenizer)).train()
    agreement = measure_layers(model, (tokenizer, tokenizer), pairs)
    assert model.training
    assert len(agreement.shares) == model.config.decoder_layers
    assert all(0 <= share <= 1 for share in agreement.shares)
    assert any(agreement.shares)
    again = measure_layers(model.eval(), (tokenizer, tokenizer), pairs)
    assert again == agreement


def test_rows_that_were_cut(tokenizer, pairs):
    rows = pairs.remove_columns(["input_ids", "labels"])
    cut = tokenize_pairs(rows, tokenizer, tokenizer, max_length=3, truncate=True)
    agreement = measure_layers(build_model("softmax", vocab_size=len(tokenizer)), (tokenizer, tokenizer), cut)
    assert agreement.links > 0


def test_slow_tokenizers_give_no_links(tokenizer, pairs, monkeypatch):
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    agreement = measure_layers(build_model("softmax", vocab_size=len(tokenizer)), (tokenizer, tokenizer), pairs)
    assert (agreement.links, agreement.layer) == (0, None)
