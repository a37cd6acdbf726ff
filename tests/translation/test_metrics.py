"""BLEU by languages, and the examples of an evaluation."""

import pytest
from sacrebleu.metrics import BLEU, CHRF

from reluformers.translation.metrics import CorpusMetric, bleu_metric, choose_examples


def test_bleu_counts_words_as_the_language_has_them():
    outputs, references = ["我喜歡喝綠茶。", "他住在北京"], ["我喜歡喝綠茶。", "他住在北京市"]
    texts = {"predictions": outputs, "references": references}
    found = [CorpusMetric(bleu_metric(language)).compute(**texts)["score"] for language in ("zh_TW", "de")]
    assert found[0] > 80 > found[1]
    assert bleu_metric("zh", "none").tokenizer.signature() == "none"


@pytest.mark.parametrize("metric", [BLEU(), CHRF(word_order=2)], ids=["bleu", "chrf++"])
def test_a_metric_of_evaluate_gives_what_sacrebleu_does(metric):
    outputs, references = ["a red cat sat down there", ""], ["the red cat sat down there", "a dog"]
    expected = metric.corpus_score(outputs, [references])
    found = CorpusMetric(metric).compute(predictions=outputs, references=references)
    assert (found.pop("score"), found.pop("signature")) == (expected.score, str(metric.get_signature()))
    assert found == {name: getattr(expected, name) for name in found}
    assert ("bp" in found) == isinstance(metric, BLEU)


ROWS = [
    ("a dog", "ein Hund", "eine Katze"),
    ("a cat", "eine Katze", "eine Katze"),
    ("a cat", "eine Katze", "eine Katze"),
    ("a house", "ein Haus", "ein Hauch"),
    (" ", "", ""),
    ("a tree", "ein Baum", ""),
    ("a car", "ein Auto", "ein Auto"),
]


def test_examples_are_the_right_translations_and_then_the_nearest():
    examples = choose_examples(*zip(*ROWS, strict=True), count=4)
    assert [example["source"] for example in examples] == ["a cat", "a car", "a house", "a dog"]
    assert examples[2] == {"source": "a house", "reference": "ein Haus", "output": "ein Hauch"}
