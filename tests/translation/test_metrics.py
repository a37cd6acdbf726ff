"""BLEU by languages, and the examples of an evaluation."""

from reluformers.translation.metrics import bleu_metric, choose_examples


def test_bleu_counts_words_as_the_language_has_them():
    outputs, references = ["我喜歡喝綠茶。", "他住在北京"], ["我喜歡喝綠茶。", "他住在北京市"]
    found = [bleu_metric(language).corpus_score(outputs, [references]).score for language in ("zh_TW", "de")]
    assert found[0] > 80 > found[1]
    assert bleu_metric("zh", "none").tokenizer.signature() == "none"


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
    assert choose_examples(*zip(*ROWS, strict=True), count=1) == examples[:1]
    assert choose_examples([], [], []) == []
    rows = choose_examples(["A", "B", "A"], ["a", "b", "a"], ["a", "b", "a"], count=1)
    assert [row["source"] for row in rows] == ["A"]  # of equal sources the earlier
