"""Loading labelled images: every layout, and one clear line for every fault."""

import logging

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.pictures import encode, picture
from reluformers.images.loading import class_names, load_image_split
from reluformers.images.processing import decode_image

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


@pytest.mark.parametrize("form", ["file", "list", "folder", "parts", "hub clone", "dict", "options"])
def test_parquet(tmp_path, form):
    name = {"parts": "train-00000-of-00001.parquet", "hub clone": "data/train-00000-of-00001.parquet"}
    path = write_set(tmp_path / name.get(form, "train.parquet"))
    source = {
        "file": path,
        "list": [path],
        "dict": {"train": path, "test": "absent"},
        "options": {"path": str(tmp_path), "name": None},
    }.get(form, tmp_path)
    dataset = load_image_split(source, "train")
    assert dataset.column_names == ["image", "label", "place"]
    assert dataset[:]["image"] == images()
    assert dataset["label"][:] == LABELS
    assert class_names(dataset) == CLASSES
    assert dataset[2]["place"] == "split 'train', row 3"


def test_parts_are_joined_in_order(tmp_path):
    for part in range(2):
        write_set(tmp_path / f"train-0000{part}-of-00002.parquet", {"label": [part] * 6})
    write_set(tmp_path / "train-extra.parquet")
    assert load_image_split(tmp_path, "train")["label"][:] == [0] * 6 + [1] * 6


def test_slices(tmp_path):
    path = write_set(tmp_path / "train.parquet")
    dataset = load_image_split(path, "train[2:4]")
    assert dataset["label"][:] == LABELS[2:4]
    assert dataset[1]["place"] == "split 'train[2:4]', row 2"
    assert len(load_image_split(path, "train[:50%]")) == 3
    assert "split 'train[6:]': this part of 6 rows is empty" in fault(path, "train[6:]")
    for split in ("train[:x]", "train[:110%]", "train["):
        assert f"split {split!r}: no such part of 6 rows; write it like train[:1000]" in fault(path, split)


def test_folders_of_splits(tmp_path):
    write_folders(tmp_path / "train", dog=4, cat=3)
    write_folders(tmp_path / "test", dog=1, cat=2)
    # none of these is an image or a class
    (tmp_path / "train" / "dog" / "notes.txt").write_text("x")
    (tmp_path / "train" / "dog" / "._0.png").write_text("x")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "dog" / "puppies.png").mkdir()
    dataset = load_image_split(tmp_path, "train")
    assert class_names(dataset) == ["cat", "dog"]
    for row in dataset:
        assert row["image"]["path"].split("/")[-2] == ["cat", "dog"][row["label"]]
        decode_image(row["image"], row["place"])
    assert sorted(dataset["label"]) == [0] * 3 + [1] * 4
    assert len(load_image_split(tmp_path, "test")) == 3
    assert len(load_image_split({"dev": tmp_path / "test"}, "dev")) == 3
    assert "no file dev.parquet and no folder dev" in fault(tmp_path, "dev")


def test_folders_of_classes_alone_are_the_training_split(tmp_path):
    write_folders(tmp_path, cat=20, dog=20)
    parts = [load_image_split(tmp_path, split) for split in ("train[:75%]", "train[75%:]")]
    assert [len(part) for part in parts] == [30, 10]
    assert all(set(part["label"]) == {0, 1} for part in parts)
    paths = [row["path"] for part in parts for row in part["image"]]
    assert len(set(paths)) == 40
    assert [row["path"] for row in load_image_split(tmp_path, "train")["image"]] == paths
    assert "there is cat, dog" in fault(tmp_path, "test")


@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        (["b", "a", "c", "a", "b", "c"], ["a", "b", "c"], [1, 0, 2, 0, 1, 2]),
        ([10, 9, 200, 9, 10, 200], ["9", "10", "200"], [1, 0, 2, 0, 1, 2]),
        (pa.array([3, 1, 2, 1, 3, 2], pa.uint8()), ["1", "2", "3"], [2, 0, 1, 0, 2, 1]),
        (pa.array(["x"] * 6).dictionary_encode(), ["x"], [0] * 6),
    ],
    ids=["strings", "integers", "bytes", "dictionary"],
)
def test_plain_values_become_classes(tmp_path, values, names, numbers):
    dataset = load_image_split(write_plain(tmp_path / "x.parquet", label=values), "train")
    assert class_names(dataset) == names
    assert dataset["label"][:] == numbers


