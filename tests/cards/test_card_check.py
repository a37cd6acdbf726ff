"""The files that cards are made from."""

import pytest

from reluformers.data.names import source_name


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
