"""Which translations show a model."""

from reluformers.translation.examples import choose_examples

ROWS = [
    ("a dog", "ein Hund", "eine Katze"),
    ("a cat", "eine Katze", "eine Katze"),
    ("a cat", "eine Katze", "eine Katze"),
    ("a house", "ein Haus", "ein Hauch"),
    (" ", "", ""),
    ("a tree", "ein Baum", ""),
    ("a car", "ein Auto", "ein Auto"),
]


def test_right_ones_go_first_and_then_the_nearest():
    examples = choose_examples(*zip(*ROWS, strict=True), count=4)
    assert [example["source"] for example in examples] == ["a cat", "a car", "a house", "a dog"]
    assert examples[2] == {"source": "a house", "reference": "ein Haus", "output": "ein Hauch"}


def test_no_more_than_asked_for():
    assert [example["source"] for example in choose_examples(*zip(*ROWS, strict=True), count=1)] == ["a cat"]
    assert choose_examples([], [], []) == []


def test_of_equal_sources_the_earlier_goes_first():
    rows = choose_examples(["A", "B", "A"], ["a", "b", "a"], ["a", "b", "a"], count=1)
    assert [row["source"] for row in rows] == ["A"]
