"""Batches of images whose random changes depend on the batch alone, and errors that come whole out of workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.utils.data import Dataset

from reluformers.errors import UserError
from reluformers.training.batching import SeededBatch

from .augmentation import ImageCollator

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
