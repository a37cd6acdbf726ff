"""Random changes to images, and the batches made of them."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from builders.pictures import picture, row
from reluformers import vision_config
from reluformers.images import rand_augment as operations
from reluformers.images.augmentation import Augmentation, ImageCollator
from reluformers.images.processing import build_image_processor, fit_images, to_pixel_values


def processor(size=32):
    return build_image_processor(vision_config("softmax", image_size=size, patch_size=8))


def changed(image, times=1, size=32, **fields):
    """Images as uint8 arrays [times, height, width, 3]."""
    augmentation = Augmentation(**fields)
    return np.stack([np.asarray(augmentation.change(image, processor(size))) for _ in range(times)])


def ramp(height, width):
    """An image whose red and green channels are column and row."""
    rows, columns = np.mgrid[:height, :width].astype(np.uint8)
    return Image.fromarray(np.stack([columns, rows, np.full_like(rows, 200)], -1))


def test_nothing_is_changed_by_default():
    image = picture(40, 60)
    np.testing.assert_array_equal(changed(image)[0], np.asarray(fit_images([image], processor())[0]))


def test_flip_mirrors_half_of_the_images():
    image = picture(32, 32)
    results = changed(image, 400, flip=True)
    mirrored = np.asarray(ImageOps.mirror(image))
    is_mirrored = (results == mirrored).all((1, 2, 3))
    assert ((results == np.asarray(image)).all((1, 2, 3)) | is_mirrored).all()
    assert 0.4 < is_mirrored.mean() < 0.6


def test_padded_crops_shift_over_black():
    results = changed(ramp(32, 32), 500, crop="pad", padding=3)
    shifts = set()
    for result in results:
        inside = result[..., 2] == 200
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        assert len(rows) >= 29
        assert len(columns) >= 29
        shift = result[rows[0], columns[0], :2].astype(int) - (columns[0], rows[0])
        shifts.add(tuple(shift.tolist()))
        expected = np.zeros((32, 32, 3), np.uint8)
        source = np.asarray(ramp(32, 32))[rows + shift[1]][:, columns + shift[0]]
        expected[np.ix_(rows, columns)] = source
        np.testing.assert_array_equal(result, expected)
    assert shifts == {(x, y) for x in range(-3, 4) for y in range(-3, 4)}


def test_padding_of_none_changes_nothing():
    np.testing.assert_array_equal(changed(ramp(32, 32), 1, crop="pad", padding=0)[0], np.asarray(ramp(32, 32)))


@pytest.mark.parametrize("size", [(200, 100), (100, 200), (40, 250)], ids=str)
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


def test_resized_crops_show_their_piece():
    result = changed(ramp(200, 200), 100, size=48, crop="resized", min_area=0.1).astype(int)
    assert result.shape == (100, 48, 48, 3)
    # columns grow to the right and rows downwards, by one step all over
    for axis, channel in ((2, 0), (1, 1)):
        steps = np.diff(result[..., channel], axis=axis)
        assert (steps >= 0).all()
        assert (np.ptp(steps, axis=(1, 2)) <= 2).all()


def test_crops_of_all_kinds_end_in_the_size_of_the_model():
    config_size = [24, 48]
    for crop in ("none", "pad", "resized"):
        shape = changed(picture(100, 40), 2, size=config_size, crop=crop, rand_augment=[1, 5]).shape
        assert shape == (2, 24, 48, 3)


def test_mixup_is_the_formula_of_big_vision():
    augmentation = Augmentation(mixup=0.2)
    images, targets = torch.randn(3, 3, 4, 4), torch.eye(3)
    mixed_images, mixed_targets = augmentation.mix(images, targets)
    share = mixed_targets.diagonal()[0].item()
    assert 0.5 <= share <= 1
    for index in range(3):
        expected = share * images[index] + (1 - share) * images[index - 1]
        torch.testing.assert_close(mixed_images[index], expected)
        torch.testing.assert_close(mixed_targets[index], share * targets[index] + (1 - share) * targets[index - 1])


@pytest.mark.parametrize(("mixup", "mean"), [(0.2, 0.89), (1.0, 0.75), (0.01, 0.993), (50.0, 0.54)])
def test_mixup_draws_from_the_beta_distribution(mixup, mean):
    augmentation = Augmentation(mixup=mixup)
    shares = [augmentation.mix(torch.zeros(2, 1), torch.eye(2))[1][0, 0].item() for _ in range(1000)]
    assert min(shares) >= 0.5
    assert max(shares) <= 1
    assert np.mean(shares) == pytest.approx(mean, abs=0.02)


def test_batches():
    rows = [row(picture(32, 32, seed), label) for seed, label in enumerate([2, 0, 1])]
    batch = ImageCollator(processor())(rows)
    assert batch["pixel_values"].shape == (3, 3, 32, 32)
    assert batch["labels"].dtype == torch.int64
    assert batch["labels"].tolist() == [2, 0, 1]
    mixed = ImageCollator(processor(), Augmentation(mixup=1.0), num_labels=4)(rows)
    assert mixed["labels"].shape == (3, 4)
    torch.testing.assert_close(mixed["labels"].sum(1), torch.ones(3))
    share = mixed["labels"][0, 2]
    torch.testing.assert_close(
        mixed["pixel_values"], share * batch["pixel_values"] + (1 - share) * batch["pixel_values"].roll(1, 0)
    )
    unlabelled = [{"image": line["image"]} for line in rows]
    assert list(ImageCollator(processor())(unlabelled)) == ["pixel_values"]


def test_batches_depend_on_the_seed_of_torch_alone():
    rows = [row(picture(40, 50, seed), seed) for seed in range(4)]
    augmentation = Augmentation(crop="resized", flip=True, rand_augment=[2, 8], mixup=0.2)
    collate = ImageCollator(processor(), augmentation, num_labels=4)
    torch.manual_seed(1)
    first, second = collate(rows), collate(rows)
    torch.manual_seed(1)
    again = collate(rows)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first["pixel_values"], second["pixel_values"])


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images_are_named_from_workers_too(workers):
    rows = [row(picture(32, 32, seed)) for seed in range(2)]
    rows.append({"image": {"bytes": b"nothing", "path": "c.png"}, "label": 0})
    loader = DataLoader(rows, 3, collate_fn=ImageCollator(processor()), num_workers=workers)
    with pytest.raises(ValueError, match=r"c\.png"):
        list(loader)


def test_workers_change_the_same_image_in_different_ways():
    rows = [row(ramp(32, 32))] * 8
    collate = ImageCollator(processor(), Augmentation(crop="pad", padding=8))
    loader = DataLoader(rows, 2, collate_fn=collate, num_workers=2)
    batches = torch.cat([batch["pixel_values"] for batch in loader])
    assert len({tuple(image.flatten().tolist()) for image in batches}) > 6


@pytest.mark.parametrize(
    "fields",
    [
        {"crop": "center"},
        {"padding": -1},
        {"padding": 1.5},
        {"min_area": 0},
        {"min_area": 1.1},
        {"min_area": "half"},
        {"mixup": -0.1},
        {"mixup": 0.001},
        {"mixup": float("nan")},
        {"rand_augment": [0, 10]},
        {"rand_augment": [2, 21]},
        {"rand_augment": [1.5, 5]},
    ],
    ids=str,
)
def test_values_that_are_not_allowed_are_named(fields):
    with pytest.raises(ValueError, match=next(iter(fields))) as caught:
        Augmentation(**fields)
    assert "but must be" in str(caught.value)


def apply(index, image, level):
    return np.asarray(operations.OPERATIONS[index](image, level))


@pytest.mark.parametrize("index", range(len(operations.OPERATIONS)))
def test_operations_keep_the_size_and_change_something(index):
    image = picture(24, 36).point(lambda value: 40 + value // 2)
    before = image.tobytes()
    results = [apply(index, image, level) for level in (0.0, 0.3, 0.7, 2.0)]
    assert all(result.shape == (24, 36, 3) and result.dtype == np.uint8 for result in results)
    assert any(result.tobytes() != before for result in results)
    assert image.tobytes() == before


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


def test_cutout_greys_a_piece_of_the_picture():
    image = Image.new("RGB", (112, 56))
    greys = [np.asarray(operations._cutout(image, 1.0))[..., 0] == 128 for _ in range(200)]
    # 80 px of 224: 40 of 112 and 20 of 56, less what lies outside
    assert max(grey.sum() for grey in greys) == 40 * 20
    assert all(grey.sum() >= 10 * 20 for grey in greys)
    assert all(grey[grey.any(1)][:, grey.any(0)].all() for grey in greys)
    assert np.mean(greys, axis=0).min() > 0


def test_rand_augment_draws_operations_for_each_picture(monkeypatch):
    drawn = []
    spies = tuple(lambda image, level, index=index: drawn.append((index, level)) or image for index in range(16))
    monkeypatch.setattr(operations, "OPERATIONS", spies)
    rows = [row(picture(32, 32))] * 200
    ImageCollator(processor(), Augmentation(rand_augment=[2, 8]))(rows)
    assert len(drawn) == 400
    assert {level for _, level in drawn} == {0.8}
    counts = np.bincount([index for index, _ in drawn], minlength=16)
    assert counts.min() > 8
    pairs = {(drawn[index][0], drawn[index + 1][0]) for index in range(0, 400, 2)}
    assert len(pairs) > 100


def test_pixel_values_of_big_vision():
    image = Image.fromarray(np.array([[[0, 128, 255]]], np.uint8))
    values = to_pixel_values([image], processor(), fitted=True)
    torch.testing.assert_close(values.flatten(), torch.tensor([-1.0, 2 * 128 / 255 - 1, 1.0]))
