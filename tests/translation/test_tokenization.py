"""Tokenizers: round trip, special ids, determinism, storage, and pairs turned into ids."""

import copy
import logging
import unicodedata
from types import SimpleNamespace

import pytest
from datasets import Dataset
from tokenizers import processors
from transformers import AutoTokenizer

from reluformers.translation.metrics import bleu_metric
from reluformers.translation.tokenization import (
    check_tokenizers_fit,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
)
from reluformers.translation.tokenized_rows import tokenize_pairs

TEXTS = [
    "The cat sat on the mat, and the dog didn't.",
    "Die Katze saß auf der Matte, der Hund nicht.",
    "“Où est-il?” — asked 42 people (or so) at 10:30 …",
    "naïve café, coöperate; ﬁne ½ m², 3 × 4 = 12",
    "snake_case e-mail@example.org 100% <s> [x] {y} a/b\\c",
] * 4


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 300)


def plain(text):
    return " ".join(unicodedata.normalize("NFC", text).split())


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("text", [*TEXTS[:5], "  the \t cat\u00a0sat\n", "dog", "", " "])
def test_round_trip(text, byte_fallback):
    tokenizer = train_tokenizer(TEXTS, 500, byte_fallback=byte_fallback)
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == plain(text)
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("shared", [True, False])
def test_references_of_chinese_score_100_against_themselves(shared):
    """NFKC would write , for ， and 1 for １: 37.6 BLEU."""
    references = ["他说，“２０２４年”；你呢？", "是的：（一）、Ａ。", "①价格￥３５，约½㎏！", "ﬁn 2²"]
    source = train_tokenizer(references * 4, 300, normalization="nfc" if shared else "nfkc")
    target = source if shared else train_tokenizer(references * 4, 300)
    outputs = target.batch_decode(target(text_target=references)["input_ids"], skip_special_tokens=True)
    assert outputs == references
    assert bleu_metric("zh").corpus_score(outputs, [references]).score == pytest.approx(100)
    assert (source.tokenize("，") == source.tokenize(",")) is not shared


def test_special_ids_and_special_tokens_of_a_text(tokenizer):
    names = ("pad", "bos", "eos", "unk")
    assert [getattr(tokenizer, f"{name}_token_id") for name in names] == [0, 1, 2, 3]
    encoded = tokenizer("the </s> <pad> cat", text_target="der Hund")
    assert set(encoded) == {"input_ids", "attention_mask", "labels"}
    assert encoded["input_ids"].count(2) == encoded["labels"].count(2) == 1
    assert 0 not in encoded["input_ids"]


def test_the_same_texts_in_lists_or_not_give_the_same_tokenizer_of_the_size():
    lists = (TEXTS[start : start + 3] for start in range(0, len(TEXTS), 3))
    trained = [train_tokenizer(texts, 400, byte_fallback=True) for texts in (TEXTS, lists, TEXTS)]
    assert len({tokenizer.backend_tokenizer.to_str() for tokenizer in trained}) == 1
    assert len(trained[0]) == 400


def test_unseen_characters(tokenizer):
    text = "the 漢字 cat 😀"
    assert tokenizer(text).input_ids.count(tokenizer.unk_token_id) == 2
    spelling = train_tokenizer(TEXTS, 500, byte_fallback=True)
    ids = spelling(text).input_ids
    assert spelling.unk_token_id not in ids
    assert spelling.decode(ids, skip_special_tokens=True) == text
    # a byte token's name in a text is not the byte
    assert spelling.decode(spelling("a <0x41>").input_ids, skip_special_tokens=True) == "a <0x41>"


@pytest.mark.parametrize("most", [1, 3])
def test_numbers_are_cut_into_groups_on_request(most):
    texts = ["on 12 May 2024, 10:30", "12 in 2024: 3,500.75 m²"] * 8
    cut = train_tokenizer(texts, 120, max_digits=most)
    for token in cut.get_vocab():
        digits = token.removeprefix("▁")
        assert (digits.isdecimal() and len(digits) <= most) or not any(map(str.isdecimal, token))
    assert cut.tokenize("2024") == {1: ["▁2", "0", "2", "4"], 3: ["▁202", "4"]}[most]
    for text in [*texts[:2], "2034 m² in 1510"]:
        assert cut.decode(cut(text).input_ids, skip_special_tokens=True) == unicodedata.normalize("NFC", text)


