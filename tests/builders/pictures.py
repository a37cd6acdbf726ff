"""Small images and rows of them, for the tests of image data."""

import random
from collections.abc import Iterator
from io import BytesIO

import numpy as np
from PIL import Image


def picture(height=24, width=32, seed=0) -> Image.Image:
    """A smooth RGB image without symmetries."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def row(image: Image.Image, label: int = 0) -> dict:
    return {"image": {"bytes": encode(image), "path": None}, "label": label}


def mutations(number: int, seed: int = 0) -> Iterator[bytes]:
    """Small files of the formats that strangers may send, or EXIF in them, with bytes changed, cut or put in."""
    draw, image, exif = random.Random(seed), picture(8, 12), Image.Exif()
    exif.update({274: 6, 270: "a picture", 0x9C9C: "no".encode("utf-16-le")})
    exif.get_ifd(0x8769)[36867] = "2026:01:01 00:00:00"
    with_exif = ("PNG", "JPEG", "WEBP", "TIFF")
    files = [encode(image, kind, exif=exif) for kind in with_exif]
    files += [encode(image.convert(mode), kind) for kind in ("GIF", "BMP") for mode in ("L", "P", "RGB")]
    files += [encode(image.convert(mode), "TIFF") for mode in ("CMYK", "1")]
    files += [encode(image, "TIFF", compression=kind) for kind in ("tiff_lzw", "jpeg", "tiff_deflate")]
    files += [encode(image.convert(mode), "PNG", transparency=0) for mode in ("P", "L")]
    files += [encode(image, "GIF", save_all=True, append_images=[picture(8, 12, 1)])]
    for _ in range(number):
        if draw.random() < 0.25:  # a changed byte of a PNG is noticed by the sum behind it
            yield encode(image, draw.choice(with_exif[:3]), exif=_mutate(exif.tobytes(), draw))
        else:
            yield _mutate(draw.choice(files), draw)


def _mutate(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        # more often in the header, where most fields are
        place = draw.randrange(min(len(data), draw.choice((64, 256, len(data)))))
        kind = draw.randrange(6)
        if kind < 2:
            data[place] ^= 1 << draw.randrange(8)
        elif kind < 4:
            data[place] = draw.choice((0, 1, 127, 128, 255))
        elif kind == 4 and len(data) > 16:
            del data[place : place + draw.randrange(1, 9)]
        else:
            data[place:place] = draw.randbytes(draw.randrange(1, 9))
    return bytes(data)
