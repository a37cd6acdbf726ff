"""Rows that do not fit on the machine, in batches: shards in random order, a block of rows at a time.

`datasets` reads the shards; rows are mixed within blocks. A run that goes on begins with the shard in which its last
block began, so that some rows of that shard come twice in an epoch.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler

# We read so many rows of a shard at once.
_PIECE = 10_000


class Block(NamedTuple):
    """Rows of one epoch, and where they come from: which block of the epoch, and in which of its shards it begins."""

    rows: Dataset
    epoch: int
    number: int
    shard: int


class BlockStream:
    """The blocks of rows of one process, epoch after epoch without end, each row once in every epoch.

    The shards come in an order of (seed, epoch). If their number can be divided by that of the processes, each process
    has shards of its own; otherwise each reads all of them and takes every n-th row. Processes count their epochs by
    themselves and never wait for each other.

    Args:
        dataset: streamed rows.
        rows: of a block, at least; up to 10,000 more, and fewer at the end of an epoch.
        seed: of the order of the shards.
        rank: index of this process.
        world_size: number of processes.
    """

    def __init__(self, dataset: IterableDataset, rows: int, *, seed: int = 0, rank: int = 0, world_size: int = 1):
        self.dataset = dataset.with_format("arrow")
        self.rows = rows
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.has_own_shards = dataset.num_shards % world_size == 0

    def blocks(self, epoch: int = 0, number: int = 0, shard: int = 0) -> Iterator[Block]:
        """Yield blocks of rows, without end, from a shard of an epoch on.

        Args:
            epoch: to begin with.
            number: of the first block in its epoch.
            shard: of the epoch's order.
        """
        while True:
            pieces = []
            begin = shard
            is_whole = number == shard == 0
            for at, piece in self._pieces(epoch, shard):
                begin = begin if pieces else at
                pieces.append(piece)
                if sum(map(len, pieces)) >= self.rows:
                    yield Block(_joined(pieces), epoch, number, begin)
                    pieces = []
                    number += 1
            if pieces:
                yield Block(_joined(pieces), epoch, number, begin)
            elif is_whole and number == 0:
                raise ValueError(f"process {self.rank} of {self.world_size} finds no rows; check the data")
            epoch += 1
            number = 0
            shard = 0

    def _pieces(self, epoch: int, first: int) -> Iterator[tuple[int, pa.Table]]:
        """Rows of this process in an epoch from a shard on, and the shard that each piece is of."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.dataset.num_shards)
        order = order[self.rank :: self.world_size] if self.has_own_shards else order
        for at in range(first, len(order)):
            for table in self.dataset.shard(self.dataset.num_shards, int(order[at])).iter(batch_size=_PIECE):
                if not self.has_own_shards:
                    table = table.take(np.arange(self.rank, len(table), self.world_size))
                if len(table):
                    yield at, table


def _joined(pieces: list[pa.Table]) -> Dataset:
    return Dataset(pa.concat_tables(pieces, promote_options="default"))


class BatchStream(Iterable[Any]):
    """Batches without end of the blocks of a stream; the next block is made ready while one is trained on.

    Args:
        blocks: of this process.
        prepare: makes of a block the rows to train on, which may be fewer or none.
        make_sampler: of prepared rows and a seed, the rows of each batch.
        collate: makes a batch of a list of rows.

    Attributes:
        state: epoch, number and shard of the block at hand, as JSON has them; a stream goes on from what it is given.
    """

    def __init__(
        self,
        blocks: BlockStream,
        prepare: Callable[[Dataset], Dataset],
        make_sampler: Callable[[Dataset, int], Sampler[list[int]]],
        collate: Callable[[list], Any],
    ):
        self.blocks = blocks
        self.prepare = prepare
        self.make_sampler = make_sampler
        self.collate = collate
        self.state = {"epoch": 0, "number": 0, "shard": 0}

    def __iter__(self) -> Iterator[Any]:
        """Yield batches; a ValueError where nothing is left of a whole epoch."""
        blocks = self.blocks.blocks(**self.state)
        with ThreadPoolExecutor(1) as worker:
            following = worker.submit(self._next_block, blocks)
            while True:
                block, rows = following.result()
                following = worker.submit(self._next_block, blocks)
                entropy = np.random.SeedSequence((self.blocks.seed, block.epoch, block.number))
                self.state = {"epoch": block.epoch, "number": block.number, "shard": block.shard}
                for batch in self.make_sampler(rows, int(entropy.generate_state(1)[0])):
                    yield self.collate(rows.__getitems__(batch))

    def _next_block(self, blocks: Iterator[Block]) -> tuple[Block, Dataset]:
        """The next block of which something is left, and its rows."""
        first = None
        for block in blocks:
            rows = self.prepare(block.rows)
            if len(rows):
                return block, rows
            first = block.epoch if first is None else first
            if block.epoch > first + 1:
                break
        raise ValueError("cleaning leaves no row of the stream; check data.max_length and data.max_length_ratio")
