"""Loading sentence pairs: every format, and one clear line for every fault."""

import csv
import gzip
import json
import re
from itertools import chain

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from reluformers.data.sources import read_hub, read_parquet
from reluformers.translation.loading import load_translation_split, open_translation_split
from reluformers.translation.rows import PairColumns

PAIRS = [("a cat", "eine Katze"), ('a "dog"', "ein Hund"), ("NA", "null")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def translations(pairs=PAIRS):
    return [{"translation": {"en": english, "de": german, "fr": "x"}} for english, german in pairs]


def load(source, split="train", **options):
    return load_translation_split(source, split, PairColumns(**{"source_lang": "en", "target_lang": "de", **options}))


def pairs_of(dataset):
    return list(zip(dataset["source"], dataset["target"], strict=True))


def fault(source, split="train", **options):
    """Load what must fail and give the message, which is one line."""
    with pytest.raises(ValueError) as caught:
        load(source, split, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path, content):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    else:
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


CSV = b'de,en\neine Katze,a cat\nein Hund,"a ""dog"""\nnull,NA\n'
TSV = b'de\ten\neine Katze\ta cat\nein Hund\ta "dog"\nnull\tNA\n'
FLAT = [{"id": 1, "de": german, "en": english} for english, german in PAIRS]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.jsonl.gz", jsonl(translations())),
        ("train.json", json.dumps(translations()).encode()),
        ("train.parquet", FLAT),
        ("train.csv", CSV),
        ("train.tsv.gz", TSV),
    ],
)
@pytest.mark.parametrize("form", ["file", "folder", "dict", "list"])
def test_formats(tmp_path, name, content, form):
    path = write(tmp_path / name, content)
    source = {"file": path, "folder": tmp_path, "dict": {"train": path, "test": "absent"}, "list": [path]}[form]
    dataset = load(source)
    assert dataset.column_names == ["source", "target"]
    assert pairs_of(dataset) == PAIRS


def test_several_files_are_joined_and_a_split_may_be_sliced(tmp_path):
    files = [write(tmp_path / f"{part}-2016.jsonl", jsonl(translations())) for part in "ab"]
    assert pairs_of(load({"train": files}, "train[1:]")) == [*PAIRS, *PAIRS][1:]
    assert pairs_of(load(tmp_path, "a-2016[1:]")) == PAIRS[1:]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parallel_text(tmp_path, ending):
    # a lone carriage return and other breaks inside a sentence do not shift the lines
    write(tmp_path / f"train.en{ending}", "a\r\nb\rc\u2028d\n\ne".encode())
    write(tmp_path / f"train.de{ending}", b"A\nB\n\nE\n")
    expected = [("a", "A"), ("b\rc\u2028d", "B"), ("", ""), ("e", "E")]
    assert pairs_of(load(tmp_path)) == expected
    assert pairs_of(load(tmp_path, "train[:2]")) == expected[:2]
    files = {"source": tmp_path / f"train.de{ending}", "target": tmp_path / f"train.en{ending}"}
    assert pairs_of(load({"dev": files}, "dev")) == [pair[::-1] for pair in expected]
    assert pairs_of(load(files, "dev[3:]")) == [("E", "e")]


def test_changed_parallel_text_is_read_again(tmp_path):
    for language in ("en", "de"):
        write(tmp_path / f"train.{language}", b"old\n")
    assert pairs_of(load(tmp_path)) == [("old", "old")]
    write(tmp_path / "train.en", b"brand new\n")
    assert pairs_of(load(tmp_path)) == [("brand new", "old")]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("english", "german", "shorter"), [(b"a\nb\n", b"A\n", "de"), (b"a\n", b"A\nB\n", "en")])
def test_unequal_parallel_text_names_the_line(tmp_path, english, german, shorter, streaming):
    write(tmp_path / "train.en", english)
    write(tmp_path / "train.de", german)
    sides = {"source": str(tmp_path / "train.en"), "target": str(tmp_path / "train.de")}
    with pytest.raises(ValueError, match=rf"train\.{shorter} ends before line 2 of"):
        (read_stream if streaming else load)({"train": sides})


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("x.csv", b"en,de\n", ""),
        ("x.jsonl", jsonl([*translations(), {"translation": "a"}]), "row 4: .*'en'"),
        ("x.jsonl", jsonl(translations()) + b'{"translation":\n', "line 4"),
        ("x.csv", b"en,de\na,b\na,b,c\n", "line 3"),
        ("x.csv", b"en;de\na;b\n", "row 1: .*'en;de'"),
        ("x.csv", "en,de\na,b\n".encode("utf-16"), "UTF-8"),
        ("x.tsv", "en\tde\nä\tb\n".encode("latin-1"), "UTF-8"),
        ("x.csv", b'en,de\na,"b\n', "line 2"),
        ("x.csv", b"en,de\na\n", "line 2"),
        ("x.tsv", b"en\tde\tde\na\tb\tc\n", "'de'"),
    ],
)
def test_faults_of_files_are_refused_by_file_and_line(tmp_path, name, content, place):
    path = write(tmp_path / name, content)
    assert re.search(f"{re.escape(name)}.*{place}", fault(path))


