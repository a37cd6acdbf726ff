"""What a card must not be, and files that cards are made from."""

import json
import re
from pathlib import Path

import pytest
import yaml

from builders.finished_runs import translation_run
from reluformers.data.names import source_name
from reluformers.publish.card import write_card
from reluformers.publish.card_check import check_card, check_card_text

PINNED = Path(__file__).parent


@pytest.mark.parametrize("name", ["recipe.yaml", "results.json", "evaluation.json", "log_history.json"])
def test_damaged_files_are_named(tmp_path, name):
    folder = translation_run(tmp_path / "run")
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match=re.escape(str(folder / name))):
        write_card(folder, "someone/x")


VALID = (PINNED / "card_translation.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("library_name: transformers\n", "", "library_name is None"),
        ("pipeline_tag: translation", "pipeline_tag: translate", "pipeline_tag is 'translate'"),
        ("license: apache-2.0", "license: Apache-2.0", "license is 'Apache-2.0'"),
        ("license: apache-2.0\n", "", "license is None"),
        ("license: apache-2.0", "license: []", "license is None"),
        ("license: apache-2.0", "license: {a: b}", "license is {'a': 'b'}"),
        ("license: apache-2.0", "license: [[mit]]", r"license is \['mit'\]"),
        ("license: apache-2.0", "license: apache-2.0\n5: a", "cannot be read"),
        ("widget:\n- text", "widget:\n- src: 5\n  text", "widget must be"),
        ("widget:\n- text", "widget:\n- src:\n  text", "widget must be"),
        ("- en\n", "- english\n", "ISO 639"),
        ("- en\n", "- no\n", "language is .* quote no"),
        ("datasets:\n- bentrevett/multi30k", "datasets:\n- /data/multi30k", "datasets has '/data/multi30k'"),
        ("widget:\n- text", "widget:\n- input", "widget must be"),
        ("      type: bentrevett/multi30k\n", "", "model-index is not complete"),
        ("      value: 35.99\n", "", "a metric without a value"),
        ("---\ndatasets", "datasets", "has no metadata"),
        ("license: apache-2.0", "license: [", "are no YAML"),
        ("## Limits", "[More Information Needed]", "still holds"),
        ("## Limits", "See ~/runs/x and C:\\runs.", "a path of this machine, ~/runs/x"),
        ("## Limits", "hf_" + "a1B2" * 9, "holds a token of the Hub; take it out"),
        ("attention.png", "missing.png", "shows missing.png, but there is no such file"),
    ],
)
def test_what_a_card_must_not_be(tmp_path, old, new, message):
    (tmp_path / "attention.png").write_bytes(b"")
    check_card_text(VALID, tmp_path / "README.md")
    assert old in VALID
    (tmp_path / "README.md").write_text(VALID.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        check_card(tmp_path / "README.md")
    assert "\n" not in str(caught.value)


def test_a_card_without_examples_may_say_so(tmp_path):
    text = "---\nlibrary_name: transformers\npipeline_tag: translation\nlicense: [mit]\nwidget:\n---\n# Tiny\n"
    assert check_card_text(text, tmp_path / "README.md").data.license == ["mit"]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("evaluation", {"scores": {"bleu": 30.0}}, r"evaluation\.json: "),
        ("evaluation", {"scores": {"bleu": {}}}, r"evaluation\.json: .*value"),
        ("evaluation", {"attention": [1]}, r"evaluation\.json: "),
        ("recipe", {"training": "fast"}, r"recipe\.yaml: section training is 'fast', but must be a mapping"),
        ("recipe", {"data": {"target_lang": False}}, r"data\.target_lang is False, but must be a string"),
        ("log_history", [1, 2], r"log_history\.json: entry 1 is 1, but must be a mapping"),
    ],
)
def test_files_of_another_shape_are_one_line(tmp_path, file, change, message):
    folder = translation_run(tmp_path / "run")
    path = folder / ("recipe.yaml" if file == "recipe" else f"{file}.json")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **change} if isinstance(change, dict) else change))
    with pytest.raises(ValueError, match=message) as caught:
        write_card(folder, "someone/en-de")
    assert "\n" not in str(caught.value)
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/home/someone/data/train.jsonl.gz", "train.jsonl.gz"),
        (r"C:\data\pictures", "pictures"),
        ("data/train.parquet", "train.parquet"),
        ("runs/data/", "data"),
        ("someone/pictures", "someone/pictures"),
        ({"source": "/a/b/train.en", "target": "/a/b/train.de"}, "train.en, train.de"),
        (None, None),
        ([], None),
    ],
)
def test_sources_are_named_without_their_place(source, name):
    assert source_name(source) == name
