"""Text as rows of tokens."""

import random
from pathlib import Path

import torch
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer
from torch import Tensor, nn

from .text import END, START


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder of text, or of a model; a `ValueError` where it is not that of `text`."""
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    if (token := tokenizer.token_to_id(END)) != START:
        raise ValueError(f"{path}: {END} is token {token}, but must be {START}, as in the text's own")
    return tokenizer


def load_stream(file: str | None, name: str, tokenizer: Tokenizer, *, shuffled: bool = False) -> Tensor:
    """All tokens of a split, an end token behind each document.

    Args:
        file: Parquet with a column `text`; a ValueError where it is missing.
        name: of the split, for messages.
        shuffled: documents in an order of their own, always the same.
    """
    if file is None or not Path(file).is_file():
        raise ValueError(f"data.{name} is {file!r}, but must be a Parquet file of text")
    texts = load_dataset("parquet", data_files=file, split="train")["text"][:]
    if shuffled:
        random.Random(0).shuffle(texts)
    return torch.tensor([number for encoded in tokenizer.encode_batch(texts) for number in (*encoded.ids, START)])


def windows(stream: Tensor, length: int) -> Tensor:
    """Windows that follow one another, each behind a start token [count, length]."""
    size = length - 1
    return started(stream[: len(stream) // size * size].view(-1, size))


def started(rows: Tensor) -> Tensor:
    """Rows behind a start token, as models that are published have them."""
    return nn.functional.pad(rows, (1, 0), value=START)


def as_dataset(rows: Tensor) -> Dataset:
    """Rows as the trainer takes them."""
    return Dataset.from_dict({"input_ids": rows.numpy(), "labels": rows.numpy()}).with_format("torch")
