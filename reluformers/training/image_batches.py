"""Batches of images whose random changes depend on the batch alone, and errors that come whole out of workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.utils.data import Dataset

from reluformers.data.augmentation import ImageCollator
from reluformers.data.batching import Draw
from reluformers.errors import UserError

_ERROR = "error"


class DrawnRows(Dataset):
    """The rows of a data set, fetched a draw at a time together with its seed.

    Args:
        dataset: rows of `load_image_split`.
    """

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, draw: Draw) -> tuple[int, list[dict[str, Any]]]:
        """Seed and rows of a batch, for `DrawnCollator`."""
        return draw.seed, self.dataset.__getitems__(draw.rows)


@dataclass
class DrawnCollator:
    """Makes a batch of a draw, at random from its seed: a resumed run, or one with more workers, gets the same.

    Args:
        collator: makes a batch of rows with torch's global generator.
    """

    collator: ImageCollator

    def __call__(self, drawn: tuple[int, list[dict[str, Any]]]) -> dict[str, Any]:
        """A batch, or the error in its place (see `check_batch`)."""
        seed, rows = drawn
        with torch.random.fork_rng(devices=[]):
            # that of the CPU alone: `torch.manual_seed` would touch the devices' too
            torch.default_generator.manual_seed(seed)
            return QuietCollator(self.collator)(rows)


@dataclass
class QuietCollator:
    """Makes a batch of rows; an error of the data takes its place, as workers would wrap it in a traceback.

    Args:
        collator: makes a batch of rows.
    """

    collator: ImageCollator

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch, or the error in its place (see `check_batch`)."""
        try:
            return self.collator(rows)
        except UserError as error:
            return {_ERROR: str(error)}


def check_batch(batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The batch itself.

    Raises:
        UserError: an error came in its place.
    """
    if _ERROR in batch:
        raise UserError(batch[_ERROR])
    return batch
