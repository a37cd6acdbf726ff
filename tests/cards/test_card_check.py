"""The files that cards are made from."""

import re

import pytest

from builders.finished_runs import translation_run
from reluformers.data.names import source_name
from reluformers.publish.card import write_card


@pytest.mark.parametrize("name", ["results.json", "evaluation.json", "log_history.json"])
def test_damaged_files_are_named(tmp_path, name):
    folder = translation_run(tmp_path / "run")
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match=re.escape(str(folder / name))):
        write_card(folder, "someone/x")


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
