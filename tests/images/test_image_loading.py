"""Loading labelled images: every layout, and one clear line for every fault."""

import re

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.pictures import encode, picture
from reluformers.images.loading import class_names, load_image_split
from reluformers.images.processing import decode_image, image_file

CLASSES = ["cat", "dog", "eel"]
LABELS = [2, 0, 1, 0, 2, 1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def images(number=6):
    return [{"bytes": encode(picture(8, 8, seed)), "path": f"{seed}.png"} for seed in range(number)]


def write_set(path, columns=None, **features):
    """Write parquet as `datasets` does it, with its types."""
    types = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES), **features}
    columns = {"image": images(), "label": LABELS, **(columns or {})}
    features = datasets.Features({name: types.get(name, datasets.Value("string")) for name in columns})
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(path))
    return str(path)


def write_plain(path, **columns):
    """Write parquet without the types of `datasets`."""
    pq.write_table(pa.table({"image": images(), "label": LABELS, **columns}), path)
    return str(path)


def write_folders(folder, **counts):
    for name, number in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(number):
            (folder / name / f"{index}.png").write_bytes(encode(picture(8, 8, index)))
    return str(folder)


def fault(source, split="train", **options):
    """Load what must fail and give the message, which is one line."""
    with pytest.raises(ValueError) as caught:
        load_image_split(source, split, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def labels_of(dataset):
    return [class_names(dataset)[label] for label in dataset["label"]]


@pytest.mark.parametrize("form", ["file", "hub clone", "dict"])
def test_parquet(tmp_path, form):
    name = "data/train-00000-of-00001.parquet" if form == "hub clone" else "train.parquet"
    path = write_set(tmp_path / name)
    sources = {"file": path, "hub clone": tmp_path, "dict": {"train": path, "test": "absent"}}
    dataset = load_image_split(sources[form], "train")
    assert dataset.column_names == ["image", "label"]
    assert dataset[:]["image"] == images()
    assert dataset["label"][:] == LABELS
    assert class_names(dataset) == CLASSES


def test_folders_of_splits(tmp_path):
    write_folders(tmp_path / "train", dog=4, cat=3)
    write_folders(tmp_path / "test", dog=1, cat=2)
    # none of these is an image or a class
    (tmp_path / "train" / "dog" / "notes.txt").write_text("x")
    (tmp_path / "train" / "dog" / "._0.png").write_text("x")
    (tmp_path / "train" / ".cache").mkdir()
    write_folders(tmp_path / "elsewhere", bee=2)
    (tmp_path / "train" / "bee").symlink_to(tmp_path / "elsewhere" / "bee")
    dataset = load_image_split(tmp_path, "train")
    assert class_names(dataset) == ["bee", "cat", "dog"]
    for row in dataset:
        assert row["image"]["path"].split("/")[-2] == class_names(dataset)[row["label"]]
        decode_image(image_file(row["image"]))
    assert sorted(dataset["label"]) == [0] * 2 + [1] * 3 + [2] * 4
    assert len(load_image_split(tmp_path, "test")) == 3
    fault(tmp_path, "dev")


@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        (["b", "a", "c", "a", "b", "c"], ["a", "b", "c"], [1, 0, 2, 0, 1, 2]),
        ([10, 9, 200, 9, 10, 200], ["9", "10", "200"], [1, 0, 2, 0, 1, 2]),
        (pa.array(["x"] * 6).dictionary_encode(), ["x"], [0] * 6),
    ],
    ids=["strings", "integers", "dictionary"],
)
def test_plain_values_become_classes(tmp_path, values, names, numbers):
    dataset = load_image_split(write_plain(tmp_path / "x.parquet", label=values), "train")
    assert class_names(dataset) == names
    assert dataset["label"][:] == numbers


def test_columns_are_found_by_type_or_named(tmp_path):
    coarse = datasets.ClassLabel(names=["animal", "plant"])
    path = write_set(tmp_path / "train.parquet", {"coarse": [0] * 6}, coarse=coarse)
    # Of several columns that fit, those of the usual names are taken.
    assert class_names(load_image_split(path, "train")) == CLASSES
    assert class_names(load_image_split(path, "train", label_column="coarse")) == ["animal", "plant"]
    frame = datasets.Dataset.from_parquet(path, cache_dir=str(tmp_path / "cache"))
    frame.rename_column("label", "fine").to_parquet(path)
    assert "label_column" in fault(path)
    assert class_names(load_image_split(path, "train", label_column="fine")) == CLASSES
    assert "image_column" in fault(path, image_column="fine")


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"label": [0, 1, None, 0, 1, 2]}, "row 3"),
        ({"label": ["a", "b", "a", " ", "b", "a"]}, "row 4"),
        ({"label": [0.5] * 6}, "label_column"),
        ({"image": ["a.png"] * 6, "label": [1] * 6}, "image_column"),
    ],
)
def test_faults_of_values_are_named(tmp_path, columns, part):
    assert part in fault(write_plain(tmp_path / "x.parquet", **columns))


def test_a_label_beyond_the_classes_is_named_with_its_row(tmp_path):
    path = write_plain(tmp_path / "x.parquet", label=[0, 1, 0, 99, 1, 99])
    assert re.search("row 4.*'99'", fault(path, classes=["0", "1"]))


def test_labels_are_numbered_by_the_names_that_are_given(tmp_path):
    path = write_set(tmp_path / "x.parquet")
    dataset = load_image_split(path, "train", classes=["eel", "ant", "cat", "dog"])
    assert class_names(dataset) == ["eel", "ant", "cat", "dog"]
    assert labels_of(dataset) == [CLASSES[label] for label in LABELS]
    assert "'eel'" in fault(path, classes=["cat", "dog"])
    # a class that is only declared does no harm
    path = write_set(tmp_path / "y.parquet", {"label": [0, 1] * 3})
    assert labels_of(load_image_split(path, "train", classes=["dog", "cat"])) == ["cat", "dog"] * 3
