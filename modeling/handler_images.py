# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for classes of images, with bounds of what they may cost and reach."""

from typing import Any, ClassVar

from .endpoint import RequestHandler
from .image_input import Image, read_images


class EndpointHandler(RequestHandler):
    """Classify an image or a list of images, each in base64, as bytes or as a PIL image."""

    task = "image-classification"
    parameters: ClassVar[dict[str, Any]] = {"top_k": (1, 1000), "function_to_apply": ["softmax", "sigmoid", "none"]}

    def read(self, inputs: list[Any]) -> list[Any]:
        """Open images of a request, as upright PIL images of RGB."""
        if Image is None:
            raise ValueError("images need Pillow, which is not installed on this endpoint")
        return read_images(inputs)