def test_images_may_be_plain_bytes(tmp_path):
    path = write_plain(tmp_path / "x.parquet", image=[image["bytes"] for image in images()])
    assert [image["bytes"] for image in load_image_split(path, "train")["image"]] == [
        image["bytes"] for image in images()
    ]


def test_columns_are_found_by_type_or_named(tmp_path):
    coarse = datasets.ClassLabel(names=["animal", "plant"])
    columns = {"fine": LABELS, "coarse": [0] * 6, "id": ["x"] * 6, "img": images()}
    path = tmp_path / "train.parquet"
    types = {"fine": datasets.ClassLabel(names=CLASSES), "coarse": coarse, "img": datasets.Image()}
    write_set(path, columns, **types)
    # of several columns that fit, those of the usual names
    assert class_names(load_image_split(path, "train")) == CLASSES
    assert class_names(load_image_split(path, "train", label_column="coarse")) == ["animal", "plant"]
    frame = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    frame.remove_columns(["label", "image"]).to_parquet(str(path))
    assert "('fine', 'coarse'); set label_column" in fault(path)
    assert class_names(load_image_split(path, "train", label_column="fine")) == CLASSES
    assert set(class_names(load_image_split(path, "train", label_column="id"))) == {"x"}
    assert "no column 'kind' of labels; found 'fine', 'coarse', 'id', 'img'" in fault(path, label_column="kind")
    assert "no column 'pixels' of images" in fault(path, image_column="pixels")
    assert "column 'id' is of type Value('string'), which holds no images" in fault(path, image_column="id")
    assert "column 'img' is of type Image" in fault(path, image_column="img", label_column="img")


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"label": [0, 1, None, 0, 1, 2]}, ["row 3", "'label' holds None, not a label"]),
        ({"label": ["a", "b", "a", None, "b", "a"]}, ["row 4", "'label' holds None, not a label"]),
        ({"label": [0.5] * 6}, ["no column holds labels", "found 'image', 'label'"]),
        ({"label": [1.0, -1.0, 0.0, 1.0, 2.0, 0.0]}, ["no column holds labels", "-1.0"]),
        ({"label": [True, False] * 3}, ["no column holds labels", "bool", "False"]),
        ({"label": [0, 1, -1, 0, 1, -2]}, ["row 3", "'label' holds -1, not a label"]),
        ({"label": ["a", "b", "-1", "a", "b", "a"]}, ["row 3", "'label' holds '-1', not a label"]),
        ({"label": ["a", "b", "a", " ", "b", "a"]}, ["row 4", "'label' holds ' ', not a label"]),
        ({"label": [[0, 1]] * 6}, ["no column holds labels"]),
        ({"image": [*images(4), None, *images(1)]}, ["row 5", "'image' holds no image"]),
        ({"image": [*images(1), {"bytes": None, "path": None}, *images(4)]}, ["row 2", "'image' holds no image"]),
        ({"image": ["a.png"] * 6, "label": [1] * 6}, ["no column holds images"]),
    ],
)
def test_faults_of_values_are_named(tmp_path, columns, parts):
    message = fault(write_plain(tmp_path / "x.parquet", **columns))
    for part in ["x.parquet, split 'train'", *parts]:
        assert part in message


def test_a_column_of_numbers_that_are_no_classes_is_named_with_one_of_them(tmp_path):
    write_plain(tmp_path / "x.parquet", score=[1.0, -1.0] * 3)
    message = fault(tmp_path / "x.parquet", label_column="score")
    assert "column 'score' is of type" in message
    assert "-1.0" in message


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_out_of_range_are_named(tmp_path, label):
    path = write_set(tmp_path / "x.parquet")
    table = pq.read_table(path)
    wrong = pa.array([*LABELS[:4], label, 0], pa.int64())
    pq.write_table(table.set_column(table.column_names.index("label"), table.field("label"), wrong), path)
    assert f"row 5: 'label' holds {label}, not a label from 0 to 2" in fault(path)


