"""Dropping the pairs that a translation model should not learn from."""

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from .tokenized_rows import ROWS_PER_BLOCK, token_lengths


def clean(
    dataset: Dataset,
    *,
    max_tokens: int | None = None,
    max_length_ratio: float | None = None,
    may_be_empty: bool = False,
) -> tuple[Dataset, str]:
    """Drop pairs that are empty, too long or of too unequal lengths.

    Empty is judged on the text, lengths are counted in tokens with the closing `</s>`: run it after `tokenize_pairs`.

    Args:
        dataset: Tokenised pairs with their texts.
        max_tokens: Most tokens of a side; None = no limit.
        max_length_ratio: Most tokens of the longer side per token of the shorter one, at least 1; None = no limit.
        may_be_empty: Whether it is right that no row is left, as of a part of a bigger set.

    Returns:
        The rows that are kept, in their order, and a line with the number of those dropped for each fault, the first
        one of a row.

    Raises:
        ValueError: If no row is left, unless `may_be_empty`.
    """
    source, target = (token_lengths(dataset, column) for column in ("input_ids", "labels"))
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    empty = _blank(dataset, "source") | _blank(dataset, "target")
    too_long = ~empty & (longer > (max_tokens or np.inf))
    unequal = ~empty & ~too_long & (longer > (max_length_ratio or np.inf) * np.maximum(shorter, 1))
    keep = ~(empty | too_long | unequal)
    dropped = [f"{empty.sum():,} with an empty side"]
    if max_tokens is not None:
        dropped.append(f"{too_long.sum():,} over {max_tokens} tokens")
    if max_length_ratio is not None:
        dropped.append(f"{unequal.sum():,} over length ratio {max_length_ratio:g}")
    report = f"kept {keep.sum():,} of {len(keep):,} pairs; dropped {', '.join(dropped)}"
    if not keep.any() and not may_be_empty:
        raise ValueError(
            f"cleaning leaves no pair: {report}; check the data, data.max_length and data.max_length_ratio"
        )
    return dataset if keep.all() else dataset.select(np.flatnonzero(keep)), report


def _blank(dataset: Dataset, column: str) -> np.ndarray:
    blocks = dataset.select_columns([column]).with_format("arrow").iter(batch_size=ROWS_PER_BLOCK)
    blank = [pc.equal(pc.utf8_trim_whitespace(block[column]), "").to_numpy() for block in blocks]
    return np.concatenate(blank) if blank else np.zeros(0, dtype=bool)
