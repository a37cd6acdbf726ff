"""Decoding images of every kind, and the image processor that the stock pipeline uses on them."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers import AutoModelForImageClassification, pipeline

# its home: the short name asks for torchvision in some supported versions
from builders.pictures import encode, picture
from reluformers import vision_config
from reluformers.images.augmentation import Augmentation, ImageCollator
from reluformers.images.processing import build_image_processor, decode_image
from reluformers.images.scoring import image_batches
from reluformers.modeling.handler_images import EndpointHandler


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x112] = orientation
    return tags


def kinds() -> dict[str, bytes]:
    """File name → its bytes, one for each kind of picture that people have."""
    image = picture(40, 56)
    other = picture(40, 56, seed=1)
    with_alpha = Image.merge("RGBA", [*image.split(), image.convert("L")])
    palette, grey = image.convert("P"), image.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 256 + 77)
    return {
        "deep-grey.png": encode(deep),
        "deep-grey-upright-by-exif.png": encode(deep, exif=exif(6)),
        "colour-transparent.png": encode(image, transparency=image.getpixel((5, 5))),
        "grey-transparent.png": encode(grey, transparency=grey.getpixel((5, 5))),
        "black-and-white.png": encode(image.convert("1")),
        "palette-transparent.png": encode(palette, transparency=3),
        "palette-alpha.png": encode(palette, transparency=bytes(range(256))),
        "alpha.png": encode(with_alpha),
        "grey-alpha.png": encode(with_alpha.convert("LA")),
        "cmyk.jpg": encode(image.convert("CMYK"), "JPEG"),
        "upright-by-exif.jpg": encode(image, "JPEG", exif=exif(8)),
        "animation.gif": encode(palette, "GIF", save_all=True, append_images=[other.convert("P")]),
    }


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """The stock pipeline on a saved model and processor."""
    folder = str(tmp_path_factory.mktemp("model"))
    config = vision_config(
        "softmax",
        image_size=[24, 48],
        patch_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    build_image_processor(config).save_pretrained(folder)
    return pipeline("image-classification", model=folder, trust_remote_code=True)


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("name", kinds())
def test_an_image_gives_the_same_pixels_on_every_way_to_a_model(classifier, tmp_path, name):
    path, file, processor = tmp_path / name, kinds()[name], classifier.image_processor
    path.write_bytes(file)
    seen = Image.open(path)
    if seen.mode.startswith("I"):  # the stock pipeline alone cuts grey off at 255
        turned = ImageOps.exif_transpose(seen)
        seen = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
    expected = classifier.preprocess(seen)["pixel_values"]
    handler = EndpointHandler(classifier.model.name_or_path)
    row, by_path = {"image": {"bytes": file, "path": name}}, {"image": {"bytes": None, "path": str(path)}}
    ways = {
        "evaluation in training": ImageCollator(processor)([row]),
        "training": ImageCollator(processor, Augmentation())([by_path]),
        "training with crops": ImageCollator(processor, Augmentation(crop="pad", padding=0))([row]),
        "scoring": next(iter(image_batches([row | {"label": 0}], processor))),
        "endpoint": handler.pipeline.preprocess(handler.read([file])[0]),
    }
    for way, batch in ways.items():
        torch.testing.assert_close(batch["pixel_values"], expected, rtol=0, atol=0, msg=way)


@pytest.mark.parametrize("name", ["colour-transparent.png", "palette-transparent.png"])
def test_a_transparent_colour_of_a_resized_crop_is_that_of_the_processor(name):
    processor = build_image_processor(vision_config("softmax", image_size=[40, 56], patch_size=8))
    rows = [{"image": {"bytes": kinds()[name], "path": name}}]
    crop = Augmentation(crop="resized", min_area=1.0)  # no other box than the whole image
    whole, cropped = (ImageCollator(processor, each)(rows)["pixel_values"] for each in (None, crop))
    torch.testing.assert_close(cropped, whole, rtol=0, atol=0)


def test_too_big_images_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="bomb"):
        decode_image(encode(picture(64, 64)))
