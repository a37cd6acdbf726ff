"""Padding of token lists into the tensors of one batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

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
        input_ids, visible = _pad([row["input_ids"] for row in rows], self.pad_token_id)
        labels, _ = _pad([row["labels"] for row in rows], IGNORED_LABEL)
        return {"input_ids": input_ids, "attention_mask": visible.long(), "labels": labels}


def _pad(rows: list[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """One int64 tensor [rows, longest] and where it holds tokens, bool."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_token.shape, value, dtype=np.int64)
    padded[is_token] = np.concatenate(rows)
    return torch.from_numpy(padded), torch.from_numpy(is_token)


def example_tokens(config: PreTrainedConfig) -> dict[str, Tensor]:
    """A small batch that any translation model takes: two rows, the second one padded.

    Args:
        config: of the model.

    Returns:
        Arguments of `forward`: `input_ids` [2, 6], `attention_mask` [2, 6] and `decoder_input_ids` [2, 5].
    """
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return {
        "input_ids": _spread_ids(2, 6, config.vocab_size),
        "attention_mask": mask,
        "decoder_input_ids": _spread_ids(2, 5, config.decoder_vocab_size or config.vocab_size),
    }


def _spread_ids(rows: int, length: int, vocab_size: int) -> Tensor:
    return ((7 * torch.arange(rows * length) + 5) % vocab_size).view(rows, length)
