# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for classes of images, with bounds of what they may cost and reach."""

import base64
import io
from typing import Any, ClassVar

from .endpoint import RequestHandler

try:
    from PIL import Image, ImageOps
except ImportError:
    Image = ImageOps = None

MAX_IMAGE_BYTES = 10 * 2**20
MAX_PIXELS = 25_000_000  # of all images of a request; each costs some 17 bytes
MAX_RATIO = 50  # of the sides: processors enlarge the shorter one, and the longer one with it
# formats that Pillow reads by itself; for others it starts programs
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


class EndpointHandler(RequestHandler):
    """Classify an image or a list of images, each in base64, as bytes or as a PIL image."""

    task = "image-classification"
    parameters: ClassVar[dict[str, Any]] = {"top_k": (1, 1000), "function_to_apply": ["softmax", "sigmoid", "none"]}

    def read(self, inputs: list[Any]) -> list[Any]:
        """Open images of a request, as upright PIL images of RGB; none is decoded before all sizes are known."""
        if Image is None:
            raise ValueError("images need Pillow, which is not installed on this endpoint")
        images = [open_image(value) for value in inputs]
        if sum(image.width * image.height for image in images) > MAX_PIXELS:
            raise ValueError(f"the images have more than {MAX_PIXELS} pixels, together or alone")
        try:
            # as the pipeline does it, which would fail on bad EXIF
            images = [ImageOps.exif_transpose(image).convert("RGB") for image in images]
        except Exception as error:  # each format has errors of its own for what is broken, here and below
            raise ValueError("an image is damaged") from error
        for image in images:
            image.info = {}  # no more EXIF for the pipeline to read
        return images


def open_image(value: Any) -> Any:
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
        try:
            value = Image.open(io.BytesIO(value), formats=IMAGE_FORMATS)
        except Exception as error:
            raise ValueError(f"an image is none of {', '.join(IMAGE_FORMATS)}, or far too large") from error
    # MPO is JPEG, None what was never a file
    if not isinstance(value, Image.Image) or value.format not in (*IMAGE_FORMATS, "MPO", None):
        raise ValueError(f"an image must be in base64, of format {', '.join(IMAGE_FORMATS)}")
    if not 0 < max(value.size) <= MAX_RATIO * min(value.size):
        raise ValueError(
            f"an image has {value.width}×{value.height} pixels, one side may be {MAX_RATIO} times the other"
        )
    return value
