"""Small images and rows of them, for the tests of image data."""

from io import BytesIO

import numpy as np
from PIL import Image


def picture(height=24, width=32, seed=0) -> Image.Image:
    """A smooth RGB image without symmetries."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def row(image: Image.Image, label: int = 0) -> dict:
    return {"image": {"bytes": encode(image), "path": None}, "label": label}
