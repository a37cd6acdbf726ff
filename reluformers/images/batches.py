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


class SeededRows(Dataset):
    """Rows of `load_image_split`, fetched a batch at a time together with its seed."""

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, batch: SeededBatch) -> tuple[int, list[dict[str, Any]]]:
        """Seed and rows of a batch, for `collate_seeded`."""
        return batch.seed, self.dataset.__getitems__(batch.rows)


def collate_seeded(collator: ImageCollator, seeded_rows: tuple[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Make a batch at random from its seed: a resumed run, or one with more workers, gets the same."""
    seed, rows = seeded_rows
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would seed the generators of GPUs too
        torch.default_generator.manual_seed(seed)
        return collator(rows)


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
