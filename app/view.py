"""The picture of attention as HTML: exact zeros have no colour, whatever is not zero has one, null rows are amber.

Every head is an image of one pixel for each weight, so that the page's own background shows through the zeros.
`view.html` is the template, `view.css` sizes the images, `view.js` lights up words and changes the head.
"""

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from PIL import Image

from models import AttentionMap, PatchMap

# RGB in 0..255; the colour of patches can be seen on black, white and most photos.
POSITIVE = (66, 135, 245)
NEGATIVE = (220, 38, 38)
NULL = (217, 119, 6)
MASKED = (128, 128, 128)
PATCH = (255, 110, 0)
FAINTEST = 0.2  # The smallest weight above zero has this opacity.
LARGEST_CODE = 32_767
TINY_SIDE = 64  # Pictures of fewer pixels a side are enlarged without smoothing.


def text_view(maps: Sequence[tuple[str, AttentionMap]]) -> str:
    """The attention of one model, or of some beside each other, over the words of a sentence."""
    return _render([(name, _text_map(attention)) for name, attention in maps])


def image_view(maps: Sequence[tuple[str, PatchMap]]) -> str:
    """The attention of one model, or of some beside each other, laid over the image."""
    return _render([(name, _patch_map(patches)) for name, patches in maps])


def paint(
    weights: np.ndarray, visible: np.ndarray | None = None, colour: tuple[int, int, int] = POSITIVE
) -> Image.Image:
    """Weights [rows, columns] as an RGBA image of one pixel each: zeros are transparent.

    Args:
        weights: of one head.
        visible: bool of the same shape, what is not masked; None for all, and then no row is marked as null.
        colour: of positive weights.
    """
    largest = np.abs(weights).max() or 1
    opacity = np.where(weights == 0, 0, FAINTEST + (1 - FAINTEST) * np.abs(weights) / largest)
    colours = np.where((weights < 0)[..., None], NEGATIVE, colour)
    pixels = np.concatenate([colours, 255 * opacity[..., None]], axis=-1).round().astype(np.uint8)
    if visible is not None:
        pixels[null_rows(weights)] = (*NULL, 110)
        pixels[~visible] = (*MASKED, 64)
    return Image.fromarray(pixels)


def null_rows(weights: np.ndarray) -> np.ndarray:
    """Which rows [rows] have no weight but zeros."""
    return (weights == 0).all(-1)


def percent(share: float) -> str:
    """A share in percent; only what is none or all is written as 0 or 100 %."""
    if 0 < share < 0.01:
        return "under 1\u00a0%"
    if 0.99 < share < 1:
        return "over 99\u00a0%"
    return f"{share:.0%}".replace("%", "\u00a0%")


def sharpest(weights: np.ndarray) -> int:
    """The head whose rows give the largest share to one word: the one to begin with."""
    sums = np.abs(weights).sum(-1)
    return int((np.abs(weights).max(-1) / np.where(sums == 0, 1, sums)).mean(-1).argmax())


def _render(maps: list[tuple[str, dict[str, Any]]]) -> str:
    """Fill the template; one model alone needs no name."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = percent
    template = environment.from_string(Path(__file__).with_name("view.html").read_text(encoding="utf-8"))
    return template.render(maps=[{**one, "name": name if len(maps) > 1 else ""} for name, one in maps])


def _text_map(attention: AttentionMap) -> dict[str, Any]:
    query, key = attention.axis_names
    largest = np.abs(attention.weights).max() or 1
    # A zero stays a zero, and nothing else becomes one.
    codes = np.sign(attention.weights) * np.maximum(np.abs(attention.weights) / largest * LARGEST_CODE, 1)
    data = {
        "weights": base64.b64encode(codes.round().astype("<i2").tobytes()).decode(),
        "unit": float(largest) / LARGEST_CODE,
        "queries": [word.text for word in attention.queries],
        "keys": [word.text for word in attention.keys],
    }
    return {
        **vars(attention),
        "head": sharpest(attention.weights),
        "pictures": [_source(paint(weights, attention.visible)) for weights in attention.weights],
        "titles": [f"head {number + 1}, {key} across, {query} down" for number in range(len(attention.weights))],
        "small_ratio": f"{attention.weights.shape[2]}/{attention.weights.shape[1]}",
        "colour": POSITIVE,
        "has_nulls": any(attention.zeros.nulls),
        "is_masked": not attention.visible.all(),
        "exceeds_one": largest > 1.01,  # Rounding lifts softmax's weights above 1, too.
        "data": json.dumps(data),
    }


def _patch_map(patches: PatchMap) -> dict[str, Any]:
    height, width = patches.picture.shape[:2]
    return {
        "zeros": patches.zeros,
        "caption": patches.title,
        "head": sharpest(patches.weights.reshape(len(patches.weights), 1, -1)),
        "pictures": [_source(paint(weights, colour=PATCH)) for weights in patches.weights],
        "titles": [f"head {number + 1} over the image" for number in range(len(patches.weights))],
        "small_ratio": f"{patches.weights.shape[2]}/{patches.weights.shape[1]}",
        "colour": PATCH,
        "behind": _source(Image.fromarray((patches.picture * 255).round().astype(np.uint8))),
        "size": "tiny" if max(height, width) <= TINY_SIDE else "",
        "ratio": f"{width}/{height}",
    }


def _source(picture: Image.Image) -> str:
    """A picture as an address that holds it."""
    file = BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
