"""Labelled images from the Hub or from local files."""

import glob
import hashlib
import os
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as pillow
from torch.utils.data import DataLoader
from tqdm import tqdm

from reluformers.data.checked_fields import check_name
from reluformers.data.sources import (
    name_in_errors,
    read_hub,
    read_parquet,
    split_name,
    take_options,
    take_slice,
    take_split,
)

from .processing import IMAGE, LABEL, decode_image, image_file

_SAMPLE = 1000  # Checksums take so many images: reading all of a big set takes as long as an epoch.
# A class of this name marks images without a label.
_NO_CLASS = re.compile(r"\s*(-\d+(\.\d*)?)?\s*")


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
        split: name of the split, perhaps with a slice: "train" or "train[:5000]". Images out of folders come in a
            fixed random order, so that a slice holds all classes.
        image_column: column of the images; None for "image", or the only one of that type.
        label_column: column of the labels, classes, strings or integers from 0 on; None for "label", or the only one
            with classes, else the only one with strings or integers.
        classes: names that the labels are to number, such as those of a model or of the training split; None for those
            of this split: as declared, else the sorted values.

    Returns:
        Rows with "image" ({"bytes", "path"}, not decoded) and "label" (ClassLabel).

    Raises:
        ValueError: files, columns, images or labels are missing or of a wrong kind, or a class is not in `classes`.
    """
    dataset = _read(source, split)
    image_column = _find_column(dataset, IMAGE, image_column, _is_image)
    label_column = _find_column(dataset, LABEL, label_column, _is_class, _is_value)
    numbers, names = _number_labels(dataset, label_column)
    if classes is not None:
        numbers = _renumber(numbers, names, classes)
        names = list(classes)
    images = dataset.select_columns([image_column]).rename_columns({image_column: IMAGE})
    images = images.cast_column(IMAGE, Image(decode=False))
    return images.add_column(LABEL, numbers, feature=ClassLabel(names=names))


def class_names(dataset: Dataset) -> list[str]:
    """Name the classes of a split of `load_image_split`; label i is the i-th of them."""
    return dataset.features[LABEL].names


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """Give the number of rows, and the SHA-256 of all labels and of the files of some images, evenly spread.

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


def check_images(dataset: Dataset, num_workers: int = 0, *, show_progress: bool = False) -> None:
    """Decode every image of a split; a ValueError names row and path of one that is broken."""
    rows = DataLoader(range(len(dataset)), 64, num_workers=num_workers, collate_fn=partial(_decode, dataset))
    for _ in tqdm(rows, "checking images", disable=not show_progress):
        pass


def _decode(dataset: Dataset, rows: Sequence[int]) -> None:
    for row in rows:
        image = dataset[row][IMAGE]
        with name_in_errors(f"row {row + 1}"):
            decode_image(image_file(image), image["path"])


def _read(source: Any, split: str) -> Dataset:
    """Read the rows of a split as they are."""
    name = split_name(split)
    source, options = take_options(source)
    is_of_split = isinstance(source, dict)
    if is_of_split:
        source = take_split(source, name)
    if not isinstance(source, list):
        path = Path(os.path.expanduser(source))
        if path.is_dir():
            source = path if is_of_split else _find_in_folder(path, name)
        elif is_of_split or path.suffix == ".parquet" or path.is_file():
            source = [path]
        else:
            return read_hub(str(source), split, options)
    is_parquet = isinstance(source, list)
    rows = read_parquet(list(map(os.path.expanduser, source))) if is_parquet else _read_folder(source)
    return take_slice(rows, split)


def _find_in_folder(folder: Path, name: str) -> list[Path] | Path:
    """Find the parquet files of a split, or its folder of classes."""
    escaped = glob.escape(name)
    for directory in (folder, folder / "data"):
        files = sorted([*directory.glob(f"{escaped}.parquet"), *directory.glob(f"{escaped}-*-of-*.parquet")])
        if files:
            return files
    is_whole = name == "train" and not (folder / name).is_dir()  # The folders of the classes lie directly in it.
    return folder if is_whole else folder / name


def _read_folder(folder: Path) -> Dataset:
    """Read a folder with one folder of images for each class, in a fixed random order."""
    pillow.init()
    endings = {ending for ending, kind in pillow.EXTENSION.items() if kind in pillow.OPEN}
    # Hidden files are no images, whatever their ending.
    files = [path for path in folder.glob("[!.]*/[!.]*") if path.suffix.lower() in endings and path.is_file()]
    files.sort(key=lambda path: (path.parent.name, str(path)))
    random.Random(0).shuffle(files)
    names = sorted({path.parent.name for path in files})
    numbers = {name: number for number, name in enumerate(names)}
    columns = {IMAGE: list(map(str, files)), LABEL: [numbers[path.parent.name] for path in files]}
    return Dataset.from_dict(columns, features=Features({IMAGE: Image(decode=False), LABEL: ClassLabel(names=names)}))


def _is_image(feature: Any) -> bool:
    # Files that `datasets` did not write hold plain structs or bytes.
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    return isinstance(feature, Image) or is_struct or getattr(feature, "dtype", None) in ("binary", "large_binary")


def _is_class(feature: Any) -> bool:
    return isinstance(feature, ClassLabel)


def _is_value(feature: Any) -> bool:
    return isinstance(feature, Value) and ("int" in feature.dtype or "string" in feature.dtype)


def _find_column(dataset: Dataset, usual: str, wanted: str | None, *kinds: Callable[[Any], bool]) -> str:
    """Find the column that is wanted, or of the first kind that occurs the usual or only one."""
    for fits in kinds:
        columns = [name for name, feature in dataset.features.items() if wanted in (None, name) and fits(feature)]
        if usual in columns or len(columns) == 1:
            return usual if usual in columns else columns[0]
        if columns:
            break
    raise ValueError(
        f"{wanted or 'one column'} of {dataset.features} must hold the {usual}s; set {usual}_column to it"
    )


def _number_labels(dataset: Dataset, column: str) -> tuple[np.ndarray, list[str]]:
    """Number the labels of a split: int64 [rows], and the names of the numbers."""
    feature = dataset.features[column]
    values = dataset.select_columns([column]).with_format("arrow")[:][column].combine_chunks()
    if _is_class(feature):
        names = feature.names
        numbers = values
    else:
        present = pc.unique(values).drop_null().sort()
        names = [str(value) for value in present.to_pylist()]
        numbers = pc.index_in(values, present)
    numbers = numbers.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    without = [number for number, name in enumerate(names) if not _is_class(feature) and _NO_CLASS.fullmatch(name)]
    wrong = (numbers < 0) | (numbers >= len(names)) | np.isin(numbers, without)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"row {row + 1}: {column!r} holds {values[row].as_py()!r}, which is no label; remove the row")
    return numbers, names


def _renumber(numbers: np.ndarray, names: list[str], classes: list[str]) -> np.ndarray:
    """Turn numbers of `names` into numbers of `classes`."""
    # A class that is declared but has no image does no harm.
    for number, row in zip(*np.unique(numbers, return_index=True), strict=True):
        with name_in_errors(f"row {row + 1}"):
            check_name(names[number], classes, "class")
    known = {name: number for number, name in enumerate(classes)}
    return np.array([known.get(name, -1) for name in names])[numbers]
