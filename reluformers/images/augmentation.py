"""Random changes to training images, and the batches that models of images are trained on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import ViTImageProcessorPil

from reluformers.configuration.field_checks import check_choice, check_number

from .loading import IMAGE, LABEL, PLACE
from .processing import check_image_processor, decode_image, fit_image, target_size, to_pixel_values
from .rand_augment import rand_augment

CROPS = ("none", "pad", "resized")
# width to height of resized crops
ASPECT_RATIOS = (3 / 4, 4 / 3)
ATTEMPTS = 10


@dataclass
class Augmentation:
    """What is done at random to training images, in this order: crop, flip, RandAugment, Mixup.

    Args:
        crop: "none" (resized as in evaluation), "pad" (that, with a black border of `padding`, out of which a piece of
            the old size is cut) or "resized" (a piece of `min_area` to all of the picture, width to height from 3:4 to
            4:3, resized: Inception crop).
        padding: width of the border of "pad", in pixels.
        min_area: smallest share of the picture in a "resized" crop, above 0 and up to 1.
        flip: mirror half of the images, left to right.
        rand_augment: [number of operations, strength from 0 to 20] of RandAugment, or None.
        mixup: parameter p of Mixup, at least 0.01, or 0 for none: with a ~ Beta(p, p) and a ← max(a, 1 − a), images
            and labels become a·x + (1 − a)·(x of the batch rolled by one), one a for the batch (big_vision).

    Raises:
        ValueError: a field has a value that is not allowed.
    """

    crop: str = "none"
    padding: int = 4
    min_area: float = 0.05
    flip: bool = False
    rand_augment: list[int] | None = None
    mixup: float = 0.0

    def __post_init__(self):
        owner = type(self).__name__
        check_choice(owner, "crop", self.crop, CROPS)
        check_number(owner, "padding", self.padding, "[0, inf)", integer=True)
        check_number(owner, "min_area", self.min_area, "(0, 1]")
        if not isinstance(self.flip, bool):
            raise ValueError(f"{owner}.flip is {self.flip!r}, but must be True or False")
        # below, numbers of the Beta distribution round to 0 and 1
        check_number(owner, "mixup", self.mixup, f"[{0.01 if self.mixup else 0}, inf)")
        if self.rand_augment is None:
            return
        if not isinstance(self.rand_augment, list | tuple) or len(self.rand_augment) != 2:
            raise ValueError(
                f"{owner}.rand_augment is {self.rand_augment!r}, but must be [number of operations, strength] or null"
            )
        number, strength = self.rand_augment
        check_number(owner, "rand_augment[0]", number, "[1, inf)", integer=True)
        check_number(owner, "rand_augment[1]", strength, "[0, 20]")

    def change(self, picture: Image.Image, processor: ViTImageProcessorPil) -> Image.Image:
        """Crop, flip and distort one image.

        Args:
            picture: RGB image of any size.
            processor: says which size the model takes and how images are resized.

        Returns:
            The image in that size. Random numbers come from torch's global generator.
        """
        if self.crop == "resized":
            height, width = target_size(processor)
            picture = picture.resize((width, height), processor.resample, box=self._random_box(*picture.size))
        else:
            picture = fit_image(picture, processor)
        if self.crop == "pad":
            left, top = torch.randint(-self.padding, self.padding + 1, (2,)).tolist()
            # Pillow fills what lies outside with black
            picture = picture.crop((left, top, left + picture.width, top + picture.height))
        if self.flip and torch.rand(()) < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return picture if self.rand_augment is None else rand_augment(picture, *self.rand_augment)

    def _random_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        low, high = map(math.log, ASPECT_RATIOS)
        for area, ratio, left, top in torch.rand(ATTEMPTS, 4).tolist():
            pixels = width * height * (self.min_area + area * (1 - self.min_area))
            ratio = math.exp(low + ratio * (high - low))
            columns, rows = math.sqrt(pixels * ratio), math.sqrt(pixels / ratio)
            if columns <= width and rows <= height:
                left, top = left * (width - columns), top * (height - rows)
                return left, top, min(left + columns, width), min(top + rows, height)
        return 0, 0, width, height

    def mix(self, pixel_values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mix each image and its target with those before it (Mixup).

        Args:
            pixel_values: float [batch, channels, height, width].
            targets: float [batch, classes].

        Returns:
            Both of the same shapes, mixed.
        """
        parameter = torch.tensor(self.mixup, dtype=torch.float64)
        share = float(torch.distributions.Beta(parameter, parameter).sample())
        share = max(share, 1 - share)
        mixed = [share * values + (1 - share) * values.roll(1, 0) for values in (pixel_values, targets)]
        return mixed[0], mixed[1]


@dataclass
class ImageCollator:
    """Decodes rows of `load_image_split` and makes a batch of them.

    Args:
        processor: the model's image processor, out of `build_image_processor`.
        augmentation: what to do at random; None for evaluation, which gives what the processor itself gives.
        num_labels: number of classes, needed for Mixup.

    Raises:
        ValueError: Mixup is asked for without `num_labels`, or the processor does what is not known here.
    """

    processor: ViTImageProcessorPil
    augmentation: Augmentation | None = None
    num_labels: int | None = None

    def __post_init__(self):
        check_image_processor(self.processor)
        if self.augmentation is not None and self.augmentation.mixup and self.num_labels is None:
            raise ValueError("Mixup mixes labels: num_labels must say how many classes there are")

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Tensors of a batch: `pixel_values`, float32 [batch, 3, height, width], and, if there are labels, `labels`:
        int64 [batch], with Mixup float32 [batch, num_labels].

        Raises:
            ValueError: an image cannot be decoded; names its split, row and path.
        """
        pictures = [self._read(row) for row in rows]
        pixel_values = to_pixel_values(pictures, self.processor)
        if LABEL not in rows[0]:
            return {"pixel_values": pixel_values}
        labels = torch.tensor([row[LABEL] for row in rows])
        if self.augmentation is not None and self.augmentation.mixup:
            pixel_values, labels = self.augmentation.mix(pixel_values, one_hot(labels, self.num_labels).float())
        return {"pixel_values": pixel_values, "labels": labels}

    def _read(self, row: dict[str, Any]) -> Image.Image:
        picture = decode_image(row[IMAGE], row.get(PLACE, "image"))
        if self.augmentation is None:
            return fit_image(picture, self.processor)
        return self.augmentation.change(picture, self.processor)
