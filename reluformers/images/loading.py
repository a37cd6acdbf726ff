"""Labelled images from the Hub or from local files, checked before anything is trained on them."""

import glob
import hashlib
import logging
import os
import random
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as pillow

from reluformers.data.sources import (
    check_file,
    find_value,
    names_in,
    read_hub,
    read_parquet,
    split_name,
    take_options,
    take_slice,
    take_split,
)
from reluformers.files import check_name

logger = logging.getLogger(__name__)

ROWS_PER_BLOCK = 1000
_SAMPLE = 1000  # images: all of a big set would take as long to read as an epoch

# in a column of strings: none at all, or what marks images without a label
_NO_CLASS = re.compile(r"\s*(-\d+(\.\d*)?)?\s*")

IMAGE = "image"
LABEL = "label"
PLACE = "place"


def load_image_split(
    source: str | os.PathLike | list | dict,
    split: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    classes: list[str] | None = None,
) -> Dataset:
    """Load one split of a set of images with one label each.

    Args:
        source: One of
            a Hub id, such as "uoft-cs/cifar10";
            a folder with `<split>.parquet`, or its parts `<split>-00000-of-00002.parquet`, also in a folder `data`; or
            with a folder for each split that holds one folder of images for each class; or with the folders of the
            classes alone, which are then the split "train";
            parquet files, read whatever the name of the split: a path or a list of paths;
            {split: files or folder of classes, ...};
            {"path": Hub id or folder, "name": configuration, "revision": ...}, the last two as far as needed.
        split: Name of the split, perhaps with a slice: "train" or "train[:5000]". Images out of folders come in a
            fixed random order, so that a slice holds all classes.
        image_column: Column of the images; None for the only one of that type.
        label_column: Column of the labels, classes, strings or integers from 0 on; None for the only one with classes,
            else the only one with strings or integers. Of several columns the one named "image" or "label" is taken.
        classes: Names that the labels are to number, such as those of a model or of the training split; None for those
            of this split: as declared, else the sorted values.

    Returns:
        Rows with "image" ({"bytes", "path"}, not decoded), "label" (ClassLabel) and "place", words for errors.

    Raises:
        ValueError: If files, columns, images or labels are missing or of a wrong kind, or a class is not in `classes`.
    """
    location, options = _resolve(source, split_name(split))
    place = f"{_describe(location)}, split {split!r}"
    if isinstance(location, Path):
        dataset = take_slice(_read_folder(location), split)
    elif isinstance(location, list):
        dataset = take_slice(read_parquet(location), split)
    else:
        dataset = read_hub(location, split, options)
    if not len(dataset):
        raise ValueError(f"{place}: there are no rows; check the file and the split")
    image_column = _find_column(dataset, place, "images", image_column, [_is_image])
    label_column = _find_column(dataset, place, "labels", label_column, [_is_class, _is_value])
    labels, names = _number_labels(dataset, place, label_column, classes)
    images = dataset.select_columns([image_column]).rename_columns({image_column: IMAGE})
    images = images.cast_column(IMAGE, Image(decode=False))
    _check_images(images, place, image_column)
    places = [f"split {split!r}, row {row}" for row in range(1, len(images) + 1)]
    images = images.add_column(LABEL, labels, feature=ClassLabel(names=names))
    return images.add_column(PLACE, places, feature=Value("string"))


def class_names(dataset: Dataset) -> list[str]:
    """Names of the classes of a split of `load_image_split`; label i is the i-th of them."""
    return dataset.features[LABEL].names


