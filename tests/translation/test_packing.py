"""Documents packed to a limit, checked against the rule of the paper."""

import numpy as np
import pytest
from datasets import Dataset

from reluformers.translation.tokenization import train_tokenizer
from reluformers.translation.tokenized_rows import pack_documents, token_lengths, tokenize_pairs

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "slept"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join(WORDS)] * 4, 60)


def documents_of(lengths, names):
    """Make sentences of given numbers of words, (source, target), which are as many tokens."""
    source, target = ([" ".join((WORDS * 7)[:length]) for length in side] for side in zip(*lengths, strict=True))
    return Dataset.from_dict({"source": source, "target": target, "document": names})


def test_blank_sentences_add_no_blanks(tokenizer):
    dataset = Dataset.from_dict({"source": ["a", " ", "cat "], "target": ["a", "", "mat"], "document": ["x"] * 3})
    assert pack_documents(dataset, tokenizer, tokenizer, 10)[0] == {
        "source": "a cat",
        "target": "a mat",
        "document": "x",
        "sentences": 3,
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [5, 16, 64])
def test_rule_of_the_paper(tokenizer, seed, limit):
    random = np.random.default_rng(seed)
    names = np.repeat(np.arange(12), random.integers(1, 20, 12)).tolist()
    lengths = random.integers(1, 14, (len(names), 2))
    dataset = documents_of(lengths.tolist(), names)
    packed = pack_documents(dataset, tokenizer, tokenizer, limit)

    counts = packed["sentences"][:]
    assert sum(counts) == len(dataset)
    assert " ".join(packed["source"]) == " ".join(dataset["source"])
    assert " ".join(packed["target"]) == " ".join(dataset["target"])
    tokenized = tokenize_pairs(packed, tokenizer, tokenizer)
    longest = np.maximum(token_lengths(tokenized, "input_ids"), token_lengths(tokenized, "labels"))
    starts = np.cumsum([0, *counts])
    assert packed["document"][:] == [names[start] for start in starts[:-1]]
    for start, stop, length in zip(starts, starts[1:], longest, strict=False):
        assert len(set(names[start:stop])) == 1
        assert length <= limit or stop - start == 1
        if stop < len(names) and names[stop] == names[start]:
            # one sentence more would pass the limit
            assert lengths[start : stop + 1].sum(axis=0).max() + 1 > limit


def test_faults_are_named(tokenizer):
    dataset = documents_of([(1, 1)] * 4, ["x", "y", "x", "x"])
    with pytest.raises(ValueError, match="row 3: document 'x'"):
        pack_documents(dataset, tokenizer, tokenizer, 10)
    with pytest.raises(ValueError, match="row 2: document None"):
        pack_documents(documents_of([(1, 1)] * 2, ["x", None]), tokenizer, tokenizer, 10)
