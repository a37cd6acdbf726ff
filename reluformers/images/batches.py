"""Batches of images whose random changes depend on the batch alone."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import datasets
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from reluformers.data.batching import SeededBatch
from reluformers.data.sources import naming

from .augmentation import ImageCollator
from .processing import IMAGE, decode_image, image_file


class SeededImages(Dataset):
    """Batches of rows of `load_image_split`, made at random from the seed of each.

    A resumed run, or one with more workers, gets the same.
    """

    def __init__(self, dataset: datasets.Dataset, collator: ImageCollator):
        self.dataset, self.collator = dataset, collator

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, batch: SeededBatch) -> dict[str, Any]:
        """Make a batch."""
        with torch.random.fork_rng(devices=[]):
            # `torch.manual_seed` would seed the generators of GPUs too
            torch.default_generator.manual_seed(batch.seed)
            return self.collator(self.dataset.__getitems__(batch.rows))


def check_images(dataset: datasets.Dataset, num_workers: int = 0, *, show_progress: bool = False) -> None:
    """Decode every image of a split; a ValueError names row and path of one that is broken."""
    rows = DataLoader(range(len(dataset)), 64, num_workers=num_workers, collate_fn=partial(_decode, dataset))
    for _ in tqdm(rows, "checking images", disable=not show_progress):
        pass


def _decode(dataset: datasets.Dataset, rows: Sequence[int]) -> None:
    for row in rows:
        image = dataset[row][IMAGE]
        with naming(f"row {row + 1}"):
            decode_image(image_file(image), image["path"])
