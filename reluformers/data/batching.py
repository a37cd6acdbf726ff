"""Batches of a fixed number of tokens or rows: rows of like length, padded, and dealt evenly to several processes."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

_ROWS_AT_ONCE = 50_000
# transformers leaves labels of this value out of every loss.
IGNORED_LABEL = -100


@dataclass
class PairCollator:
    """Pads rows of `input_ids` and `labels` on the right to the longest of the batch.

    It does what `DataCollatorForSeq2Seq` does for a translation model, without the detour through `tokenizer.pad`,
    which takes 10 times as long.

    Args:
        pad_token_id: fills the source side; labels are filled with -100.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[dict[str, Sequence[int]]]) -> dict[str, Tensor]:
        """Tensors of a batch: `input_ids`, `attention_mask`, `labels`, int64 [rows, longest of that side]."""
        input_ids, visible = pad_rows([row["input_ids"] for row in rows], self.pad_token_id)
        labels, _ = pad_rows([row["labels"] for row in rows], IGNORED_LABEL)
        return {"input_ids": input_ids, "attention_mask": visible.long(), "labels": labels}


def pad_rows(rows: list[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Pad rows on the right: int64 [rows, longest], and where there are tokens, bool."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_token.shape, value, dtype=np.int64)
    padded[is_token] = np.concatenate(rows)
    return torch.from_numpy(padded), torch.from_numpy(is_token)


def length_batches(lengths: Sequence[int], max_tokens: int, max_rows: int | None = None) -> Iterator[list[int]]:
    """Yield the row numbers of batches of at most `max_tokens` padded tokens, longest rows first.

    Args:
        lengths: tokens of each row.
        max_tokens: rows times the longest of them; a single row may have more.
        max_rows: of a batch; None for any number.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(order):
        size = max(1, min(max_tokens // lengths[order[start]], max_rows or len(order)))
        yield order[start : start + size]
        start += size


class _EpochSampler(Sampler):
    """Has an order for each epoch, which depends on (seed, epoch) alone, and the share of one process of it."""

    def __init__(self, rows: int, seed: int, rank: int, world_size: int):
        self.rows = rows
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; to be called before iterating, with the same number on every process."""
        self.epoch = epoch


class TokenBudgetBatchSampler(_EpochSampler):
    """Batches of sentence pairs of similar lengths whose padded size stays within a budget of tokens.

    A batch of n rows costs n · max(longest source, longest target) ≤ `max_tokens`. Rows are sorted by their longer
    side, then by source minus target length, in turns up and down, so that both sides need little padding. The lengths
    in each batch, hence the number of batches, are the same in every epoch; rows of equal lengths change places and
    the batches change order. Both depend on (seed, epoch) alone, on every process, so a run can be resumed by skipping
    batches. Each row comes once per epoch, and each process gets the same number of batches. In memory a row takes 2
    bytes, 4 more in an epoch, and some 14 more while its order is made.

    Args:
        source_lengths: Lengths of the sources in tokens, int [rows].
        target_lengths: Lengths of the targets in tokens, int [rows].
        max_tokens: Budget of one batch of one process, in tokens with padding, per side.
        seed: Seed of the order.
        shuffle: If False, rows keep their sorted order and batches come from short to long, in every epoch.
        rank: Index of this process.
        world_size: Number of processes; batches are divided further until it divides their number.

    Raises:
        ValueError: If a row alone is over the budget (named, counted from 1), or the rows cannot be dealt evenly.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        source = np.asarray(source_lengths, dtype=np.int32)
        target = np.asarray(target_lengths, dtype=np.int32)
        tokens = int(max(source.max(), target.max()))
        if tokens > max_tokens:
            raise ValueError(f"a row has {tokens} tokens, but training.max_tokens of a whole batch is {max_tokens}")
        super().__init__(len(source), seed, rank, world_size)
        self.shuffle = shuffle
        self._places, longest = _sorted_places(source, target)
        ends = np.cumsum(np.bincount(self._places, minlength=len(longest)))
        edges = _budget_edges(longest, ends, max_tokens)
        self._edges = np.array(_even_edges(edges, world_size))

    def __len__(self) -> int:
        """Count the batches of this process in one epoch."""
        return (len(self._edges) - 1) // self.world_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rows of each batch of this process."""
        rows = np.arange(self.rows, dtype=np.uint32 if self.rows <= 2**32 else np.int64)
        batches = np.arange(len(self._edges) - 1)
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch))
            generator.shuffle(rows)
            generator.shuffle(batches)
        # A stable sort keeps the drawn order of rows with equal lengths.
        rows = rows[np.argsort(self._places[rows], kind="stable")]
        for batch in batches[self.rank :: self.world_size].tolist():
            yield rows[self._edges[batch] : self._edges[batch + 1]].tolist()