def test_labels_are_numbered_by_the_names_that_are_given(tmp_path, caplog):
    path = write_set(tmp_path / "x.parquet")
    dataset = load_image_split(path, "train", classes=["eel", "ant", "cat", "dog"])
    assert class_names(dataset) == ["eel", "ant", "cat", "dog"]
    assert labels_of(dataset) == [CLASSES[label] for label in LABELS]
    assert "1 of 4 classes have no image, such as 'ant'" in caplog.text
    assert "the class 'eel' is none of the 2 known ones ('cat', 'dog')" in fault(path, classes=["cat", "dog"])
    # a class that is only declared does no harm
    path = write_set(tmp_path / "y.parquet", {"label": [0, 1] * 3})
    assert labels_of(load_image_split(path, "train", classes=["dog", "cat"])) == ["cat", "dog"] * 3


def test_class_folders_that_a_split_lacks(tmp_path, caplog):
    write_folders(tmp_path / "train", cat=2, dog=2, eel=2)
    write_folders(tmp_path / "validation", cat=1, eel=1)
    write_folders(tmp_path / "test", cat=1, fox=1)
    train = load_image_split(tmp_path, "train")
    assert not caplog.records
    validation = load_image_split(tmp_path, "validation", classes=class_names(train))
    assert class_names(validation) == ["cat", "dog", "eel"]
    assert sorted(labels_of(validation)) == ["cat", "eel"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "class 'fox' is none of the 3" in fault(tmp_path, "test", classes=class_names(train))


def test_faulty_folders_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "there is nothing" in fault(tmp_path / "empty")
    (tmp_path / "bare" / "train").mkdir(parents=True)
    assert "no folders of classes; there is nothing" in fault(tmp_path / "bare")
    write_folders(tmp_path / "flat", train=3)
    assert "no folders of classes; there is 0.png" in fault(tmp_path / "flat")
    write_folders(tmp_path / "hole" / "train", cat=1, dog=0)
    assert f"{tmp_path / 'hole' / 'train' / 'dog'}: no images; there is nothing" in fault(tmp_path / "hole")
    write_folders(tmp_path / "deep" / "train" / "animals", cat=1)
    assert "animals: no images; there is cat" in fault(tmp_path / "deep")


def test_missing_and_damaged_files_are_named(tmp_path):
    path = write_set(tmp_path / "train.parquet")
    assert "absent.parquet: no such file" in fault(str(tmp_path / "absent.parquet"))
    assert "absent: no such file" in fault("./absent")
    assert "some/where, split 'train': no such file or folder here, and the Hub" in fault("some/where")
    assert "no files for split 'dev'; there are: train" in fault({"train": path}, "dev")
    assert "unknown key 'config' beside 'path'" in fault({"path": path, "config": "x"})
    (tmp_path / "x.csv").write_text("image,label\n")
    assert "x.csv: unknown kind of file; allowed are .parquet" in fault(tmp_path / "x.csv")
    (tmp_path / "x.parquet").write_bytes(b"nothing of the kind")
    assert "x.parquet: could not be read as parquet" in fault(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes(b"")
    assert "y.parquet: the file is empty" in fault(tmp_path / "y.parquet")
    write_plain(tmp_path / "z.parquet", image=[], label=[])
    assert "z.parquet: there are no rows" in fault(tmp_path / "z.parquet")


def test_hub_sets_are_asked_for_with_their_options(monkeypatch):
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    hub = datasets.Dataset.from_dict({"img": images(), "label": LABELS}, features=features)
    calls = []
    monkeypatch.setattr(
        "reluformers.data.sources.load_dataset", lambda *args, **options: calls.append((args, options)) or hub
    )
    dataset = load_image_split({"path": "uoft-cs/cifar10", "name": "plain_text", "revision": "abc"}, "test[:6]")
    assert calls == [(("uoft-cs/cifar10",), {"split": "test[:6]", "name": "plain_text", "revision": "abc"})]
    assert dataset.column_names == ["image", "label", "place"]
    np.testing.assert_array_equal(dataset["label"][:], LABELS)


def test_classes_that_are_text_stay_so(tmp_path):
    names = ["007", "1.0", "NA", "True", "1e3", "null"]
    path = write_plain(tmp_path / "a.parquet", label=names)
    assert load_image_split(path, "train").features["label"].names == sorted(names)
    other = write_plain(tmp_path / "b.parquet", label=list(range(len(names))))
    for files in ([path, other], [other, path]):
        message = fault(files)
        assert "'label'" in message
        assert files[1] in message
