"""Batches of images whose random changes depend on the batch alone, and errors that come whole out of workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from reluformers.errors import UserError
from reluformers.training.batching import SeededBatch

from .augmentation import ImageCollator
from .loading import IMAGE, PLACE
from .processing import decode_image

_ERROR = "error"


class SeededRows(Dataset):
    """The rows of a data set, fetched a batch at a time together with its seed.

    Args:
        dataset: rows of `load_image_split`.
    """

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, batch: SeededBatch) -> tuple[int, list[dict[str, Any]]]:
        """Seed and rows of a batch, for `SeededCollator`."""
        return batch.seed, self.dataset.__getitems__(batch.rows)


@dataclass
class SeededCollator:
    """Makes a batch at random from its seed: a resumed run, or one with more workers, gets the same.

    Args:
        collator: makes a batch of rows with torch's global generator.
    """

    collator: ImageCollator

    def __call__(self, seeded_rows: tuple[int, list[dict[str, Any]]]) -> dict[str, Any]:
        """A batch, or the error in its place (see `check_batch`)."""
        seed, rows = seeded_rows
        with torch.random.fork_rng(devices=[]):
            # that of the CPU alone: `torch.manual_seed` would touch the devices' too
            torch.default_generator.manual_seed(seed)
            return CarryErrorsCollator(self.collator)(rows)


@dataclass
class CarryErrorsCollator:
    """Makes a batch of rows; an error of the data takes its place, as workers would wrap it in a traceback.

    Args:
        collator: makes a batch of rows.
    """

    collator: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch, or the error in its place (see `check_batch`)."""
        try:
            return self.collator(rows)
        except UserError as error:
            return {_ERROR: str(error)}


def check_images(dataset: datasets.Dataset, num_workers: int = 0, *, show_progress: bool = False) -> None:
    """Decode every image.

    Args:
        dataset: rows of `load_image_split`.
        num_workers: processes that decode.
        show_progress: whether to draw a bar.

    Raises:
        UserError: one is broken; names its split, row and path.
    """
    rows = DataLoader(dataset, 64, num_workers=num_workers, collate_fn=CarryErrorsCollator(_decode_all))
    for batch in tqdm(rows, "checking images", disable=not show_progress):
        check_batch(batch)


def _decode_all(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        decode_image(row[IMAGE], row[PLACE])
    return {}


def check_batch(batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The batch itself.

    Raises:
        UserError: an error came in its place.
    """
    if _ERROR in batch:
        raise UserError(batch[_ERROR])
    return batch