class SeededBatch(NamedTuple):
    """A batch to be made: its rows, and a seed for everything random in it."""

    rows: list[int]
    seed: int


class SeededBatchSampler(_EpochSampler):
    """Batches of a fixed number of rows in a new random order each epoch, with a seed for each batch.

    The batches of all processes together are the order cut into pieces; what is left at the end of an epoch makes a
    smaller one, unless `drop_last`, or a process would get nothing of it. Rows and seeds depend on (seed, epoch)
    alone, so a run can be resumed by skipping batches, whatever the number of workers. `batch_size` is that of one
    process. A ValueError says that there is not one batch.
    """

    def __init__(
        self, rows: int, batch_size: int, *, seed: int = 0, drop_last: bool = False, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(rows, seed, rank, world_size)
        self._piece = batch_size * world_size
        whole, left = divmod(rows, self._piece)
        self._pieces = whole + (not drop_last and left >= world_size)
        if not self._pieces:
            raise ValueError(f"{rows} rows make no batch of {batch_size} rows for each of {world_size} processes")

    def __len__(self) -> int:
        """Count the batches of this process in one epoch."""
        return self._pieces

    def __iter__(self) -> Iterator[SeededBatch]:
        """Yield the batches of this process."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.rows)
        for piece in range(self._pieces):
            rows = order[piece * self._piece : (piece + 1) * self._piece][self.rank :: self.world_size]
            entropy = np.random.SeedSequence((self.seed, self.epoch, piece, self.rank))
            yield SeededBatch(rows.tolist(), int(entropy.generate_state(1, np.uint64)[0]))


class PerProcessDataLoader(DataLoader):
    """A loader of the batches of one process, which Accelerate leaves as it is.

    The sampler deals the batches to the processes already; the mark below keeps `Accelerator.prepare` from dealing
    them once more. `accelerate.skip_first_batches`, with which the Trainer resumes, works. Batches stay on the CPU.
    """

    _is_accelerate_prepared = True

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; see `set_epoch` of the sampler."""
        self.batch_sampler.set_epoch(epoch)


def _sorted_places(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row its index among the pairs of lengths, int [rows]; for each pair the longer side, int [pairs]."""
    width = 2 * max(int(source.max()), int(target.max()), 1) + 1

    def keys(block: slice) -> np.ndarray:
        longest = np.maximum(np.maximum(source[block], target[block]), 1).astype(np.int64)
        difference = source[block] - target[block]
        # Every second length runs backwards, so that a batch over the border of two lengths needs little padding.
        return longest * width + np.where(longest % 2 == 0, difference, -difference) + width // 2

    blocks = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(source), _ROWS_AT_ONCE)]
    known = np.zeros(0, dtype=np.int64)
    for block in blocks:
        known = np.union1d(known, keys(block))
    places = np.empty(len(source), dtype=np.min_scalar_type(len(known) - 1) if len(known) > 256 else np.uint16)
    for block in blocks:
        places[block] = np.searchsorted(known, keys(block))
    return places, known // width


def _budget_edges(longest: np.ndarray, ends: np.ndarray, max_tokens: int) -> list[int]:
    """Find where batches of at most `max_tokens` begin in the sorted rows, and the number of rows.

    Args:
        longest: longer side of the rows of each pair, ascending.
        ends: number of rows up to the end of each pair.
        max_tokens: of a batch.
    """
    longest = longest.tolist()
    ends = ends.tolist()
    edges = [0]
    while edges[-1] < ends[-1]:
        start = edges[-1]
        index = bisect_right(ends, start)
        most = min(start + max_tokens // longest[index], ends[-1])
        # Bisection finds the end, as the cost (stop − start) · longest of row stop − 1 grows with stop.
        stop = bisect_right(
            range(ends[-1] + 1),
            max_tokens,
            start + 1,
            most + 1,
            key=lambda stop: (stop - start) * longest[bisect_right(ends, stop - 1)],
        )
        edges.append(stop - 1)
    return edges


def _even_edges(edges: list[int], world_size: int) -> list[int]:
    while (len(edges) - 1) % world_size:
        sizes = np.diff(edges)
        largest = int(sizes.argmax())
        if sizes[largest] == 1:
            raise ValueError(f"{len(sizes)} batches of one row each cannot be dealt evenly to {world_size} processes")
        edges.insert(largest + 1, (edges[largest] + edges[largest + 1]) // 2)
    return edges
