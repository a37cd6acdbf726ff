"""Random changes to images, and the batches made of them."""

import numpy as np
import pytest
import torch

from builders.pictures import picture, row
from reluformers import vision_config
from reluformers.images import augmentation as operations
from reluformers.images.augmentation import Augmentation, ImageCollator
from reluformers.images.processing import build_image_processor


def processor(size=32):
    return build_image_processor(vision_config("softmax", image_size=size, patch_size=8))


@pytest.mark.parametrize("size", [(200, 100), (40, 250)], ids=str)
@pytest.mark.parametrize("min_area", [0.05, 0.5, 1.0])
def test_resized_crops_have_the_area_and_shape_that_was_asked_for(size, min_area):
    width, height = size
    boxes = torch.tensor([Augmentation(min_area=min_area)._random_box(*size) for _ in range(500)])
    sides = boxes[:, 2:] - boxes[:, :2]
    share, ratio = sides.prod(1) / (width * height), sides[:, 0] / sides[:, 1]
    assert (boxes >= 0).all()
    assert (boxes[:, 2] <= width).all()
    assert (boxes[:, 3] <= height).all()
    assert (share >= min_area - 1e-4).all()
    # what fits in none of the attempts is taken whole
    whole = share > 1 - 1e-4
    assert ((ratio > 0.74) & (ratio < 1.34) | whole).all()
    if min_area == 0.05:
        assert share.min() < 0.1
        assert not whole.all()


def test_batches_are_mixed_as_by_big_vision():
    rows = [row(picture(32, 32, seed), label) for seed, label in enumerate([2, 0, 1])]
    batch = ImageCollator(processor())(rows)
    assert batch["labels"].tolist() == [2, 0, 1]
    mixed = ImageCollator(processor(), Augmentation(mixup=1.0), num_labels=4)(rows)
    assert mixed["labels"].shape == (3, 4)
    share = mixed["labels"][0, 2]
    assert 0.5 <= share <= 1
    targets = torch.eye(4)[batch["labels"]]
    torch.testing.assert_close(mixed["labels"], share * targets + (1 - share) * targets.roll(1, 0))
    torch.testing.assert_close(
        mixed["pixel_values"], share * batch["pixel_values"] + (1 - share) * batch["pixel_values"].roll(1, 0)
    )


def apply(index, image, level):
    return np.asarray(operations.OPERATIONS[index](image, level))


def test_operations_have_the_strength_of_big_vision(monkeypatch):
    monkeypatch.setattr(operations, "_signed", lambda value: value)
    image = picture(56, 112)
    values = np.asarray(image).astype(int)
    np.testing.assert_array_equal(operations.OPERATIONS[12](image, 1.0), operations._affine(image, 1, 0, 50, 0, 1, 0))
    moved = np.asarray(operations.OPERATIONS[12](image, 0.5))
    np.testing.assert_array_equal(moved[:, :-25], values[:, 25:])
    assert (moved[:, -25:] == 128).all()
    moved = np.asarray(operations.OPERATIONS[13](image, 1.0))
    np.testing.assert_array_equal(moved[:-25], values[25:])
    np.testing.assert_array_equal(operations.OPERATIONS[9](image, 1.0), image.rotate(30, fillcolor=(128, 128, 128)))
    np.testing.assert_array_equal(operations._solarize_add(image, 1.0), np.where(values < 128, values + 110, values))
    sheared = np.asarray(operations.OPERATIONS[10](image, 1.0))
    np.testing.assert_array_equal(sheared[50, :90], values[50, 15:105])
    # posterize keeps 4 bits at strength 10, solarize inverts from 256 on
    np.testing.assert_array_equal(apply(3, image, 1.0), values // 16 * 16)
    assert not apply(3, image, 0.2).any()
    np.testing.assert_array_equal(apply(4, image, 1.0), values)
    np.testing.assert_array_equal(apply(4, image, 0.5), np.where(values < 128, values, 255 - values))
    np.testing.assert_array_equal(apply(7, image, 0.5), values)
