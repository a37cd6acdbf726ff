"""The repository's own translation pipeline: batches, lengths, alignments and what it refuses."""

import json
import logging
from unittest import mock

import pytest
import torch
from transformers import AutoTokenizer

from builders.clean_processes import run_clean
from builders.models import build_model
from reluformers import TranslationPipeline
from reluformers.evaluation.alignments import word_alignments
from reluformers.modeling.pipeline_translation import align_words, split_text, split_tokens
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer

LINES = ["red green big small", "old dog cat house", "tree runs sees likes", "one two three four five six"]
TEXTS = ["old dog", "one two three four five", "big cat sees tree"]
LIMIT = 32  # positions of the tiny models
WRITING = {"min_new_tokens": 4, "suppress_tokens": [0, 1, 3]}  # real words and not special tokens


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(LINES, vocab_size=60, min_frequency=1)


def make_pipeline(tokenizer, preset: str = "reluformer", **overrides) -> TranslationPipeline:
    model = build_model(preset, vocab_size=len(tokenizer), **overrides)
    return TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=12)


@pytest.fixture(scope="module")
def pipe(tokenizer):
    return make_pipeline(tokenizer)


def assert_equal_answers(ones: list[dict], others: list[dict]) -> None:
    """Up to the rounding of the weights, which follows from the shapes that are computed at a time."""
    for one, other in zip(ones, others, strict=True):
        assert one["translation_text"] == other["translation_text"]
        pairs = list(zip(one["alignments"], other["alignments"], strict=True))
        assert [link | {"weight": 0} for link, _ in pairs] == [link | {"weight": 0} for _, link in pairs]
        assert [link["weight"] for link, _ in pairs] == pytest.approx([link["weight"] for _, link in pairs], abs=1e-5)


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_batches_give_what_single_texts_give(tokenizer, padding_side):
    pipe = make_pipeline(tokenizer)
    single = [pipe(text, num_beams=2, return_alignments=True)[0] for text in TEXTS]
    tokenizer.padding_side = padding_side
    batched = pipe(TEXTS, num_beams=2, return_alignments=True, batch_size=2)
    tokenizer.padding_side = "right"
    assert_equal_answers(single, batched)
    several = pipe(TEXTS, num_beams=3, num_return_sequences=2, batch_size=3)
    assert [len(records) for records in several] == [2, 2, 2]
    assert list(pipe(text for text in TEXTS)) == pipe(TEXTS)


def test_every_token_of_a_real_encoding_has_its_word(tokenizer):
    text = "  old   dog\tsees "
    ids = tokenizer(text)["input_ids"]
    words, places = split_text(tokenizer, text, ids)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    spelled = ["".join(t for t, place in zip(tokens, places, strict=True) if place == number) for number in range(3)]
    assert words == ["old", "dog", "sees"]
    assert [spelling.replace("▁", "") for spelling in spelled] == words
    assert places[-1] == len(words)
    tokenizer = train_tokenizer(LINES, vocab_size=320, min_frequency=1, byte_fallback=True)  # bytes of a character
    text = "old 漢字 dog"
    ids = tokenizer(text)["input_ids"]
    words, places = split_tokens(tokenizer, ids)
    assert words == text.split()
    assert (words, places) == split_text(tokenizer, text, ids)


def test_memory_of_alignments_does_not_grow_with_words_that_are_cut(pipe, tokenizer):
    """There is no sum for each pair of words, whatever the model has read."""
    text = "old dog " * 500
    words, places = split_text(tokenizer, text, tokenizer(text)["input_ids"][:LIMIT])
    assert len(words) <= LIMIT
    assert max(places) <= len(words)
    (aligned,) = word_alignments(pipe.model, (tokenizer, tokenizer), [(text, text)])
    assert any(aligned)
    assert all(max(link) < LIMIT for links in aligned for link in links)


@pytest.mark.parametrize(
    "attention", [{"activation": "relu", "threshold": 1e4}, {"activation": "leaky_relu"}], ids=str
)
def test_words_without_weights_have_no_source_and_negative_ones_are_no_links(tokenizer, attention):
    (answer,) = make_pipeline(tokenizer, "relu", attention=attention)(TEXTS[1], return_alignments=True, **WRITING)
    assert answer["alignments"]
    for link in answer["alignments"]:
        assert 0 <= link["weight"] <= 1
        assert "threshold" not in attention or [*link.values()][1:] == [None, None, 0]


