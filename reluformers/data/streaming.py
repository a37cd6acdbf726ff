"""Rows that do not fit on the machine, in batches: shards in random order, a block of rows at a time.

`datasets` reads the shards and finds its place in them again. Its shuffle buffer is not used, since what lies in it is
lost on resuming: rows are mixed within blocks that start at a known place, so that a place and a number of batches are
all that a checkpoint needs.
"""

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler

from reluformers.files import write_json

# rows that are read at once
_PIECE = 10_000


class BlockStream:
    """The blocks of rows of one process, epoch after epoch without end, each row once in every epoch.

    The shards come in an order of (seed, epoch). If their number can be divided by that of the processes, each process
    has shards of its own; otherwise each reads all of them and takes every n-th row. Processes count their epochs by
    themselves and never wait for each other.

    Args:
        dataset: streamed rows; their place in a shard is kept by `datasets`.
        rows: of a block, at least; up to 10,000 more, and fewer at the end of an epoch.
        seed: of the order of the shards.
        rank: index of this process.
        world_size: number of processes.

    Raises:
        ValueError: an epoch has no rows for this process.
    """

    def __init__(self, dataset: IterableDataset, rows: int, *, seed: int = 0, rank: int = 0, world_size: int = 1):
        self.dataset = dataset.with_format("arrow")
        self.rows, self.seed, self.rank, self.world_size = rows, seed, rank, world_size
        self.has_own_shards = dataset.num_shards % world_size == 0
        self.epoch = self.block = self.shard = 0
        self._stream: IterableDataset | None = None
        self._pieces: Iterator[pa.Table] = iter(())
        # in the shard, behind the last piece; `datasets` does not know it between loading a place and reading on
        self._place: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Where the next block begins, as JSON has it."""
        return {"epoch": self.epoch, "block": self.block, "shard": self.shard, "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        self.epoch, self.block, self.shard = (state[name] for name in ("epoch", "block", "shard"))
        self._stream, self._place = None, state["place"]

    def __iter__(self) -> Iterator[Dataset]:
        """Yield blocks; a block has rows of one epoch."""
        while True:
            pieces, rows = [], 0
            while rows < self.rows and (piece := self._next_piece()) is not None:
                pieces.append(piece)
                rows += len(piece)
            if rows:
                self.block += 1
                yield Dataset(pa.concat_tables(pieces, promote_options="default"))
            elif not self.block:
                raise ValueError(f"process {self.rank} of {self.world_size} finds no rows; check the data")
            if self.shard == len(self._order()):
                self.epoch, self.block, self.shard = self.epoch + 1, 0, 0

    def _next_piece(self) -> pa.Table | None:
        """Rows of this process, of the shard at hand or the next; None at the end of the epoch."""
        order = self._order()
        while self.shard < len(order):
            if self._stream is None:
                self._open(order[self.shard])
            if (table := next(self._pieces, None)) is not None:
                self._place = copy.deepcopy(self._stream.state_dict())
                if self.has_own_shards:
                    return table
                share = np.arange(self.rank, len(table), self.world_size)
                if len(share):
                    return table.take(share)
            else:
                self.shard, self._stream, self._place = self.shard + 1, None, None
        return None

    def _open(self, shard: int) -> None:
        self._stream = self.dataset.shard(self.dataset.num_shards, int(shard))
        if self._place is not None:
            self._stream.load_state_dict(copy.deepcopy(self._place))
        self._pieces = self._stream.iter(batch_size=_PIECE)

    def _order(self) -> np.ndarray:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.dataset.num_shards)
        return order[self.rank :: self.world_size] if self.has_own_shards else order


class BatchStream(Iterable[Any]):
    """Batches without end of the blocks of a stream; the next block is made ready while one is trained on.

    Args:
        blocks: of this process.
        prepare: makes of a block the rows to train on, which may be fewer or none.
        make_sampler: of prepared rows and a seed, the rows of each batch.
        collate: makes a batch of a list of rows.

    Raises:
        ValueError: nothing is left of a whole epoch.
    """

    def __init__(
        self,
        blocks: BlockStream,
        prepare: Callable[[Dataset], Dataset],
        make_sampler: Callable[[Dataset, int], Sampler[list[int]]],
        collate: Callable[[list], Any],
    ):
        self.blocks, self.prepare, self.make_sampler, self.collate = blocks, prepare, make_sampler, collate
        self._state = {"block": blocks.state_dict(), "batches": 0}

    def state_dict(self) -> dict[str, Any]:
        """The beginning of the block at hand, and how many of its batches were given."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; to be called before iterating."""
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        """Yield batches."""
        given = self._state["batches"]
        self.blocks.load_state_dict(self._state["block"])
        blocks = iter(self.blocks)
        with ThreadPoolExecutor(1) as worker:
            following = worker.submit(self._next_block, blocks)
            while True:
                begin, seed, rows = following.result()
                following = worker.submit(self._next_block, blocks)
                for number, batch in enumerate(self.make_sampler(rows, seed), start=1):
                    if number > given:
                        self._state = {"block": begin, "batches": number}
                        yield self.collate(rows.__getitems__(batch))
                given = 0

    def _next_block(self, blocks: Iterator[Dataset]) -> tuple[dict[str, Any], int, Dataset]:
        """Where the next block that is not empty begins, its seed and its rows."""
        first_epoch = self.blocks.epoch
        while self.blocks.epoch <= first_epoch + 1:
            begin = self.blocks.state_dict()
            block = next(blocks)
            if self.blocks.epoch > begin["epoch"]:
                begin = {"epoch": self.blocks.epoch, "block": 0, "shard": 0, "place": None}
            rows = self.prepare(block)
            if len(rows):
                entropy = np.random.SeedSequence((self.blocks.seed, begin["epoch"], begin["block"]))
                return begin, int(entropy.generate_state(1)[0]), rows
        raise ValueError(
            "cleaning leaves no row of the stream; check the data, data.max_length and data.max_length_ratio"
        )


def save_position(stream: BatchStream, folder: str | Path, rank: int) -> None:
    """Write into a checkpoint where the stream of a process stands."""
    write_json(_position_file(folder, rank), stream.state_dict())


def load_position(stream: BatchStream, folder: str | Path, rank: int) -> None:
    """Go on where a process stood at a checkpoint."""
    stream.load_state_dict(json.loads(_position_file(folder, rank).read_text(encoding="utf-8")))


def _position_file(folder: str | Path, rank: int) -> Path:
    return Path(folder, f"stream_{rank}.json")
