"""Batches of token lists: rows of like length, padded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# transformers leaves labels of this value out of every loss
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