def test_alignment_by_hand():
    weights = torch.tensor([[0.6, 0.2, 0.2, 0.0], [0.0, 0.1, 0.1, 0.6], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    source = ["a", "b"], [0, 1, 1, 2]
    target = ["x", "y", "z"], [0, 0, 1, 2]
    links = align_words(weights, source, target)
    # x: a has 0.6, b 0.2 + 0.2 + 0.1 + 0.1, the end 0.6
    assert [link.pop("weight") for link in links] == pytest.approx([0.6 / 1.8, 0, 0])
    assert [list(link.values()) for link in links] == [["x", "a", 0], ["y", None, None], ["z", None, None]]


@pytest.fixture(scope="module")
def separate_folder(tmp_path_factory, tokenizer):
    """A saved model whose target has its own vocabulary, of other words."""
    target = train_tokenizer(["rot grün groß", "alter Hund Katze Haus"], vocab_size=50, min_frequency=1)
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(target), "tying": "none"}
    folder = tmp_path_factory.mktemp("separate")
    build_model("rela-g", **sizes).save_pretrained(folder)
    save_tokenizers(folder, tokenizer, target)
    return folder


OPEN = """
    import json
    from transformers import pipeline

    folder, texts = sys.argv[1], sys.argv[2:]
    by_name = pipeline("translation", model=folder, trust_remote_code=True)
    by_config = pipeline(model=folder, trust_remote_code=True, batch_size=2, max_new_tokens=6)
    by_config.save_pretrained("again")
    again = pipeline(model="again", trust_remote_code=True, max_new_tokens=6)
    try:
        pipeline("translation", model=folder, trust_remote_code=False)
    except ValueError as error:
        assert "trust_remote_code" in str(error)
    else:
        raise SystemExit("opened without trust")
    answers = [pipe(texts, return_alignments=True) for pipe in (by_config, again)]
    answers.append(by_name(texts, return_alignments=True, max_new_tokens=6))
    sys.stdout.write(json.dumps(answers))
"""


def test_opens_by_name_and_by_config_in_a_clean_process(separate_folder, tmp_path):
    answers = json.loads(run_clean(OPEN, tmp_path, str(separate_folder), *TEXTS))
    assert_equal_answers(answers[0], answers[1])
    assert_equal_answers(answers[0], answers[2])
    target = AutoTokenizer.from_pretrained(separate_folder, subfolder="target_tokenizer")
    written = " ".join(answer["translation_text"] for answer in answers[0])
    assert written.strip()
    assert set(written) <= set("".join(target.convert_ids_to_tokens(range(len(target))))) | {" "}
    names = [{path.name for path in place.glob("*.py")} for place in (separate_folder, tmp_path / "again")]
    assert "pipeline_translation.py" in names[0]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("saved", "options", "expected"),
    [
        ({"max_length": 13}, {}, LIMIT),
        ({"max_new_tokens": 12}, {"max_length": 5}, 4),
        ({"max_length": 13}, {"max_new_tokens": 20}, 20),
    ],
)
def test_length_of_the_translation(tokenizer, options, expected, saved):
    """A model that never ends: what is asked for goes before the rule, and the rule before what is saved."""
    model = build_model("reluformer", vocab_size=len(tokenizer), tying="none", output_bias=True)
    pipe = TranslationPipeline(model, tokenizer, device="cpu")
    model.generation_config.update(**saved)
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] = -1e4
    with mock.patch.object(model, "generate", wraps=model.generate) as generate:
        pipe(TEXTS[0], **options)
        tokens = model.generate(**generate.call_args.kwargs)
    assert tokens.shape[1] == expected + 1


def test_long_texts_are_cut_with_a_warning(pipe, caplog):
    long = "red dog " * 40
    with caplog.at_level(logging.WARNING):
        answers = pipe([long, TEXTS[0]], return_alignments=True)
    assert len(caplog.messages) == 1
    assert pipe(long)[0]["translation_text"] == answers[0]["translation_text"]
    for truncation in (False, "do_not_truncate"):
        with pytest.raises(ValueError, match=f"the model takes {LIMIT}"):
            pipe(long, truncation=truncation)
