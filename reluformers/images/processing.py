"""From the file of an image to the pixels that a model gets: `decode_image`, then the model's own image processor."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import BaseImageProcessor, PreTrainedConfig, ViTImageProcessorPil

from reluformers.modeling.image_input import upright_rgb

# big_vision evaluates 224 px models on the centre of images whose shorter side is 256 px.
CROP_SHARE = 224 / 256
SMALLEST_CROPPED = 160
# Our data sets have these columns.
IMAGE = "image"
LABEL = "label"


def image_file(image: Mapping[str, Any]) -> bytes:
    """Read the file of an image of `load_image_split`: {"bytes": the file or None, "path": its name}."""
    if image["bytes"] is None:
        return Path(image["path"]).read_bytes()
    return image["bytes"]


def decode_image(file: bytes, path: str | Path | None = None) -> Image.Image:
    """Decode the file of an image as every way to a model does it, see `upright_rgb`; errors name its path."""
    try:
        with Image.open(BytesIO(file)) as opened:
            if opened.format == "EPS":
                raise ValueError("is PostScript, for which Pillow would start a program; convert it to PNG")
            return upright_rgb(opened)
    except Exception as error:  # Each format has errors of its own for a broken file.
        raise ValueError(f"the image {path or 'in a row'} cannot be decoded: {error}") from error


def build_image_processor(config: PreTrainedConfig) -> ViTImageProcessorPil:
    """Make the image processor that goes with a vision model: bicubic, pixels in [-1, 1] (big_vision).

    Where `image_size` is square and at least 160 px, the shorter side is resized to 256/224 of it and the centre is
    cropped; else images are resized as a whole. It is a stock processor, which needs no torchvision.
    """
    height, width = config.image_sides
    sizes = {"size": {"height": height, "width": width}}
    if height == width >= SMALLEST_CROPPED:
        larger = {"shortest_edge": round(height / CROP_SHARE)}
        sizes = {"size": larger, "do_center_crop": True, "crop_size": sizes["size"]}
    return ViTImageProcessorPil(
        resample=Image.Resampling.BICUBIC,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        # Without it `AutoImageProcessor` refuses grey images, which pipelines convert.
        do_convert_rgb=True,
        **sizes,
    )


def fit_images(images: Sequence[Image.Image], processor: BaseImageProcessor, **options: bool) -> list[Image.Image]:
    """Resize and crop images as a processor does it; options switch off a step of it, such as `do_resize`."""
    fitted = processor(list(images), do_rescale=False, do_normalize=False, **options)["pixel_values"]
    return [Image.fromarray(np.moveaxis(np.asarray(pixels), 0, -1)) for pixels in fitted]


def example_pixels(config: PreTrainedConfig) -> dict[str, Tensor]:
    """Make a small batch that a vision model takes: `pixel_values` of two images of its own size."""
    shape = torch.Size((2, config.num_channels, *config.image_sides))
    return {"pixel_values": torch.arange(shape.numel()).float().sin().view(shape)}
