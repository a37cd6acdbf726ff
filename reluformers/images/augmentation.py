"""Random changes to training images, and the batches that models of images are trained on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import BaseImageProcessor

from reluformers.configuration.field_checks import check_number

from .processing import IMAGE, LABEL, decode_image, fit_images, image_file

# Width over height of a resized crop lies in this range.
ASPECT_RATIOS = (3 / 4, 4 / 3)
ATTEMPTS = 10


@dataclass
class Augmentation:
    """What is done at random to training images, in this order: crop, flip, RandAugment, Mixup.

    Args:
        crop: "none" resizes as in evaluation. "pad" then adds a black border of `padding` and cuts a piece of the old
            size. "resized" cuts a piece with at least `min_area` of the picture, width to height from 3:4 to 4:3, and
            resizes it (Inception crop).
        padding: width of the border of "pad", in pixels.
        min_area: smallest share of the picture in a "resized" crop, above 0 and up to 1.
        flip: mirror half of the images, left to right.
        rand_augment: [number of operations, strength from 0 to 20] of RandAugment, or None.
        mixup: parameter p of Mixup, at least 0.01, or 0 for none: with a ~ Beta(p, p) and a ← max(a, 1 − a), images
            and labels become a·x + (1 − a)·(x of the batch rolled by one), one a for the batch (big_vision).
    """

    crop: Literal["none", "pad", "resized"] = "none"
    padding: int = 4
    min_area: float = 0.05
    flip: bool = False
    rand_augment: list[int] | None = None
    mixup: float = 0.0

    def __post_init__(self):
        owner = type(self).__name__
        check_number(owner, "min_area", self.min_area, "(0, 1]")
        # Below this value, draws of the Beta distribution round to 0 and 1.
        check_number(owner, "mixup", self.mixup, f"[{0.01 if self.mixup else 0}, inf)")
        if self.rand_augment is not None:
            check_number(owner, "rand_augment[1]", self.rand_augment[1], "[0, 20]")

    def change(self, picture: Image.Image, processor: BaseImageProcessor) -> Image.Image:
        """Crop, flip and distort an RGB image to the size that the processor makes, by torch's global generator."""
        size = processor.crop_size if processor.do_center_crop else processor.size
        if self.crop == "resized":
            if "transparency" in picture.info:  # The processor decides what a transparent colour becomes.
                picture = fit_images([picture], processor, do_resize=False, do_center_crop=False)[0]
            box = self._random_box(*picture.size)
            picture = picture.resize((size.width, size.height), processor.resample, box=box)
        elif picture.size != (size.width, size.height) or processor.do_center_crop or "transparency" in picture.info:
            picture = fit_images([picture], processor)[0]  # A picture that fits would only be copied.
        if self.crop == "pad":
            left, top = torch.randint(-self.padding, self.padding + 1, (2,)).tolist()
            # Pillow fills what lies outside with black.
            picture = picture.crop((left, top, left + picture.width, top + picture.height))
        if self.flip and torch.rand(()) < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.rand_augment is None:
            return picture
        return rand_augment(picture, *self.rand_augment)

    def _random_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        low, high = map(math.log, ASPECT_RATIOS)
        for area, ratio, left, top in torch.rand(ATTEMPTS, 4).tolist():
            pixels = width * height * (self.min_area + area * (1 - self.min_area))
            ratio = math.exp(low + ratio * (high - low))
            columns = math.sqrt(pixels * ratio)
            rows = math.sqrt(pixels / ratio)
            if columns <= width and rows <= height:
                left = left * (width - columns)
                top = top * (height - rows)
                return left, top, min(left + columns, width), min(top + rows, height)
        return 0, 0, width, height

    def mix(self, pixel_values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mix images [batch, channels, height, width] and targets [batch, classes] with those before (Mixup)."""
        parameter = torch.tensor(self.mixup, dtype=torch.float64)
        share = float(torch.distributions.Beta(parameter, parameter).sample())
        share = max(share, 1 - share)
        return tuple(share * values + (1 - share) * values.roll(1, 0) for values in (pixel_values, targets))


@dataclass
class ImageCollator:
    """Make a batch of rows of `load_image_split`, for training and scoring alike.

    Args:
        processor: the model's image processor.
        augmentation: what to do at random; None for what the processor gives.
        num_labels: number of classes, needed for Mixup.
        keep_files: also return the files as `files`, list of bytes.
    """

    processor: BaseImageProcessor
    augmentation: Augmentation | None = None
    num_labels: int | None = None
    keep_files: bool = False

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Tensors of a batch: `pixel_values`, float32 [batch, 3, height, width], and, if there are labels, `labels`:
        int64 [batch], with Mixup float32 [batch, num_labels].
        """
        files = [image_file(row[IMAGE]) for row in rows]
        images = [decode_image(file, row[IMAGE]["path"]) for file, row in zip(files, rows, strict=True)]
        if self.augmentation is not None:
            images = [self.augmentation.change(image, self.processor) for image in images]
        # Augmented pictures have the model's size.
        fitted = {} if self.augmentation is None else {"do_resize": False, "do_center_crop": False}
        batch = {"pixel_values": self.processor(images, return_tensors="pt", **fitted)["pixel_values"]}
        if LABEL in rows[0]:
            batch["labels"] = torch.tensor([row[LABEL] for row in rows])
        if self.augmentation is not None and self.augmentation.mixup:
            targets = one_hot(batch["labels"], self.num_labels).float()
            batch["pixel_values"], batch["labels"] = self.augmentation.mix(batch["pixel_values"], targets)
        return {**batch, "files": files} if self.keep_files else batch


# A moved picture shows this grey at its edge, and a cutout is filled with it.
GREY = (128, 128, 128)
# big_vision gives these lengths for pictures of 224 px; here they shrink with the picture.
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
        # Pillow includes the last row and column.
        box = (x - half_width, y - half_height, x + half_width - 1, y + half_height - 1)
        ImageDraw.Draw(picture).rectangle(box, fill=GREY)
    return picture


def _posterize(picture: Image.Image, level: float) -> Image.Image:
    # Pillow's own function refuses to keep no bit, as the lowest strengths ask for.
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
