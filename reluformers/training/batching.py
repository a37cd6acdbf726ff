"""Batches of a fixed number of tokens or rows, dealt evenly to several processes."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from reluformers.errors import UserError


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of sentence pairs of similar lengths whose padded size stays within a budget of tokens.

    A batch of n rows costs n · max(longest source, longest target) ≤ `max_tokens`. Rows are sorted by their longer
    side, then by source minus target length, in turns up and down, so that both sides need little padding. The lengths
    in each batch, hence the number of batches, are the same in every epoch; rows of equal lengths change places and
    the batches change order. Both depend on (seed, epoch) alone, on every process, so a run can be resumed by skipping
    batches. Each row comes once per epoch, and each process gets the same number of batches.

    Args:
        source_lengths: Lengths of the sources in tokens, int [rows].
        target_lengths: Lengths of the targets in tokens, int [rows].
        max_tokens: Budget of one batch of one process, in tokens with padding, per side.
        seed: Seed of the order.
        shuffle: If False, rows keep their sorted order and batches come from short to long, in every epoch.
        rank: Index of this process.
        world_size: Number of processes; batches are divided further until it divides their number.
        max_sentences: Most rows of a batch; None = no limit.

    Raises:
        UserError: If a row alone is over the budget (named, counted from 1), or the rows cannot be dealt evenly.
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
        max_sentences: int | None = None,
    ) -> None:
        source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
        if source.ndim != 1 or source.shape != target.shape:
            raise ValueError(f"need one source and one target length per row, got {source.shape} and {target.shape}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to world_size - 1 = {world_size - 1}, got {rank}")
        if max_sentences is not None and max_sentences < 1:
            raise ValueError(f"max_sentences must be at least 1 or None, got {max_sentences}")
        longest = np.maximum(np.maximum(source, target), 1)
        _check_rows(longest, max_tokens, world_size)
        self.rows = len(longest)
        self.seed, self.shuffle, self.rank, self.world_size = seed, shuffle, rank, world_size
        self.epoch = 0
        self._places = _sorted_places(longest, source - target)
        spans = _budget_spans(np.sort(longest), max_tokens, max_sentences or self.rows)
        self._spans = _even_spans(spans, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; to be called before iterating, with the same number on every process."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the batches of this process in one epoch."""
        return len(self._spans) // self.world_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rows of each batch of this process."""
        rows, batches = np.arange(self.rows), np.arange(len(self._spans))
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch))
            rows, batches = generator.permutation(rows), generator.permutation(batches)
        # rows that share a place keep their random order
        rows = rows[np.argsort(self._places[rows], kind="stable")]
        for batch in batches[self.rank :: self.world_size].tolist():
            start, stop = self._spans[batch]
            yield rows[start:stop].tolist()


class SeededBatch(NamedTuple):
    """A batch to be made: its rows, and a seed for everything random in it."""

    rows: list[int]
    seed: int


class SeededBatchSampler(Sampler[SeededBatch]):
    """Batches of a fixed number of rows in a new random order each epoch, with a seed for each batch.

    The batches of all processes together are the order cut into pieces; what is left at the end of an epoch makes a
    smaller one, unless `drop_last`, or a process would get nothing of it. Rows and seeds depend on (seed, epoch)
    alone, so a run can be resumed by skipping batches, whatever the number of workers.

    Args:
        rows: Number of rows.
        batch_size: Rows of a batch of one process.
        seed: Seed of the order and of the batches' seeds.
        drop_last: Leave out the smaller batch at the end.
        rank: Index of this process.
        world_size: Number of processes.

    Raises:
        UserError: If there is not one batch.
    """

    def __init__(
        self, rows: int, batch_size: int, *, seed: int = 0, drop_last: bool = False, rank: int = 0, world_size: int = 1
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to world_size - 1 = {world_size - 1}, got {rank}")
        self.rows, self.seed, self.rank, self.world_size = rows, seed, rank, world_size
        self.epoch = 0
        self._piece = batch_size * world_size
        whole, left = divmod(rows, self._piece)
        self._pieces = whole + (not drop_last and left >= world_size)
        if not self._pieces:
            raise UserError(
                f"{rows} rows make no batch of {batch_size} rows for each of {world_size} processes; "
                "take smaller batches or fewer processes"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; to be called before iterating, with the same number on every process."""
        self.epoch = epoch

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

    Args:
        dataset: Rows to collate, as many as the sampler has.
        batch_sampler: Decides the batches.
        collate_fn: Makes a batch of a list of rows.
        **kwargs: Further arguments of `torch.utils.data.DataLoader`, such as `num_workers`.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Dataset,
        batch_sampler: TokenBudgetBatchSampler | SeededBatchSampler,
        collate_fn: Callable[[list], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if len(dataset) != batch_sampler.rows:
            raise ValueError(f"the sampler is of {batch_sampler.rows} rows, the dataset {len(dataset)} rows")
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **kwargs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; see `set_epoch` of the sampler."""
        self.batch_sampler.set_epoch(epoch)


def _check_rows(longest: np.ndarray, max_tokens: int, world_size: int) -> None:
    if not len(longest):
        raise UserError("no rows to make batches of; check the data and how they are cleaned")
    row = int(longest.argmax())
    if longest[row] > max_tokens:
        raise UserError(
            f"row {row + 1} has {longest[row]} tokens, more than the {max_tokens} of a whole batch; "
            "raise the tokens per batch or drop longer rows when cleaning"
        )
    if len(longest) < world_size:
        raise UserError(f"{len(longest)} rows cannot be dealt to {world_size} processes; use fewer processes")


def _sorted_places(longest: np.ndarray, difference: np.ndarray) -> np.ndarray:
    # every second length runs backwards, so that the batch over the border of two lengths stays even
    turning = np.where(longest % 2 == 0, difference, -difference)
    order = np.lexsort((turning, longest))
    changes = (np.diff(longest[order]) != 0) | (np.diff(turning[order]) != 0)
    places = np.zeros(len(longest), dtype=np.int64)
    places[order[1:]] = np.cumsum(changes)
    return places


def _budget_spans(longest: np.ndarray, max_tokens: int, max_sentences: int) -> list[tuple[int, int]]:
    spans, start, rows = [], 0, len(longest)
    while start < rows:
        most = min(start + min(max_tokens // int(longest[start]), max_sentences), rows)
        # the cost (stop − start) · longest[stop − 1] grows with stop
        stop = bisect_right(
            range(rows + 1), max_tokens, start + 1, most + 1, key=lambda stop: (stop - start) * longest[stop - 1]
        )
        spans.append((start, stop - 1))
        start = stop - 1
    return spans


def _even_spans(spans: list[tuple[int, int]], world_size: int) -> list[tuple[int, int]]:
    while len(spans) % world_size:
        largest = max(range(len(spans)), key=lambda index: spans[index][1] - spans[index][0])
        start, stop = spans[largest]
        if stop - start == 1:
            raise UserError(
                f"{len(spans)} batches of one row each cannot be dealt to {world_size} processes evenly; "
                "raise the tokens per batch or use fewer processes"
            )
        middle = (start + stop) // 2
        spans[largest : largest + 1] = [(start, middle), (middle, stop)]
    return spans
