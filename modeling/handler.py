# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Answers requests to an Inference Endpoint that serves a folder of this library.

The server imports this file by itself from the folder, so it names none of its neighbours.
"""

import base64
import binascii
import io
import logging
import math
from typing import Any

from transformers import AutoConfig, pipeline

try:
    from PIL import Image
except ImportError:  # translation needs no images
    Image = None

logger = logging.getLogger(__name__)

MAX_BATCH = 32
MAX_CHARACTERS = 10_000
MAX_IMAGE_BYTES = 10 * 2**20
BATCH_SIZE = 8  # inputs that are computed at a time
# formats that Pillow reads by itself; for others it starts programs
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# name → what is allowed: types and bounds, both included, or the values
PARAMETERS = {
    "translation": {
        "num_beams": (int, 1, 8),
        "max_new_tokens": (int, 1, 512),
        "length_penalty": (float, -10, 10),
        "early_stopping": (True, False),
        "no_repeat_ngram_size": (int, 0, 100),
        "repetition_penalty": (float, 0.01, 100),
        "do_sample": (True, False),
        "temperature": (float, 0.01, 100),
        "top_k": (int, 1, 1000),
        "top_p": (float, 0.001, 1),
        "return_alignments": (True, False),
        "truncation": (True, False),
    },
    "image-classification": {
        "top_k": (int, 1, 1000),
        "function_to_apply": ("softmax", "sigmoid", "none"),
    },
}


class EndpointHandler:
    """Opens a model once and answers requests with it.

    Args:
        path: folder of the model.
    """

    def __init__(self, path: str = ""):
        path = path or "."
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        # config.json names the pipeline that the model brings along; image classifiers need none
        self.task = next(iter(getattr(config, "custom_pipelines", None) or ["image-classification"]))
        self.pipeline = pipeline(self.task, model=path, trust_remote_code=True)
        self.parameters = dict(PARAMETERS[self.task])
        if self.task == "translation":
            kind, low, high = self.parameters["max_new_tokens"]
            self.parameters["max_new_tokens"] = kind, low, min(high, config.max_position_embeddings)

    def __call__(self, data: Any) -> list[Any] | dict[str, str]:
        """Answer one request.

        Args:
            data: `inputs`: a text or a list of texts; or an image or a list of images, each in base64, as bytes or as
                a PIL image. `parameters`, if wanted: some of `PARAMETERS` of the task, with no more new
                tokens than the model has positions.

        Returns:
            What the pipeline of the task gives; `{"error": …}`, one line, if the request cannot be answered.
        """
        try:
            inputs, parameters = self._check(data)
            return self.pipeline(inputs, batch_size=BATCH_SIZE, **parameters)
        except ValueError as error:
            return {"error": " ".join(str(error).split())}
        except Exception:
            logger.exception("a request failed")
            return {"error": "the model failed on this request; the log of the endpoint says why"}

    def _check(self, data: Any) -> tuple[Any, dict[str, Any]]:
        if not isinstance(data, dict) or "inputs" not in data:
            raise ValueError('the body must be an object with "inputs", and "parameters" if wanted')
        unknown = [key for key in data if key not in ("inputs", "parameters")]
        if unknown:
            raise ValueError(f'the body has "inputs" and "parameters" and nothing else, got {_quote(unknown[0])}')
        inputs, parameters = data["inputs"], self._check_parameters(data.get("parameters"))
        is_translation = self.task == "translation"
        if not isinstance(inputs, list):
            return check_text(inputs, "inputs") if is_translation else open_image(inputs, "inputs"), parameters
        if not 1 <= len(inputs) <= MAX_BATCH:
            raise ValueError(f"inputs must be 1 to {MAX_BATCH}, got {len(inputs)}")
        names = [f"inputs[{number}]" for number in range(len(inputs))]
        if is_translation:
            return [check_text(*pair) for pair in zip(inputs, names, strict=True)], parameters
        images, num_pixels = [], 0
        for value, name in zip(inputs, names, strict=True):
            images.append(open_image(value, name, num_pixels))
            num_pixels += math.prod(images[-1].size)
        return images, parameters

    def _check_parameters(self, parameters: Any) -> dict[str, Any]:
        if parameters is None:
            return {}
        if not isinstance(parameters, dict):
            raise ValueError(f"parameters must be an object, got {type(parameters).__name__}")
        allowed = self.parameters
        for name, value in parameters.items():
            if name not in allowed:
                raise ValueError(f"unknown parameter {_quote(name)}; allowed are {', '.join(allowed)}")
            if value is not None:
                check_parameter(name, value, allowed[name])
        return {name: value for name, value in parameters.items() if value is not None}


def check_parameter(name: str, value: Any, allowed: tuple) -> None:
    """Refuse a value that `PARAMETERS` does not allow.

    Raises:
        ValueError: it has another type, or is out of its bounds.
    """
    if not isinstance(allowed[0], type):
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
            raise ValueError(f"{name} must be one of {', '.join(map(str, allowed)).lower()}, got {_quote(value)}")
        return
    kind, low, high = allowed
    is_number = isinstance(value, int) or (kind is float and isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not is_number or not low <= value <= high:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"{name} must be {what} from {low} to {high}, got {_quote(value)}")


def check_text(text: Any, name: str) -> str:
    """A text that may be translated.

    Raises:
        ValueError: it is not a string, is empty, too long or has half a character.
    """
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, got {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"{name} is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is no valid text: half of a surrogate pair at character {error.start + 1}"
        ) from error
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{name} has {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    return text


def open_image(value: Any, name: str, num_pixels: int = 0) -> Any:
    """An image that may be classified, as a PIL image.

    Never by name: a path or an address would make the server read what the asker has no right to.

    Args:
        value: base64, with or without `data:image/…;base64,` before it; bytes; or a PIL image.
        name: for messages.
        num_pixels: of the images before it in a request, which count for the bound.

    Raises:
        ValueError: it is none of these, is damaged or too large.
    """
    if Image is None:
        raise ValueError("images need Pillow, which is not installed on this endpoint")
    if isinstance(value, str):
        value = _decode(value, name)
    if isinstance(value, bytes | bytearray):
        if len(value) > MAX_IMAGE_BYTES:
            raise ValueError(f"{name} has {len(value)} bytes, at most {MAX_IMAGE_BYTES} are allowed")
        try:
            value = Image.open(io.BytesIO(value), formats=IMAGE_FORMATS)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{name} is no image of format {', '.join(IMAGE_FORMATS)}") from error
    if not isinstance(value, Image.Image):
        raise ValueError(f"{name} must be an image in base64, got {type(value).__name__}")
    width, height = value.size
    if width * height > Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"{name} has {width}×{height} pixels, at most {Image.MAX_IMAGE_PIXELS} are allowed")
    if num_pixels + width * height > Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"the images up to {name} have more than {Image.MAX_IMAGE_PIXELS} pixels together")
    try:
        value.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"{name} is a damaged image") from error
    return value


def _decode(text: str, name: str) -> bytes:
    if len(text) > 2 * MAX_IMAGE_BYTES:
        raise ValueError(f"{name} has {len(text)} characters, more than {MAX_IMAGE_BYTES} bytes in base64")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{name} must be an image in base64; a path or an address is not opened") from error
    if not data:
        raise ValueError(f"{name} is empty")
    return data


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:50]}…"