def image_file(image: Mapping[str, Any]) -> bytes:
    """The file of an image that is not decoded."""
    return Path(image["path"]).read_bytes() if image["bytes"] is None else image["bytes"]


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """Number of rows, SHA-256 of all labels, and of the files of some images, evenly spread.

    Args:
        dataset: rows of `load_image_split`.
    """
    labels = dataset.select_columns([LABEL]).with_format("numpy")[:][LABEL]
    rows = dataset.select(range(0, len(dataset), -(-len(dataset) // _SAMPLE))).select_columns([IMAGE])
    images = hashlib.sha256()
    for row in rows:
        images.update(image_file(row[IMAGE]))
    return {
        "rows": len(dataset),
        "labels": hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest(),
        "images": images.hexdigest(),
    }


def _resolve(source: Any, name: str) -> tuple[str | list[str] | Path, dict[str, Any]]:
    """Find a Hub id with options, a list of parquet files, or a folder of classes."""
    source, options = take_options(source)
    if isinstance(source, dict):
        source = take_split(source, name)
        if not isinstance(source, list) and Path(os.path.expanduser(source)).is_dir():
            return Path(os.path.expanduser(source)), options
        return _check_files(source), options
    if isinstance(source, list):
        return _check_files(source), options
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        return _find_in_folder(path, name), options
    looks_local = path.suffix == ".parquet" or str(source).startswith((".", "/", "~"))
    return (_check_files(path) if path.exists() or looks_local else str(source)), options


def _check_files(files: str | os.PathLike | list) -> list[str]:
    checked = [check_file(path) for path in (files if isinstance(files, list) else [files])]
    for path in checked:
        if not path.endswith(".parquet"):
            raise ValueError(f"{path}: unknown kind of file; allowed are .parquet, or a folder of images")
    return checked


def _find_in_folder(folder: Path, name: str) -> list[str] | Path:
    escaped = glob.escape(name)
    for place in (folder, folder / "data"):
        files = sorted([*place.glob(f"{escaped}.parquet"), *place.glob(f"{escaped}-*-of-*.parquet")])
        if files:
            return _check_files(files)
    if (folder / name).is_dir():
        return folder / name
    if name == "train" and any(_images_in(path) for path in _folders_in(folder)):
        return folder
    raise ValueError(
        f"{folder}: no file {name}.parquet and no folder {name} of classes; there is {names_in(folder)} "
        "(folders of classes alone are the split 'train', of which train[:90%] and train[90%:] are parts)"
    )


def _folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images_in(folder: Path) -> list[str]:
    """Paths of files with the ending of an image format; hidden files are none, whatever their ending."""
    pillow.init()
    endings = {ending for ending, kind in pillow.EXTENSION.items() if kind in pillow.OPEN}
    return sorted(
        entry.path
        for entry in os.scandir(folder)
        if os.path.splitext(entry.name)[1].lower() in endings and not (entry.name.startswith(".") or entry.is_dir())
    )


def _read_folder(folder: Path) -> Dataset:
    """Rows of a folder with one folder of images for each class, in a fixed random order."""
    names = [path.name for path in _folders_in(folder)]
    if not names:
        raise ValueError(f"{folder}: no folders of classes; there is {names_in(folder)}")
    rows = []
    for label, name in enumerate(names):
        files = _images_in(folder / name)
        if not files:
            raise ValueError(f"{folder / name}: no images; there is {names_in(folder / name)}")
        rows += [(check_name(path), label) for path in files]
    random.Random(0).shuffle(rows)
    paths, labels = zip(*rows, strict=True)
    features = Features({IMAGE: Image(decode=False), LABEL: ClassLabel(names=names)})
    return Dataset.from_dict({IMAGE: list(paths), LABEL: list(labels)}, features=features)


def _describe(location: str | list[str] | Path) -> str:
    return ", ".join(location) if isinstance(location, list) else str(location)


def _is_image(feature: Any) -> bool:
    # files that were not written by `datasets` hold plain structs or bytes
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    return isinstance(feature, Image) or is_struct or getattr(feature, "dtype", None) in ("binary", "large_binary")


def _is_class(feature: Any) -> bool:
    return isinstance(feature, ClassLabel)


def _is_value(feature: Any) -> bool:
    kind = getattr(feature, "dtype", None) if isinstance(feature, Value) else None
    return kind is not None and ("int" in kind or "string" in kind)


def _find_column(
    dataset: Dataset, place: str, what: str, wanted: str | None, kinds: list[Callable[[Any], bool]]
) -> str:
    """Find the column of the first of some kinds that occurs, or check the one that is wanted."""
    names = ", ".join(map(repr, dataset.column_names))
    features = dataset.features
    if wanted is not None:
        if wanted not in features:
            raise ValueError(f"{place}: no column {wanted!r} of {what}; found {names}")
        if not any(fits(features[wanted]) for fits in kinds):
            shown = _least_number(dataset, wanted)
            raise ValueError(f"{place}: column {wanted!r} is of type {features[wanted]}{shown}, which holds no {what}")
        return wanted
    usual = what.removesuffix("s")
    for fits in kinds:
        found = [name for name, feature in features.items() if fits(feature)]
        if len(found) == 1 or usual in found:
            return usual if usual in found else found[0]
        if found:
            raise ValueError(
                f"{place}: several columns may hold {what} ({', '.join(map(repr, found))}); set {usual}_column to one"
            )
    names = ", ".join(f"{name!r}{_least_number(dataset, name)}" for name in dataset.column_names)
    raise ValueError(f"{place}: no column holds {what}; found {names}")


def _least_number(dataset: Dataset, column: str) -> str:
    """The least value of a column of floats or truth values, in words; nothing of another."""
    kind = getattr(dataset.features[column], "dtype", None)
    if not isinstance(dataset.features[column], Value) or not ("float" in kind or kind == "bool"):
        return ""
    values = dataset.select_columns([column]).with_format("arrow")[:][column]
    return f" ({kind} such as {pc.min_max(values)['min']})"


def _check_images(images: Dataset, place: str, column: str) -> None:
    def is_wrong(value: Any) -> bool:
        return value is None or value["bytes"] is value["path"] is None

    blocks = images.with_format("arrow").iter(batch_size=ROWS_PER_BLOCK)
    for values in chain.from_iterable(block[IMAGE].chunks for block in blocks):
        empty = pc.and_(pc.is_null(pc.struct_field(values, "bytes")), pc.is_null(pc.struct_field(values, "path")))
        if values.null_count or pc.any(empty).as_py():
            row, _ = find_value(images, IMAGE, place, is_wrong, "images")
            raise ValueError(f"{place}, row {row}: {column!r} holds no image; correct or remove the row")


def _number_labels(
    dataset: Dataset, place: str, column: str, classes: list[str] | None
) -> tuple[np.ndarray, list[str]]:
    """Number the labels of a split: int64 [rows], and the names of the numbers."""
    feature = dataset.features[column]
    values = dataset.select_columns([column]).with_format("arrow")[:][column].combine_chunks()
    declared = feature.names if _is_class(feature) else None

    def is_wrong(value: Any) -> bool:
        if isinstance(value, str):
            return _NO_CLASS.fullmatch(value) is not None
        return value is None or value < 0 or (declared is not None and value >= len(declared))

    allowed = "a label" if declared is None else f"a label from 0 to {len(declared) - 1}"
    if any(map(is_wrong, pc.unique(values).to_pylist())):
        row, shown = find_value(dataset, column, place, is_wrong, "labels")
        raise ValueError(f"{place}, row {row}: {column!r} holds {shown}, not {allowed}; correct or remove the row")
    if declared is None:
        present = pc.unique(values).sort()
        names, numbers = [str(value) for value in present.to_pylist()], pc.index_in(values, present)
    else:
        names, numbers = declared, values
    numbers = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
    if classes is not None:
        numbers, names = _renumber(numbers, names, classes, place), list(classes)
    _warn_of_absent(numbers, names, place)
    return numbers, names


def _renumber(numbers: np.ndarray, names: list[str], classes: list[str], place: str) -> np.ndarray:
    """Turn numbers of `names` into numbers of `classes`."""
    known = {name: number for number, name in enumerate(classes)}
    # a class that is declared but has no image does no harm
    unknown = [names[number] for number in np.unique(numbers) if names[number] not in known]
    if unknown:
        shown = ", ".join(map(repr, classes[:10])) + (", …" if len(classes) > 10 else "")
        raise ValueError(f"{place}: the class {unknown[0]!r} is none of the {len(classes)} known ones ({shown})")
    return np.array([known.get(name, -1) for name in names])[numbers]


def _warn_of_absent(numbers: np.ndarray, names: list[str], place: str) -> None:
    absent = [names[label] for label in np.flatnonzero(np.bincount(numbers, minlength=len(names)) == 0)]
    if absent:
        logger.warning("%s: %d of %d classes have no image, such as %r", place, len(absent), len(names), absent[0])
