"""The corpus of `make demo`: real, reproducible, and its held-out rows held out."""

import random
import re
import unicodedata
from datetime import datetime

import pytest

from demo.corpus import (
    KINDS,
    LONG_KINDS,
    SOURCE,
    TARGET,
    build_corpus,
    cities,
    city,
    draw_rows,
    listed,
    named,
    plain,
    quantity,
    territories,
)


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(train_rows=6_000, held_out_rows=100)


def rows(corpus, kind: str) -> list:
    return [row for row in corpus.train if row.kind == kind]


def word_set(texts) -> set[str]:
    return {word for text in texts for word in re.findall(r"[^\W\d_]+", text)}


def test_seed_decides(corpus):
    assert build_corpus(6_000, 100) == corpus
    other = build_corpus(6_000, 100, seed=1)
    assert not {row.source for row in other.held_out} & {row.source for row in corpus.held_out}


def test_sizes_are_as_asked(corpus):
    assert (len(corpus.train), len(corpus.held_out)) == (6_000, 100)


def test_held_out_rows_are_not_in_training(corpus):
    for side in (1, 2):
        train, held_out = [row[side] for row in corpus.train], [row[side] for row in corpus.held_out]
        assert not set(train) & set(held_out)
        assert len(set(train + held_out)) == len(train) + len(held_out)


@pytest.mark.parametrize("side", [1, 2], ids=["source", "target"])
def test_held_out_rows_are_made_of_known_words(corpus, side):
    unknown = word_set(row[side] for row in corpus.held_out) - word_set(row[side] for row in corpus.train)
    assert not unknown


def test_every_kind_is_in_both_sets(corpus):
    assert len(KINDS) >= 8
    for part in (corpus.train, corpus.held_out):
        assert {row.kind for row in part} == set(KINDS)


def test_lines_have_many_parts_and_lists_up_to_six(corpus):
    parts = {len(re.split(r", (?:and |or )?| and | or ", row.source)) for row in rows(corpus, "languages")}
    assert parts >= set(range(1, 7))
    for kind in LONG_KINDS:
        assert len(rows(corpus, kind)) > 2 * len(rows(corpus, "date"))
    assert {row.source.count("; ") + 1 for row in rows(corpus, "series")} == {2, 3}
    assert max(len(row.source) for row in corpus.train) > 150


def test_text_is_plain(corpus):
    for row in corpus.train:
        for text in (row.source, row.target):
            assert text == " ".join(unicodedata.normalize("NFKC", text).split())
            assert text.isprintable()


def test_sides_are_languages(corpus):
    changed = [row for row in corpus.train if row.source != row.target]
    assert len(changed) > 0.97 * len(corpus.train)
    assert "and" not in word_set(row.target for row in rows(corpus, "duration"))
    assert "und" not in word_set(row.source for row in corpus.train)


def test_amounts_are_the_same(corpus):
    separators = str.maketrans(",.", ".,")
    for row in rows(corpus, "money"):
        assert row.source.split()[0].translate(separators) == row.target.split()[0]


def test_clocks_tell_the_same_time(corpus):
    for row in rows(corpus, "time zone"):
        twelve = re.match(r"\d+:\d+ [AP]M", row.source)[0]
        assert datetime.strptime(twelve, "%I:%M %p") == datetime.strptime(row.target[:5], "%H:%M")


def test_relative_times_use_the_dative(corpus):
    days = [row for row in rows(corpus, "relative time") if row.source.endswith(" days ago")]
    assert days
    for row in days:
        assert re.search(r"(^|: )vor \d+ Tagen$", row.target)


@pytest.mark.parametrize(
    ("render", "source", "target"),
    [
        (named("territories", "AT"), "Austria", "Österreich"),
        (named("languages", "da"), "Danish", "Dänisch"),
        (city("Europe/Vienna"), "Vienna", "Wien"),
        (city("America/Mexico_City"), "Mexico City", "Mexiko-Stadt"),
        (quantity(12, "length-mile"), "12 miles", "12 Meilen"),
        (listed([city("Europe/Rome"), city("Asia/Tokyo")], "or"), "Rome or Tokyo", "Rom oder Tokio"),
        (
            listed([named("territories", code) for code in ("DE", "FR", "IT")], "standard"),
            "Germany, France, and Italy",
            "Deutschland, Frankreich und Italien",
        ),
    ],
)
def test_lines_say_the_same(render, source, target):
    assert (render(SOURCE), render(TARGET)) == (source, target)


@pytest.mark.parametrize("kind", KINDS)
def test_facts_come_from_the_given_source_alone(kind):
    random.seed(1)
    first = KINDS[kind](random.Random(7))
    random.seed(2)
    second = KINDS[kind](random.Random(7))
    assert (first(SOURCE), first(TARGET)) == (second(SOURCE), second(TARGET))


def test_a_line_has_one_translation():
    targets = {}
    for row in (row for seed in range(3) for row in draw_rows(random.Random(seed), 4000)):
        assert targets.setdefault(row.source, row.target) == row.target
    assert not {plain(city(zone)(SOURCE)) for zone in cities()} & {SOURCE.territories[code] for code in territories()}


def test_too_few_training_rows_are_refused():
    with pytest.raises(ValueError, match=r"20 training rows hold the words of only \d+ of 50 held-out rows"):
        build_corpus(train_rows=20, held_out_rows=50)
