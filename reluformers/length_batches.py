"""Batches of rows of like length."""

from collections.abc import Iterator, Sequence


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield the row numbers of batches of at most `max_tokens` padded tokens, longest rows first.

    Args:
        lengths: tokens of each row.
        max_tokens: rows times the longest of them; a single row may have more.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(order):
        size = max(1, max_tokens // lengths[order[start]])
        yield order[start : start + size]
        start += size
