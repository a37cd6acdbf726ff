"""Decoding images of every kind, and the image processor that the stock pipeline uses on them."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification, ViTImageProcessorPil, pipeline

# its home: the short name asks for torchvision in some supported versions
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from builders.pictures import encode, picture
from reluformers import vision_config
from reluformers.images.augmentation import ImageCollator
from reluformers.images.processing import build_image_processor, check_image_processor, decode_image

PLACE = "split 'train', row 3"


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x112] = orientation
    return tags


def kinds() -> dict[str, bytes]:
    """File name → its bytes, one for each kind of picture that people have."""
    image = picture(40, 56)
    other = picture(40, 56, seed=1)
    with_alpha = Image.merge("RGBA", [*image.split(), image.convert("L")])
    palette = image.convert("P")
    return {
        "colour.png": encode(image),
        "grey.png": encode(image.convert("L")),
        "black-and-white.png": encode(image.convert("1")),
        "palette.png": encode(palette),
        "palette-transparent.png": encode(palette, transparency=3),
        "palette-alpha.png": encode(palette, transparency=bytes(range(256))),
        "alpha.png": encode(with_alpha),
        "grey-alpha.png": encode(with_alpha.convert("LA")),
        "upright-by-exif.png": encode(image, exif=exif(6)),
        "colour.jpg": encode(image, "JPEG"),
        "grey.jpg": encode(image.convert("L"), "JPEG"),
        "cmyk.jpg": encode(image.convert("CMYK"), "JPEG"),
        "upright-by-exif.jpg": encode(image, "JPEG", exif=exif(8)),
        "animation.gif": encode(palette, "GIF", save_all=True, append_images=[other.convert("P")]),
        "animation.png": encode(image, "PNG", save_all=True, append_images=[other]),
        "colour.bmp": encode(image, "BMP"),
        "colour.tiff": encode(image, "TIFF"),
    }


@pytest.fixture(scope="module", params=[32, [24, 48], 224], ids=str)
def classifier(request, tmp_path_factory):
    """The stock pipeline on a saved model and processor."""
    folder = str(tmp_path_factory.mktemp("model"))
    config = vision_config(
        "softmax",
        image_size=request.param,
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
def test_training_and_the_stock_pipeline_see_the_same_pixels(classifier, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(kinds()[name])
    expected = classifier.preprocess(str(path))["pixel_values"]
    collate = ImageCollator(classifier.image_processor)
    for image in ({"bytes": kinds()[name], "path": name}, {"bytes": None, "path": str(path)}):
        actual = collate([{"image": image}])["pixel_values"]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (47, 33), (300, 20), (20, 300), (1, 1), (256, 341)], ids=str)
@pytest.mark.parametrize("image_size", [32, [24, 48], 160])
def test_collator_does_what_the_processor_does(size, image_size):
    processor = build_image_processor(vision_config("softmax", image_size=image_size, patch_size=8))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    expected = processor(image, return_tensors="pt")["pixel_values"]
    actual = ImageCollator(processor)([{"image": {"bytes": encode(image), "path": None}}])["pixel_values"]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert actual.dtype == torch.float32
    assert actual.abs().max() <= 1


@pytest.mark.parametrize("image_size", [32, 224])
def test_saved_processor_takes_grey_images(tmp_path, image_size):
    build_image_processor(vision_config("softmax", image_size=image_size, patch_size=8)).save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    grey = picture(40, 56).convert("L")
    values = [processor(image, return_tensors="pt")["pixel_values"] for image in (grey, grey.convert("RGB"))]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


def test_processor_centres_big_images_only():
    def processor(**fields):
        return build_image_processor(vision_config("softmax", patch_size=8, **fields))

    assert dict(processor(image_size=32).size) == {"height": 32, "width": 32}
    assert not processor(image_size=32).do_center_crop
    assert dict(processor(image_size=224).size) == {"shortest_edge": 256}
    assert dict(processor(image_size=224).crop_size) == {"height": 224, "width": 224}
    assert dict(processor(image_size=384).size) == {"shortest_edge": 439}
    with pytest.raises(ValueError, match="num_channels is 1"):
        processor(image_size=32, num_channels=1)


@pytest.mark.parametrize(
    "options",
    [{"do_resize": False}, {"do_rescale": False}, {"do_normalize": False}, {"size": {"shortest_edge": 32}}],
    ids=str,
)
def test_foreign_processors_are_refused(options):
    with pytest.raises(ValueError, match="image processor"):
        check_image_processor(ViTImageProcessorPil(**options))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_grey_of_16_bits_keeps_its_high_byte(kind):
    grey = np.arange(256, dtype=np.uint16).reshape(16, 16)
    image = Image.fromarray(grey * 256 + 77)
    decoded = np.asarray(decode_image({"bytes": encode(image, kind), "path": None}, PLACE))
    np.testing.assert_array_equal(decoded, np.stack([grey] * 3, -1))


def test_images_in_memory_and_paths_are_decoded(tmp_path):
    image = picture()
    (tmp_path / "x.png").write_bytes(encode(image))
    for given in (image, tmp_path / "x.png", str(tmp_path / "x.png")):
        decoded = decode_image(given, PLACE)
        assert decoded is not image
        assert decoded.mode == "RGB"
        assert decoded.tobytes() == image.tobytes()


def test_orientation_is_followed():
    image = picture(8, 16)
    decoded = decode_image({"bytes": encode(image, exif=exif(6)), "path": None}, PLACE)
    assert decoded.size == (8, 16)
    assert decoded.tobytes() == image.transpose(Image.Transpose.ROTATE_270).tobytes()


def faults() -> dict[str, tuple[bytes | None, str]]:
    whole = {"png": encode(picture(64, 64)), "jpg": encode(picture(64, 64), "JPEG")}
    flipped = bytearray(whole["png"])
    flipped[60] ^= 0xFF
    floats = Image.fromarray(np.ones((4, 4), np.float32))
    integers = Image.fromarray(np.full((4, 4), 70_000, np.int32))
    return {
        "zero.png": (b"", "the file is empty"),
        "text.png": (b"not a picture\n", "not an image"),
        "page.jpg": (b"<html>404</html>", "not an image"),
        "cut.png": (whole["png"][:-200], "broken or truncated"),
        "cut.jpg": (whole["jpg"][: len(whole["jpg"]) // 2], "broken or truncated"),
        "head.jpg": (whole["jpg"][:20], "not an image"),
        "flipped.png": (bytes(flipped), "broken or truncated"),
        "floats.tiff": (encode(floats, "TIFF"), "floats of unknown range"),
        "integers.tiff": (encode(integers, "TIFF"), "more than 16 bits"),
        "absent.png": (None, "no such file"),
    }


@pytest.mark.parametrize("name", faults())
@pytest.mark.parametrize("by_path", [False, True])
def test_faults_are_named_in_one_line(tmp_path, name, by_path):
    content, reason = faults()[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    image = {"bytes": None if by_path else content, "path": str(path)}
    with pytest.raises(ValueError) as caught:
        decode_image(image, PLACE)
    assert f"{PLACE} ({path}): " in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("image", [None, {"bytes": None, "path": None}, {}, 5], ids=str)
def test_missing_images_are_named(image):
    with pytest.raises(ValueError, match="row 3: holds no image"):
        decode_image(image, PLACE)


def test_too_big_images_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="row 3: too big") as caught:
        decode_image({"bytes": encode(picture(64, 64)), "path": None}, PLACE)
    assert "\n" not in str(caught.value)
