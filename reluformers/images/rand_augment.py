"""RandAugment as big_vision runs it, on Pillow images."""

from collections.abc import Callable

import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

# what lies outside of a picture that was moved, and what is cut out
GREY = (128, 128, 128)
# the lengths of big_vision, in pixels of its pictures of 224 px; here they shrink with the picture
TRANSLATION = 100 / 224
CUTOUT = 40 / 224


def rand_augment(picture: Image.Image, operations: int, strength: float) -> Image.Image:
    """Apply operations drawn at random, each with all of the others to choose from (Cubuk et al. 2020).

    The operations, what a strength means for each and the grey of empty places are those of big_vision's
    `distort_image_with_randaugment`. Two things differ: translations and cutouts, which are given in pixels there, are
    shares of the side of the picture, and contrast is changed around the mean brightness, as in the paper.

    Args:
        picture: RGB image.
        operations: how many are applied, one after the other (N of the paper).
        strength: from 0 to 20 (M of the paper; big_vision takes up to 20). It raises most distortions; posterize and
            solarize do less with it, and nothing at 20 and from 10.

    Returns:
        An image of the same size. Random numbers come from torch's global generator.
    """
    for index in torch.randint(len(OPERATIONS), (operations,)).tolist():
        picture = OPERATIONS[index](picture, strength / 10)
    return picture


def _signed(value: float) -> float:
    return value if torch.rand(()) < 0.5 else -value


def _affine(picture: Image.Image, *coefficients: float) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, coefficients, fillcolor=GREY)


def _cutout(picture: Image.Image, level: float) -> Image.Image:
    x, y = (torch.rand(2) * torch.tensor(picture.size)).long().tolist()
    half_width, half_height = (int(CUTOUT * level * side) for side in picture.size)
    picture = picture.copy()
    if half_width and half_height:
        # Pillow counts the last row and column in
        box = (x - half_width, y - half_height, x + half_width - 1, y + half_height - 1)
        ImageDraw.Draw(picture).rectangle(box, fill=GREY)
    return picture


def _posterize(picture: Image.Image, level: float) -> Image.Image:
    # Pillow's own refuses to leave no bit, which the lowest strengths ask for
    dropped = 8 - int(4 * level)
    return picture.point([value >> dropped << dropped for value in range(256)] * 3)


def _solarize_add(picture: Image.Image, level: float) -> Image.Image:
    added = int(110 * level)
    table = [min(value + added, 255) if value < 128 else value for value in range(256)]
    return picture.point(table * 3)


def _enhance(kind: Callable) -> Callable[[Image.Image, float], Image.Image]:
    return lambda picture, level: kind(picture).enhance(0.1 + 1.8 * level)


OPERATIONS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda picture, level: ImageOps.autocontrast(picture),
    lambda picture, level: ImageOps.equalize(picture),
    lambda picture, level: ImageOps.invert(picture),
    _posterize,
    lambda picture, level: ImageOps.solarize(picture, int(256 * level)),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    lambda picture, level: picture.rotate(_signed(30 * level), fillcolor=GREY),
    lambda picture, level: _affine(picture, 1, _signed(0.3 * level), 0, 0, 1, 0),
    lambda picture, level: _affine(picture, 1, 0, 0, _signed(0.3 * level), 1, 0),
    lambda picture, level: _affine(picture, 1, 0, _signed(TRANSLATION * level * picture.width), 0, 1, 0),
    lambda picture, level: _affine(picture, 1, 0, 0, 0, 1, _signed(TRANSLATION * level * picture.height)),
    _cutout,
    _solarize_add,
)