def test_places_that_do_not_say_what_to_read_are_refused(tmp_path):
    path = write(tmp_path / "train.jsonl", jsonl(translations()))
    assert "'dev'" in fault(tmp_path, "dev")
    assert "('en', 'en')" in fault(path, target_lang="en")
    write(tmp_path / "train.csv", CSV)
    assert "'train'" in fault(tmp_path)


# what a reader could take for numbers, for nothing, for dates and for signs of its own
CELLS = [
    ["007", "3.50", "4e5", "-0", "inf", "NaN"],
    ["NA", "null", "", " "],
    ["True"],
    ["2024-05-01", "12:30:00", "2024-05-01T12:30:00Z", "2024-05-01 12:30:00+02:00"],
    [" a ", '"', "'", "#", "[1]", "\\n", "\x00", "\u2028", "😀"],
]
# 10,000 rows are what `datasets` guesses from
WORDS = ["word"] * 10_001


def write_cells(folder, form, cells):
    """A file of rows whose both sentences are a cell; None where the format cannot hold one of them."""
    rows = [{"en": cell, "de": cell} for cell in cells]
    name = f"x.{form.partition(' ')[0]}"
    if form == "parquet":
        return write(folder / name, rows)
    if form == "csv":
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["en", "de"])
            writer.writeheader()
            writer.writerows(rows)
        return str(folder / name)
    if form == "tsv":
        return write(
            folder / name, "".join(f"{cell}\t{cell}\n" for cell in ["en", *cells]).replace("en\ten", "en\tde")
        )
    nested = rows if form.endswith("flat") else [{"translation": row} for row in rows]
    return write(folder / name, json.dumps(nested) if form == "json array" else jsonl(nested).decode())


def read_stream(source):
    rows, lay_out = open_translation_split(source, "train", PairColumns("en", "de"), streaming=True)
    blocks = (lay_out(Dataset(block)) for block in rows.with_format("arrow").iter(10_000))
    return [pair for block in blocks for pair in pairs_of(block)]


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl flat", "jsonl nested", "json array", "parquet"])
def test_a_cell_is_text_to_the_letter(tmp_path, form):
    for number, column in enumerate([*CELLS, [*WORDS, *chain(*CELLS)]]):
        cells = [cell for cell in column if form != "csv" or cell != "\x00"]
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write_cells(folder, form, cells)
        assert pairs_of(load(path)) == [(cell, cell) for cell in cells]
    assert read_stream([path]) == [(cell, cell) for cell in cells]


def test_one_file_is_not_its_own_translation(tmp_path):
    path = tmp_path / "train.en"
    path.write_text("A dog.\n")
    (tmp_path / "link.de").symlink_to(path)
    for other in (path, tmp_path / "link.de"):
        assert "is the file of both source and target" in fault({"source": str(path), "target": str(other)})


@pytest.mark.parametrize("value", [7, None, ["a"], "\ud800"])
@pytest.mark.parametrize(("row", "streaming"), [(2, False), (10_002, True)])
def test_json_that_is_no_text_is_refused_by_row_and_column(tmp_path, value, row, streaming):
    rows = [{"en": "a", "de": "b"}] * (row - 1) + [{"en": "a", "de": value}]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(content) + "\n" for content in rows))
    read = read_stream if streaming else load
    with pytest.raises(ValueError, match=rf"x\.jsonl, row {row}: 'de'"):
        read(str(path))


@pytest.mark.parametrize(
    ("ids", "expected"), [(["007", "2024-05-01"], None), ([7, "007"], None), ([7, None], "row 2")]
)
@pytest.mark.parametrize("column", ["doc", "source"])  # which is also the name of one of our own
def test_document_ids_are_to_the_letter(tmp_path, ids, expected, column):
    rows = [{"en": "a", "de": "b", column: value} for value in ids]
    path = write(tmp_path / "x.jsonl", jsonl(rows))
    if expected is None:
        assert load(path, document_column=column)["document"][:] == list(map(str, ids))
    else:
        assert expected in fault(path, document_column=column)


def test_quoted_cells_keep_their_line_breaks(tmp_path):
    path = write(tmp_path / "x.csv", b'\xef\xbb\xbfen,de\r\n"a\r\nb","c\nd"\r\n')
    assert pairs_of(load(path)) == [("a\r\nb", "c\nd")]


@pytest.mark.parametrize("streaming", [False, True])
def test_tables_on_the_hub_are_text_to_the_letter(tmp_path, streaming):
    cells = ["word"] * 10_000 + ["007", "3.50", "NA", ""]
    write_cells(tmp_path, "csv", cells)
    dataset = read_hub(str(tmp_path), "train", {"streaming": streaming})
    assert [row["de"] for row in dataset] == cells


def test_parquet_files_with_text_and_numbers_in_one_column_are_refused(tmp_path):
    files = [str(tmp_path / f"{name}.parquet") for name in ("numbers", "text", "wide")]
    columns = pa.array([7], pa.int32()), pa.array(["007"]), pa.array([8], pa.int64())
    for file, values in zip(files, columns, strict=True):
        pq.write_table(pa.table({"label": values}), file)
    assert read_parquet([files[0], files[2]])["label"][:] == [7, 8]
    with pytest.raises(ValueError, match="label"):
        read_parquet(files[:2])
