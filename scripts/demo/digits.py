"""The handwritten digits of scikit-learn as a set of images, and their classification without this library."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as pillow

from reluformers.files import atomic_directory
from reluformers.publish.clean_process import answer_in_clean_process

SEED = 0
HELD_OUT = 360  # of 1,797 images
BRIGHTEST = 16  # grey values of the set are 0 to 16
COPIES = 15  # of each training digit, redrawn
DRAWN_SIDE = 32  # pixels
REDRAWN_SIDE = 16


def write_digits(folder: Path) -> dict[str, Path]:
    """Write scikit-learn's 1,797 digits of 8 × 8 pixels as Parquet files with images, a fifth of them held out.

    Each training digit is followed by `COPIES` of it that `redraw` has made. Earlier files are replaced.

    Returns:
        Split → file.
    """
    # scipy comes with it, which takes a second that no other command should wait for
    from sklearn.datasets import load_digits

    digits = load_digits()
    generator = np.random.default_rng(SEED)
    rows = generator.permutation(len(digits.images))
    features = Features({"image": Image(), "label": ClassLabel(names=[str(name) for name in digits.target_names])})
    splits = {"train": rows[HELD_OUT:], "validation": rows[:HELD_OUT]}
    with atomic_directory(folder, overwrite=True) as temporary:
        for split, chosen in splits.items():
            pictures = [pillow.fromarray((digits.images[row] * 255 / BRIGHTEST).astype(np.uint8)) for row in chosen]
            labels = digits.target[chosen].tolist()
            if split == "train":
                pictures += [redraw(picture, generator) for _ in range(COPIES) for picture in pictures]
                labels *= COPIES + 1
            columns = {"image": pictures, "label": labels}
            Dataset.from_dict(columns, features=features).to_parquet(temporary / f"{split}.parquet")
    return {split: folder / f"{split}.parquet" for split in splits}


def redraw(picture: pillow.Image, generator: np.random.Generator) -> pillow.Image:
    """Draw a grey digit as another hand might: turned, scaled and moved, with a thin or thick stroke.

    The picture has `REDRAWN_SIDE` pixels; half of them are black on white.
    """
    middle = DRAWN_SIDE / 2
    angle = generator.uniform(-0.2, 0.2)  # 0.2 radians are 11°
    scale = generator.uniform(0.65, 1.05)
    x, y = generator.uniform(-0.15, 0.15, 2) * DRAWN_SIDE + middle
    cos = np.cos(angle) / scale
    sin = np.sin(angle) / scale
    # a point of the new picture → one of the old
    coefficients = (cos, sin, middle - cos * x - sin * y, -sin, cos, middle + sin * x - cos * y)
    drawn = picture.resize((DRAWN_SIDE, DRAWN_SIDE), pillow.Resampling.BICUBIC)
    drawn = drawn.transform(drawn.size, pillow.Transform.AFFINE, coefficients, pillow.Resampling.BILINEAR)
    # the edge of a blurred stroke lies further out where less ink is enough for it
    ink = np.asarray(drawn) / 255
    enough = generator.uniform(0.25, 0.7)
    edge = 1 / (1 + np.exp((enough - ink) * generator.uniform(8, 40)))
    if generator.random() < 0.5:
        edge = 1 - edge
    redrawn = pillow.fromarray((edge * 255).astype(np.uint8))
    return redrawn.resize((REDRAWN_SIDE, REDRAWN_SIDE), pillow.Resampling.BOX)


def first_digit(file: Path) -> tuple[pillow.Image, str]:
    """The first image of a split and what it shows."""
    dataset = Dataset.from_parquet(str(file))
    row = dataset[0]
    return row["image"], dataset.features["label"].int2str(row["label"])


def classify_in_clean_process(folder: Path, picture: pillow.Image) -> dict[str, Any]:
    """Classify an image where `reluformers` cannot be imported: its `label`, `score` and `model_class`."""
    file = BytesIO()
    picture.save(file, format="PNG")
    return answer_in_clean_process("image-classification", folder, file.getvalue())