def test_reloaded_tokenizer_is_the_same(tokenizer, tmp_path):
    save_tokenizers(tmp_path, tokenizer)
    source, target = load_tokenizers(tmp_path)
    assert source is target
    for text in [*TEXTS[:5], "漢字 </s>"]:
        assert source(text).input_ids == tokenizer(text).input_ids
    assert source.model_max_length == tokenizer.model_max_length
    assert source.model_input_names == ["input_ids", "attention_mask"]


def test_separate_vocabularies(tmp_path):
    english, german = train_tokenizer(TEXTS[:1], 40), train_tokenizer(TEXTS[1:2], 50)
    save_tokenizers(tmp_path, english, german)
    source, target = load_tokenizers(tmp_path)
    assert source.get_vocab() == english.get_vocab() == AutoTokenizer.from_pretrained(tmp_path).get_vocab()
    assert target.get_vocab() == german.get_vocab() != english.get_vocab()


def config(**changes):
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 3}
    return SimpleNamespace(**{"vocab_size": 300, "decoder_vocab_size": None, **ids, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": 20}, "the source tokenizer .* 20 embeddings"),
        ({"decoder_vocab_size": 21}, "the target tokenizer .* 21 embeddings"),
        ({"eos_token_id": 0}, "eos_token_id"),
    ],
)
def test_misfit_is_named(tokenizer, changes, named):
    check_tokenizers_fit((tokenizer, tokenizer), config(vocab_size=len(tokenizer) + 8, unk_token_id=None))
    with pytest.raises(ValueError, match=named):
        check_tokenizers_fit((tokenizer, tokenizer), config(**changes))


def test_a_tokenizer_without_end_or_padding_is_refused(tokenizer):
    endless, unpadded = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    endless.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    unpadded.pad_token = None
    for pair, side in (((tokenizer, endless), "target"), ((unpadded,) * 2, "source")):
        with pytest.raises(ValueError, match=f"the {side} tokenizer"):
            check_tokenizers_fit(pair, config())


@pytest.fixture(scope="module")
def pairs():
    return Dataset.from_dict(
        {
            "source": ["the cat", "", "the dog sat on the mat, and the cat didn't"],
            "target": ["die Katze", "x", "der Hund"],
        }
    )


def test_pairs_become_ids(pairs):
    english, german = train_tokenizer(TEXTS[:1], 40), train_tokenizer(TEXTS[1:2], 50)
    tokenized = tokenize_pairs(pairs, english, german)
    assert tokenized["input_ids"][:] == english(pairs["source"][:]).input_ids
    assert tokenized["labels"][:] == german(pairs["target"][:]).input_ids
    assert tokenized["source"][:] == pairs["source"][:]


def test_long_pairs_are_cut_and_reported(pairs, tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        tokenized = tokenize_pairs(pairs, tokenizer, tokenizer, max_length=9)
    whole = tokenizer(pairs["source"][2]).input_ids
    assert tokenized["input_ids"][2] == [*whole[:8], tokenizer.eos_token_id]
    assert tokenized["input_ids"][0] == tokenizer(pairs["source"][0]).input_ids
    assert "1 of 3 rows are longer than 9 tokens and were cut" in caplog.text


def test_what_is_cut_keeps_all_of_an_ending_of_two_tokens(pairs, tokenizer):
    ending = processors.TemplateProcessing(single="$A </s> <s>", special_tokens=[("</s>", 2), ("<s>", 1)])
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.post_processor = ending
    assert other.convert_ids_to_tokens([2, 1]) == ["</s>", "<s>"]
    tokenized = tokenize_pairs(pairs, other, other, max_length=9)
    assert tokenized["input_ids"][2] == other(pairs["source"][2], truncation=True, max_length=9).input_ids
    assert tokenized["input_ids"][2][-2:] == [2, 1]
