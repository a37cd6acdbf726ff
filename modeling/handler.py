# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Answers requests to an Inference Endpoint that serves a folder of this library.

The server imports this file by itself from the folder, so it names none of its neighbours.
"""

import base64
import binascii
import io
import math
from typing import Any

from transformers import AutoConfig, pipeline
from transformers.utils import logging

try:
    from PIL import Image, ImageOps
except ImportError:  # translation needs no images
    Image = ImageOps = None

logger = logging.get_logger(__name__)

MAX_BATCH = 32
MAX_CHARACTERS = 10_000
MAX_IMAGE_BYTES = 10 * 2**20
MAX_PIXELS = 25_000_000  # of all images of a request; each costs some 17 bytes
MAX_RATIO = 50  # of the sides: processors enlarge the shorter one, and the longer one with it
BATCH_SIZE = 8  # inputs that are computed at a time
# formats that Pillow reads by itself; for others it starts programs
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# name → what is allowed: a type, a type and bounds, both included, or the values
PARAMETERS = {
    "translation": {
        "num_beams": (int, 1, 8),
        "max_new_tokens": (int, 1, 512),
        "max_length": (int, 2, 513),
        "length_penalty": (float, -10, 10),
        "early_stopping": (True, False),
        "no_repeat_ngram_size": (int, 0, 100),
        "repetition_penalty": (float, 0.01, 100),
        "do_sample": (True, False),
        "temperature": (float, 0.01, 100),
        "top_k": (int, 1, 1000),
        "top_p": (float, 0.001, 1),
        "return_alignments": (True, False),
        "keep_tags": (True, False),
        "truncation": (True, False, "longest_first", "only_first", "do_not_truncate"),
        "clean_up_tokenization_spaces": (True, False),
        "src_lang": (str,),
        "tgt_lang": (str,),
    },
    "image-classification": {
        "top_k": (int, 1, 1000),
        "function_to_apply": ("softmax", "sigmoid", "none"),
    },
}
# as in transformers, where BPE leaves the spaces as they are and a model of two languages asks for neither
IGNORED = ("src_lang", "tgt_lang", "clean_up_tokenization_spaces")


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
            positions = config.max_position_embeddings
            for name, start in (("max_new_tokens", 0), ("max_length", 1)):  # the latter counts the start token
                kind, low, high = self.parameters[name]
                self.parameters[name] = kind, low, min(high, positions + start)

    def __call__(self, data: Any) -> list[Any]:
        """Answer one request, such as `InferenceClient` of huggingface_hub sends it.

        Args:
            data: `inputs`: a text or a list of texts; or an image or a list of images, each in base64, as bytes or as
                a PIL image. `parameters`, if wanted: some of `PARAMETERS` of the task, with no more new tokens than
                the model has positions; of translation also inside of `generate_parameters`. What a model of one
                pair of languages and a tokenizer of BPE has no use for (`IGNORED`) changes nothing, and neither do
                `options`, which are for the server.

        Returns:
            What the pipeline of the task gives.

        Raises:
            ValueError: the request cannot be answered, in one line; the server gives HTTP 400 with it.
            RuntimeError: the model failed, and only the log says why.
        """
        try:
            inputs, parameters = self._check(data)
            return self.pipeline(inputs, batch_size=BATCH_SIZE, **parameters)
        except ValueError as error:
            raise ValueError(" ".join(str(error).split())) from error
        except Exception:
            logger.exception("a request failed")
            raise RuntimeError("the model failed on this request; the log of the endpoint says why") from None

    def _check(self, data: Any) -> tuple[Any, dict[str, Any]]:
        if not isinstance(data, dict) or "inputs" not in data:
            raise ValueError('the body must be an object with "inputs", and "parameters" if wanted')
        unknown = [key for key in data if key not in ("inputs", "parameters", "options")]
        if unknown:
            raise ValueError(
                f'the body has "inputs", "parameters" and "options" and nothing else, got {_quote(unknown[0])}'
            )
        _as_object(data.get("options"), "options")
        inputs, parameters = data["inputs"], self._check_parameters(data.get("parameters"))
        is_translation = self.task == "translation"
        if not isinstance(inputs, list):
            return check_request_text(inputs, "inputs") if is_translation else open_image(inputs, "inputs"), parameters
        if not 1 <= len(inputs) <= MAX_BATCH:
            raise ValueError(f"inputs must be 1 to {MAX_BATCH}, got {len(inputs)}")
        names = [f"inputs[{number}]" for number in range(len(inputs))]
        if is_translation:
            return [check_request_text(*pair) for pair in zip(inputs, names, strict=True)], parameters
        images, num_pixels = [], 0
        for value, name in zip(inputs, names, strict=True):
            images.append(open_image(value, name, num_pixels))
            num_pixels += math.prod(images[-1].size)
        return images, parameters

    def _check_parameters(self, parameters: Any) -> dict[str, Any]:
        """What the pipeline is to be called with."""
        parameters, allowed = _as_object(parameters, "parameters"), self.parameters
        is_translation = self.task == "translation"
        if is_translation:
            inner = _as_object(parameters.pop("generate_parameters", None), "generate_parameters")
            for name in parameters.keys() & inner.keys():
                raise ValueError(f"{name} is given twice, in parameters and in generate_parameters")
            parameters |= inner
        for name, value in parameters.items():
            if name not in allowed:
                raise ValueError(f"unknown parameter {_quote(name)}; allowed are {', '.join(allowed)}")
            check_parameter(name, value, allowed[name])
        return _as_generate_takes_them(parameters) if is_translation else parameters


def _as_object(value: Any, name: str) -> dict[str, Any]:
    """A JSON object without what is null; an empty one if there is none."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {type(value).__name__}")
    return {key: part for key, part in (value or {}).items() if part is not None}


