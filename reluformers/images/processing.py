"""From the bytes of an image to the pixels that a model gets, as `pipeline("image-classification")` does it."""

import os
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from transformers import PreTrainedConfig, ViTImageProcessorPil

from reluformers.errors import describe_error

# big_vision evaluates 224 px models on the centre of pictures whose shorter side is 256 px
CROP_SHARE = 224 / 256
SMALLEST_CROPPED = 160
_TO_RGB = ViTImageProcessorPil(do_convert_rgb=True, do_resize=False, do_rescale=False, do_normalize=False)


def decode_image(image: dict[str, Any] | Image.Image | str | os.PathLike, place: str) -> Image.Image:
    """Decode an image of any kind to RGB, upright.

    The pixels are those that transformers' pipelines see: the EXIF orientation is followed, an alpha channel is
    dropped, one transparent colour becomes what the installed version makes of it (5.23: white), of an animation the
    first frame is taken. Only grey images of 16 bits differ: their high byte is taken, as Pillow
    does with colours of 16 bits, where the pipelines cut all above 255 off.

    Args:
        image: {"bytes": the file or None, "path": its name, needed if there are no bytes}, a path, or an image.
        place: Where it comes from, such as "split 'train', row 3", for errors.

    Returns:
        A new image of mode "RGB".

    Raises:
        ValueError: If it is missing, broken, truncated, too big, no image, or holds numbers of unknown range.
    """
    if isinstance(image, str | os.PathLike):
        image = {"bytes": None, "path": str(image)}
    path = image.get("path") if isinstance(image, dict) else getattr(image, "filename", None)
    place = f"{place} ({path})" if path else place
    try:
        if isinstance(image, Image.Image):
            return _to_rgb(image, place)
        if not isinstance(image, dict) or (image.get("bytes") is None and not path):
            raise ValueError(f"{place}: holds no image; correct or remove the row")
        if image.get("bytes") == b"" or (image.get("bytes") is None and not os.path.getsize(path)):
            raise ValueError(f"{place}: the file is empty; replace or remove it")
        with Image.open(path if image.get("bytes") is None else BytesIO(image["bytes"])) as opened:
            return _to_rgb(opened, place)
    except ValueError:
        raise
    except FileNotFoundError as error:
        raise ValueError(f"{place}: no such file; replace it or remove the row") from error
    except UnidentifiedImageError as error:
        raise ValueError(f"{place}: not an image, or of a format that is not known; replace or remove it") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{place}: too big ({describe_error(error)}); scale it down or remove it") from error
    except Exception as error:  # on broken files, each format has errors of its own
        raise ValueError(f"{place}: broken or truncated ({describe_error(error)}); replace or remove it") from error


def _to_rgb(picture: Image.Image, place: str) -> Image.Image:
    if picture.format == "EPS":
        raise ValueError(f"{place}: is PostScript, for which Pillow would start a program; convert it to PNG")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "F":
        raise ValueError(f"{place}: its pixels are floats of unknown range; convert it to 8 or 16 bits")
    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError(f"{place}: its pixels are integers of more than 16 bits; convert it to 8 or 16 bits")
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    if isinstance(picture.info.get("transparency"), bytes):
        del picture.info["transparency"]  # dropped anyway, and Pillow warns of it
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    if picture.info.get("transparency") is None:
        return picture
    # versions of transformers differ in what a transparent colour becomes
    pixels = _TO_RGB(picture)["pixel_values"][0]  # [3, height, width]
    return Image.fromarray(np.moveaxis(pixels, 0, -1))


def build_image_processor(config: PreTrainedConfig) -> ViTImageProcessorPil:
    """Make the image processor that goes with a vision model: bicubic, pixels in [-1, 1] (big_vision).

    Where `image_size` is square and at least 160 px, the shorter side is resized to 256/224 of it and the centre is
    cropped; else pictures are resized as a whole.

    Args:
        config: Configuration with `image_size`, one number or [height, width], and `num_channels`.

    Returns:
        A stock processor, saved as `preprocessor_config.json`; it needs no torchvision.

    Raises:
        ValueError: If the model does not take RGB.
    """
    if config.num_channels != 3:
        raise ValueError(f"num_channels is {config.num_channels}, but images are read as RGB: it must be 3")
    height, width = _sides(config)
    target, crop = {"height": height, "width": width}, {}
    is_cropped = height == width >= SMALLEST_CROPPED
    if is_cropped:
        crop = {"do_center_crop": True, "crop_size": target}
    return ViTImageProcessorPil(
        size={"shortest_edge": round(height / CROP_SHARE)} if is_cropped else target,
        resample=Image.Resampling.BICUBIC,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        # without it `AutoImageProcessor` refuses grey images, which pipelines convert by themselves
        do_convert_rgb=True,
        **crop,
    )


def check_image_processor(processor: ViTImageProcessorPil) -> None:
    """Raise a `ValueError` unless `fit_image` and `to_pixel_values` can do what the processor does."""
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if not getattr(processor, name):
            raise ValueError(f"{name} of the image processor is {getattr(processor, name)}, but must be True")
    size = processor.size
    if not (size.height and size.width) and (not size.shortest_edge or size.longest_edge):
        raise ValueError(f"the image processor resizes to {size}, but must to a height and width or a shortest_edge")
    if processor.do_pad or (size.shortest_edge and not processor.do_center_crop):
        raise ValueError("the image processor gives images of many sizes or pads them; let it crop the centre")


def target_size(processor: ViTImageProcessorPil) -> tuple[int, int]:
    """Height and width of the images that a processor makes."""
    size = processor.crop_size if processor.do_center_crop else processor.size
    return size.height, size.width


def fit_image(picture: Image.Image, processor: ViTImageProcessorPil) -> Image.Image:
    """Resize an image and crop its centre, pixel for pixel as the processor does it, only faster.

    Args:
        picture: RGB image of any size.
        processor: One out of `build_image_processor`.

    Returns:
        The image in the size that the model takes.
    """
    width, height = processor.size.width, processor.size.height
    if processor.size.shortest_edge:
        shorter, length = min(picture.size), processor.size.shortest_edge
        width, height = (length if side == shorter else int(length * side / shorter) for side in picture.size)
    if (width, height) != picture.size:
        picture = picture.resize((width, height), processor.resample)
    rows, columns = target_size(processor)
    left, top = (width - columns) // 2, (height - rows) // 2
    return picture if (rows, columns) == (height, width) else picture.crop((left, top, left + columns, top + rows))


def to_pixel_values(pictures: list[Image.Image], processor: ViTImageProcessorPil) -> Tensor:
    """Rescale and normalize images of the size that the model takes, as the processor does it.

    Args:
        pictures: RGB images of one size.
        processor: One out of `build_image_processor`.

    Returns:
        float32 [batch, 3, height, width].
    """
    pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))  # [batch, height, width, 3]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (processor.image_mean, processor.image_std))
    values = pixels.permute(0, 3, 1, 2).contiguous().float()
    return values.mul_(processor.rescale_factor / std).sub_(mean / std)


def example_pixels(config: PreTrainedConfig) -> dict[str, Tensor]:
    """A small batch that any vision model takes: two images of its own size.

    Args:
        config: of the model.

    Returns:
        Arguments of `forward`: `pixel_values` [2, channels, height, width].
    """
    shape = torch.Size((2, config.num_channels, *_sides(config)))
    return {"pixel_values": torch.arange(shape.numel()).float().sin().view(shape)}


def _sides(config: PreTrainedConfig) -> list[int]:
    """Height and width that a model takes."""
    return list(config.image_size) if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
