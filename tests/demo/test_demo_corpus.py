"""The corpus of `make demo`: real, reproducible, and its held-out rows held out."""

import random
import re

import pytest

from demo.corpus import KINDS, SOURCE, TARGET, build_corpus, cities, city, draw_rows, plain, territories

pytestmark = pytest.mark.xdist_group("corpus")


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(train_rows=2_000, held_out_rows=100)


def test_seed_decides(corpus):
    assert build_corpus(2_000, 100) == corpus
    other = build_corpus(2_000, 100, seed=1)
    assert not {row.source for row in other.held_out} & {row.source for row in corpus.held_out}


def word_set(texts) -> set[str]:
    return {word for text in texts for word in re.findall(r"[^\W\d_]+", text)}


@pytest.mark.parametrize("side", [1, 2], ids=["source", "target"])
def test_held_out_rows_are_new_lines_of_known_words(corpus, side):
    train, held_out = [row[side] for row in corpus.train], [row[side] for row in corpus.held_out]
    assert (len(set(train)), len(set(held_out))) == (2_000, 100)
    assert not set(train) & set(held_out)
    assert not word_set(held_out) - word_set(train)


@pytest.mark.parametrize("kind", KINDS)
def test_facts_come_from_the_given_source_alone(kind):
    random.seed(1)
    first = KINDS[kind](random.Random(7))
    random.seed(2)
    second = KINDS[kind](random.Random(7))
    assert (first(SOURCE), first(TARGET)) == (second(SOURCE), second(TARGET))


def test_a_line_has_one_translation():
    targets = {}
    for row in (row for seed in range(2) for row in draw_rows(random.Random(seed), 2000)):
        assert targets.setdefault(row.source, row.target) == row.target
    assert not {plain(city(zone)(SOURCE)) for zone in cities()} & {SOURCE.territories[code] for code in territories()}
