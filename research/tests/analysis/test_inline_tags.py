"""Inline tags: what is taken out of a source, and where it goes in a translation, by alignments given by hand."""

import re

import pytest

from builders.models import build_model
from reluformers import TranslationPipeline
from reluformers.translation.tokenization import train_tokenizer
from reluformers_research.analysis.inline_tags import UNITS, insert_tags, take_tags, translate_tagged


def carry(source: str, target: str, source_of: list[int | None]) -> str:
    plain, tags = take_tags(source)
    return insert_tags(tags, plain, target, source_of)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a <b>black</b> dog", "a black dog"),
        ("line<br/>next", "line next"),
        ("line<br>next", "line next"),
        ("un<b>believ</b>able", "unbelievable"),
        ('see <a href="x/y">here</a>.', "see here."),
        ("1 < 2 and 3 > 2, <3", "1 < 2 and 3 > 2, <3"),
        ("<g id='1'><x id='2'/>on</g> off", "on off"),
    ],
)
def test_what_is_a_tag(text, plain):
    assert re.sub(r"\s+", " ", take_tags(text)[0]).strip() == plain


def test_no_tag_changes_nothing():
    plain, tags = take_tags("a dog & 1 < 2")
    assert (plain, tags) == ("a dog & 1 < 2", [])
    assert insert_tags(tags, plain, "ein Hund", [0, 1]) == "ein Hund"


@pytest.mark.parametrize(
    ("source", "target", "source_of", "expected"),
    [
        # units of the target → units of the source
        ("a <b>black</b> dog.", "ein schwarzer Hund.", [0, 1, 2, 3], "ein <b>schwarzer</b> Hund."),
        ("a <b>dog</b>.", "ein Hund.", [0, 1, 2], "ein <b>Hund</b>."),
        ("the <i>white house</i>", "la maison blanche", [0, 2, 1], "la <i>maison blanche</i>"),
        # one that is not aligned lies between two that are; one at the edge stays outside
        ("<b>I saw</b> it", "je l' ai vu", [0, None, None, None, 1], "<b>je l' ai vu</b>"),
        ("I <b>saw</b> it", "je vu oui", [0, 1, None], "je <b>vu</b> oui"),
        # the runs of two verbs are equally good, and the first one counts
        ("I <b>saw</b> him", "ich habe ihn gesehen", [0, 1, 2, 1], "ich <b>habe</b> ihn gesehen"),
        ("<a><b>big</b> dog</a> runs", "läuft großer Hund", [2, 0, 1], "läuft <a><b>großer</b> Hund</a>"),
        ("<b>x</b> <i>y</i>", "Y X", [1, 0], "<i>Y</i> <b>X</b>"),
        # nothing is aligned with it: it is kept, empty
        ("a <b>big</b> dog", "ein Hund", [0, 2], "ein <b></b>Hund"),
        ("one<br/>two", "eins zwei", [0, 1], "eins<br/>zwei"),
        ("one <br/> two", "eins zwei", [0, 1], "eins <br/> zwei"),
        ("one<br/> two", "eins zwei", [0, 1], "eins<br/> zwei"),
        ("one <x/>two", "zwei eins", [1, 0], "<x/>zwei eins"),
        ("<x/>one two", "eins zwei", [0, 1], "<x/>eins zwei"),
        ("one two <x/>", "eins zwei.", [0, 1, None], "eins zwei. <x/>"),
        ("one </b>two", "eins zwei", [0, 1], "eins </b>zwei"),
        ("<b><i>one</b></i>", "eins", [0], "<b><i>eins</b></i>"),
        ("<b>one</b>", "", [], "<b></b>"),
        ("one <b><br/></b> two", "eins zwei", [0, 1], "eins <b><br/></b>zwei"),
    ],
)
def test_where_tags_go(source, target, source_of, expected):
    assert carry(source, target, source_of) == expected


@pytest.mark.parametrize("seed", range(30))
def test_every_tag_is_kept_once_well_nested_and_the_text_as_it_was(seed):
    import random

    rng = random.Random(seed)
    source = "<a>one <b>two</b> <x/> <i>three <u>four</u></i></a>, five<br/>six <s>seven</s>"
    target = " ".join(f"w{number}" for number in range(rng.randint(0, 9)))
    units = len(re.findall(UNITS, target))
    carried = carry(source, target, [rng.choice([None, *range(8)]) for _ in range(units)])
    tags = re.findall(r"<[^>]+>", carried)
    assert sorted(tags) == sorted(re.findall(r"<[^>]+>", source))
    assert re.sub(r"<[^>]+>", "", carried).split() == target.split() or "<br/>" in carried
    assert "".join(re.sub(r"<[^>]+>|\s", "", carried)) == target.replace(" ", "")
    opened = []
    for tag in tags:
        if tag.startswith("</"):
            assert opened.pop() == tag[2:-1]
        elif not tag.endswith("/>"):
            opened.append(tag[1:-1])
    assert not opened


def test_a_text_without_anything_but_tags_is_refused():
    pipe = TranslationPipeline(*build_small(), device="cpu")
    assert translate_tagged(pipe, "<x/>dog", max_new_tokens=4).count("<x/>") == 1
    with pytest.raises(ValueError, match="not empty"):
        translate_tagged(pipe, "<b></b>")


def build_small():
    tokenizer = train_tokenizer(["a dog runs"], 40, min_frequency=1)
    return build_model("softmax", vocab_size=len(tokenizer)), tokenizer
