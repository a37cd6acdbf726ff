# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for classes of images, with bounds of what they may cost and reach."""

import base64
import io
from typing import Any, ClassVar

from transformers import pipeline
from transformers.utils import logging

# ---------------------------------------------------------------------------------------------------------------------
# modeling/endpoint.py
# Requests to an Inference Endpoint that serves a folder of this library.
#
# The server imports handler.py alone, so saving writes this file, the task's handler and what they import into that one
# file.


logger = logging.get_logger(__name__)

MAX_BATCH = 32
BATCH_SIZE = 8  # So many inputs are computed at a time.
# Clients send them for any model, but a model of two languages has no use for them.
IGNORED = ("src_lang", "tgt_lang", "clean_up_tokenization_spaces")


class RequestHandler:
    """Open the model of a folder once and answer requests with it; a task's `read` checks its inputs."""

    task: ClassVar[str]
    # name → bounds of a number, both included, or a list of what is allowed
    parameters: ClassVar[dict[str, tuple | list]]

    def __init__(self, path: str = ""):
        self.pipeline = pipeline(self.task, model=path or ".", trust_remote_code=True)

    def __call__(self, data: Any) -> list[Any]:
        """Answer one request, such as `InferenceClient` of huggingface_hub sends it.

        Args:
            data: `inputs`: one or a list; `parameters`, if wanted: some of those above, also inside of
                `generate_parameters`. `options` are for the server.

        Raises:
            ValueError: the request cannot be answered, in one line; the server gives HTTP 400 with it.
            RuntimeError: the model failed, and only the log says why.
        """
        try:
            if not isinstance(data, dict) or not {"inputs"} <= data.keys() <= {"inputs", "parameters", "options"}:
                raise ValueError('the body must be an object with "inputs", and "parameters" if wanted')
            parameters = self.check_parameters(data.get("parameters"))
            inputs = data["inputs"] if isinstance(data["inputs"], list) else [data["inputs"]]
            if not 1 <= len(inputs) <= MAX_BATCH:
                raise ValueError(f"inputs must be 1 to {MAX_BATCH}, got {len(inputs)}")
            answers = self.pipeline(self.read(inputs), batch_size=BATCH_SIZE, **parameters)
            # The answer to one image is a list of classes, and to one text a list of one translation.
            return answers if isinstance(data["inputs"], list) or self.task == "translation" else answers[0]
        # The sender made a mistake: the answer says why, in one line.
        except ValueError as error:
            raise ValueError(" ".join(str(error).split())) from error
        # The fault is here: the sender learns no path and no line of code.
        except Exception:
            logger.exception("a request failed")
            raise RuntimeError("the model failed on this request; the log of the endpoint says why") from None

    def check_parameters(self, parameters: Any) -> dict[str, Any]:
        """Refuse what is not allowed, and leave out what is null or `IGNORED`."""
        given = {}
        for name in ("parameters", "generate_parameters"):  # Some clients put the second into the first.
            if not isinstance(parameters, dict | None):
                raise ValueError(f"{name} must be an object, got {parameters!r:.50}")
            given |= parameters or {}
            parameters = given.pop("generate_parameters", None)
        given = {name: value for name, value in given.items() if value is not None and name not in IGNORED}
        for name, value in given.items():
            allowed = self.parameters.get(name)
            if allowed is None:
                raise ValueError(f"unknown parameter {name!r:.50}; allowed are {', '.join(self.parameters)}")
            if isinstance(allowed, list):
                fits, wanted = value in allowed, f"one of {allowed}"
            else:
                low, high = allowed
                fits = type(value) in (int, type(low)) and low <= value <= high
                wanted = f"a number from {low} to {high}"
            if not fits:
                raise ValueError(f"{name} must be {wanted}, got {value!r:.50}")
        return given


# ---------------------------------------------------------------------------------------------------------------------
# modeling/image_input.py
# Images as every model gets them: bounded, upright and RGB. Training, scoring and the endpoint all read them here.


try:
    from PIL import Image, ImageOps
except ImportError:
    Image = ImageOps = None

MAX_PIXELS = 25_000_000  # All images of a request together have so many; a pixel costs some 17 bytes.
MAX_RATIO = 50  # Image processors enlarge the shorter side, and the longer side with it.
# Pillow reads these formats without starting another program.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def open_image(data: bytes) -> Any:
    """Open an image of one of `IMAGE_FORMATS` without decoding it."""
    try:
        return Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    except Exception as error:  # Each format raises errors of its own for broken files.
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
        del image.info["transparency"]  # Pillow would drop it anyway, with a warning.
    image = image.convert("RGB")
    # EXIF is left out: a pipeline would read it again, and fail where it is broken.
    image.info = {name: value for name, value in image.info.items() if name == "transparency"}
    return image


# ---------------------------------------------------------------------------------------------------------------------
# modeling/handler_images.py


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