def _as_generate_takes_them(parameters: dict[str, Any]) -> dict[str, Any]:
    """Names and values that clients send, as pipeline and `generate` know them."""
    parameters = {name: value for name, value in parameters.items() if name not in IGNORED}
    if "truncation" in parameters:
        parameters["truncation"] = parameters["truncation"] not in (False, "do_not_truncate")
    if "max_length" in parameters:  # max_new_tokens of generation_config.json would go before it
        parameters.setdefault("max_new_tokens", parameters.pop("max_length") - 1)
    return parameters


def check_parameter(name: str, value: Any, allowed: tuple) -> None:
    """Refuse a value that `PARAMETERS` does not allow.

    Raises:
        ValueError: it has another type, or is out of its bounds.
    """
    if allowed == (str,):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got {_quote(value)}")
        return
    if not isinstance(allowed[0], type):
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
            raise ValueError(f"{name} must be one of {', '.join(map(str, allowed)).lower()}, got {_quote(value)}")
        return
    kind, low, high = allowed
    is_number = isinstance(value, int) or (kind is float and isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not is_number or not low <= value <= high:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"{name} must be {what} from {low} to {high}, got {_quote(value)}")


def check_request_text(text: Any, name: str) -> str:
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
    """An image that may be classified, as an upright PIL image of RGB.

    Never by name: a path or an address would make the server read what the asker has no right to.

    Args:
        value: base64, with or without `data:image/…;base64,` before it; bytes; or a PIL image.
        name: for messages.
        num_pixels: of the images before it in a request, which count for the bound.

    Raises:
        ValueError: it is none of these, of another format, damaged or too large.
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
        except Exception as error:  # each format has errors of its own for what is broken, here and below
            raise ValueError(f"{name} is no image of format {', '.join(IMAGE_FORMATS)}, or far too large") from error
    if not isinstance(value, Image.Image):
        raise ValueError(f"{name} must be an image in base64, got {type(value).__name__}")
    if value.format not in (*IMAGE_FORMATS, "MPO", None):  # MPO is JPEG, None what was never a file
        raise ValueError(f"{name} is no image of format {', '.join(IMAGE_FORMATS)}, got {value.format}")
    width, height = value.size
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"{name} has {width}×{height} pixels, 1 to {MAX_PIXELS} are allowed")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(f"{name} has {width}×{height} pixels, one side may be {MAX_RATIO} times the other at most")
    if num_pixels + width * height > MAX_PIXELS:
        raise ValueError(f"the images up to {name} have more than {MAX_PIXELS} pixels together")
    try:
        value = ImageOps.exif_transpose(value).convert("RGB")  # as the pipeline does it, which would fail on bad EXIF
    except Exception as error:
        raise ValueError(f"{name} is a damaged image") from error
    # no more EXIF, so that the pipeline reads none
    value.info = {key: part for key, part in value.info.items() if key == "transparency"}
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
