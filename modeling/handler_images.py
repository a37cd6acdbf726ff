# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for classes of images, with bounds of what they may cost and reach."""

import base64
from typing import Any, ClassVar

from .endpoint import RequestHandler
from .image_input import IMAGE_FORMATS, Image, check_bounds, open_image, upright_rgb

MAX_IMAGE_BYTES = 10 * 2**20


class EndpointHandler(RequestHandler):
    """Classify an image or a list of images, each in base64, as bytes or as a PIL image."""

    task = "image-classification"
    parameters: ClassVar[dict[str, Any]] = {"top_k": (1, 1000), "function_to_apply": ["softmax", "sigmoid", "none"]}

    def read(self, inputs: list[Any]) -> list[Any]:
        """Open images of a request, as upright PIL images of RGB; none is decoded before all sizes are known."""
        if Image is None:
            raise ValueError("images need Pillow, which is not installed on this endpoint")
        images = [open_input(value) for value in inputs]
        # A small file may hold a huge image, so its size is read before a pixel is decoded.
        check_bounds(images)
        try:
            return [upright_rgb(image) for image in images]
        except Exception as error:  # Each format raises errors of its own for broken files.
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
    # MPO is a kind of JPEG, and an image that was never a file has None.
    if not isinstance(value, Image.Image) or value.format not in (*IMAGE_FORMATS, "MPO", None):
        raise ValueError(f"an image must be in base64, of format {', '.join(IMAGE_FORMATS)}")
    return value
