"""Classes of tokens of tokenizers of three kinds, and stop words by frequency."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from reluformers.translation.tokenization import train_tokenizer
from reluformers_research.analysis.tokens import CLASSES, frequent_words, token_classes


def classes_of(pieces: list[str], stop_words=()) -> list[str]:
    vocabulary = {piece: number for number, piece in enumerate(["</s>", *pieces])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="</s>")), eos_token="</s>"
    )
    names = [CLASSES[number] for number in token_classes(tokenizer, stop_words).tolist()]
    assert names[0] == "special"
    return names[1:]


@pytest.mark.parametrize("mark", ["▁", "Ġ"])
def test_pieces_that_mark_a_blank(mark):
    pieces = [f"{mark}The", f"{mark}house", "s", ",", f"{mark}…", f"{mark}12", "3.", mark, f"{mark}B52", "the"]
    assert classes_of(pieces, ["the"]) == [
        "stop word", "word", "part of a word", "punctuation", "punctuation", "number", "number", "special", "word",
        "part of a word",
    ]  # fmt: skip


def test_pieces_that_mark_the_lack_of_one():
    assert classes_of(["the", "house", "##s", "##,", "##the"], ["The"]) == [
        "stop word", "word", "part of a word", "punctuation", "part of a word",
    ]  # fmt: skip


def test_pieces_of_bytes_may_begin_with_that_mark():
    assert classes_of(["Ġthe", "Ġhouse", "ing", "##", "####"])[:3] == ["word", "word", "part of a word"]


def test_our_tokenizers():
    tokenizer = train_tokenizer(["the dog, the cat, the horses."] * 3, 60)
    table = token_classes(tokenizer, ["the"])
    assert len(table) == len(tokenizer)
    named = {tokenizer.convert_ids_to_tokens(number): CLASSES[kind] for number, kind in enumerate(table.tolist())}
    assert named["▁the"] == "stop word"
    assert named[","] == "punctuation"
    assert named["</s>"] == named["<pad>"] == "special"


def test_frequent_words():
    texts = ["The dog (the DOG), the 12 12 12 12 dogs!", "— a dog’s life"]
    assert frequent_words(texts, 3) == ["the", "dog", "dogs"]
    assert frequent_words([], 3) == []
