# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Images as every model gets them: bounded, upright and RGB. Training, scoring and the endpoint all read them here."""

import base64
import io
from typing import Any

try:
    from PIL import Image, ImageOps
except ImportError:
    Image = ImageOps = None

# All images of a request together have at most `MAX_PIXELS` pixels; one pixel costs some 17 bytes.
MAX_PIXELS = 25_000_000
MAX_IMAGE_BYTES = 10 * 2**20
# The ratio of sides is bounded, because image processors enlarge the shorter side, and the longer side with it.
MAX_RATIO = 50
# Only image formats are allowed that Pillow reads without starting another program.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def read_images(inputs: list[Any]) -> list[Any]:
    """Open what `open_input` takes, as upright PIL images of RGB; none is decoded before all sizes are known."""
    images = [open_input(value) for value in inputs]
    # A small file may hold a huge image, so its size is read before a pixel is decoded.
    check_bounds(images)
    try:
        return [upright_rgb(image) for image in images]
    except Exception as error:  # Each image format raises errors of its own for broken files.
        raise ValueError("an image is damaged") from error


def open_input(value: Any) -> Any:
    """Open an image, without decoding it, from base64, bytes or a PIL image.

    Never by name: a path or an address would make the server read what the asker has no right to.
    """
    if isinstance(value, str):
        try:
            value = base64.b64decode("".join(value.rpartition(",")[2].split()), validate=True)
        except ValueError as error:
            raise ValueError("an image must be in base64; a path or an address is not opened") from error
    if isinstance(value, bytes | bytearray):
        if len(value) > MAX_IMAGE_BYTES:
            raise ValueError(f"an image has {len(value)} bytes, at most {MAX_IMAGE_BYTES} are allowed")
        value = open_image(value)
    # The format MPO is a kind of JPEG, and an image that was never a file has None.
    if not isinstance(value, Image.Image) or value.format not in (*IMAGE_FORMATS, "MPO", None):
        raise ValueError(f"an image must be in base64, of format {', '.join(IMAGE_FORMATS)}")
    return value


def open_image(data: bytes) -> Any:
    """Open an image of one of `IMAGE_FORMATS` without decoding it."""
    try:
        return Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    except Exception as error:  # Each image format raises errors of its own for broken files.
        raise ValueError(f"an image is none of {', '.join(IMAGE_FORMATS)}, or far too large") from error


def check_bounds(images: list[Any]) -> None:
    """Raise a `ValueError` if an image is empty or far too narrow, or all have more than `MAX_PIXELS`."""
    for image in images:
        if not 0 < max(image.size) <= MAX_RATIO * min(image.size):
            raise ValueError(
                f"an image has {image.width}×{image.height} pixels, one side may be {MAX_RATIO} times the other"
            )
    if sum(image.width * image.height for image in images) > MAX_PIXELS:
        raise ValueError(f"the images have more than {MAX_PIXELS} pixels, together or alone")


def upright_rgb(image: Any) -> Any:
    """Decode a PIL image to a new one that is upright and RGB.

    It has the pixels that `pipeline("image-classification")` sees: EXIF orientation is followed, an alpha channel is
    dropped, one transparent colour is left to the image processor, and of an animation the first frame is taken. Grey
    of 16 bits alone differs: it keeps its high byte, as Pillow keeps that of colours, where the pipeline makes white
    of all above 255.

    Raises:
        ValueError: pixels are floats, or integers of more than 16 bits, whose range is not known.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        low, high = image.convert("F").getextrema()
        if image.mode == "F" or low < 0 or high > 0xFFFF:
            raise ValueError("its pixels are floats or integers of unknown range; convert it to 8 or 16 bits")
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if isinstance(image.info.get("transparency"), bytes):
        # Transparency in bytes is deleted, as Pillow would drop it anyway, with a warning.
        del image.info["transparency"]
    image = image.convert("RGB")
    # An image's EXIF is left out: a pipeline would read it again, and fail where it is broken.
    image.info = {name: value for name, value in image.info.items() if name == "transparency"}
    return image
