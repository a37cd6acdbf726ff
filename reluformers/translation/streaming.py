"""Sentence pairs that are read while they are trained on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from datasets import Dataset, IterableDataset

from reluformers.data.batching import TokenBudgetBatchSampler
from reluformers.data.streaming import BatchStream, BlockStream

from .tokenized_rows import describe_tokens, token_lengths

# rows by which two streams are told apart, of their first and of their last shard
_SAMPLE = 1000


@dataclass
class PairStream:
    """A training set of unknown size.

    Args:
        rows: as they lie in the shards.
        lay_out: makes of some of them rows with the texts `source` and `target`.
        buffer_rows: how many are tokenised, mixed and sorted into batches together.
        tokenise: makes of texts rows with `input_ids` and `labels`, cleaned, perhaps none; None until there are
            tokenizers.
    """

    rows: IterableDataset
    lay_out: Callable[[Dataset], Dataset]
    buffer_rows: int
    tokenise: Callable[[Dataset], Dataset] | None = None

    def prepare(self, rows: Dataset) -> Dataset:
        """Token ids of rows as they lie in the shards."""
        return self.tokenise(self.lay_out(rows))

    def batches(self, max_tokens: int, collate: Callable[[list], Any], **processes: int) -> BatchStream:
        """Batches of one process within a budget of tokens, see `TokenBudgetBatchSampler`.

        Args:
            max_tokens: of a batch.
            collate: makes a batch of a list of rows.
            processes: `seed`, `rank` and `world_size`, see `BlockStream`.
        """
        blocks = BlockStream(self.rows, self.buffer_rows, **processes)
        return BatchStream(blocks, self.prepare, partial(_sampler, max_tokens=max_tokens), collate)

    def texts(self, rows: int) -> Iterator[Dataset]:
        """About so many rows with the texts, of shards in random order; all if there are fewer."""
        for block in BlockStream(self.rows, min(rows, self.buffer_rows)).blocks():
            if block.epoch or rows <= 0:
                return
            yield self.lay_out(block.rows)
            rows -= len(block.rows)

    def sample(self) -> Dataset:
        """Token ids of the first block."""
        return self.tokenise(next(self.texts(self.buffer_rows)))

    def describe(self) -> dict[str, Any]:
        """Number of shards, and a checksum of the first rows of the first and the last one."""
        shards = self.rows.num_shards
        ends = (self.rows.shard(shards, shard).with_format("arrow") for shard in (0, shards - 1))
        tables = (next(end.iter(_SAMPLE), None) for end in ends)  # a shard may have no rows
        first, last = (table and describe_tokens(self.prepare(Dataset(table)))["sha256"] for table in tables)
        return {"shards": shards, "first": first, "last": last}


def _sampler(rows: Dataset, seed: int, max_tokens: int) -> TokenBudgetBatchSampler:
    lengths = (token_lengths(rows, column) for column in ("input_ids", "labels"))
    return TokenBudgetBatchSampler(*lengths, max_tokens, seed=seed)
