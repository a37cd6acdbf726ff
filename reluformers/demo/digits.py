"""The handwritten digits of scikit-learn as a set of images, and their classification without this library."""

from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as pillow

from reluformers.clean_process import answer_in_clean_process
from reluformers.errors import UserError
from reluformers.files import atomic_directory

SEED = 0
HELD_OUT = 360  # of 1,797 images
BRIGHTEST = 16  # grey values of the set are 0 to 16
DIGIT_FILES = ("train.parquet", "validation.parquet")


class CleanClassification(NamedTuple):
    """The likeliest class of an image, its probability, and the model class: of the code in the saved folder."""

    label: str
    score: float
    model_class: str


def write_digits(folder: Path) -> dict[str, Path]:
    """Write scikit-learn's 1,797 digits of 8 × 8 pixels as Parquet files with images, a fifth of them held out.

    Args:
        folder: where to; earlier files of the same names are replaced.

    Returns:
        Split → file.

    Raises:
        UserError: the folder holds something else.
    """
    # scipy comes with it, which takes a second that no other command should wait for
    from sklearn.datasets import load_digits

    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name not in DIGIT_FILES:
            raise UserError(f"{folder}: holds {path.name}, which is none of the demo's; choose another output folder")
    digits = load_digits()
    rows = np.random.default_rng(SEED).permutation(len(digits.images))
    features = Features({"image": Image(), "label": ClassLabel(names=[str(name) for name in digits.target_names])})
    splits = {"train": rows[HELD_OUT:], "validation": rows[:HELD_OUT]}
    with atomic_directory(folder, overwrite=True) as temporary:
        for split, chosen in splits.items():
            pictures = [pillow.fromarray((digits.images[row] * 255 / BRIGHTEST).astype(np.uint8)) for row in chosen]
            columns = {"image": pictures, "label": digits.target[chosen].tolist()}
            Dataset.from_dict(columns, features=features).to_parquet(temporary / f"{split}.parquet")
    return {split: folder / f"{split}.parquet" for split in splits}


def first_digit(file: Path) -> tuple[pillow.Image, str]:
    """The first image of a split and what it shows."""
    dataset = Dataset.from_parquet(str(file))
    row = dataset[0]
    return row["image"], dataset.features["label"].int2str(row["label"])


def classify_in_clean_process(folder: Path, picture: pillow.Image) -> CleanClassification:
    """Open a saved folder where `reluformers` cannot be imported, and classify an image by transformers' pipeline.

    Args:
        folder: of the model and its image processor.
        picture: the image.

    Raises:
        UserError: there is no model.
        RuntimeError: the process failed; the message is the end of what it said.
    """
    file = BytesIO()
    picture.save(file, format="PNG")
    answer = answer_in_clean_process("image-classification", folder, file.getvalue())
    return CleanClassification(answer["label"], answer["score"], answer["model_class"])
