"""Rows of sentence pairs turned into token ids; apart from tokenizers, so that translating waits for no `datasets`."""

import hashlib
import logging
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, Value, concatenate_datasets
from datasets import Sequence as SequenceFeature
from datasets.fingerprint import Hasher

from .tokenization import Tokenizer

logger = logging.getLogger(__name__)

ROWS_PER_BLOCK = 100_000
_ROWS_PER_CALL = 1000


def tokenize_pairs(
    dataset: Dataset,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    max_length: int | None = None,
    num_proc: int | None = None,
) -> Dataset:
    """Turn the columns "source" and "target" into token ids.

    Nothing is cut unless asked; the number of rows that are cut is logged as a warning.

    Args:
        dataset: Rows with "source" and "target", both str.
        source_tokenizer, target_tokenizer: of the two.
        max_length: Longer sides are cut to so many tokens, as the tokenizer does it (evaluation); None = no limit.
        num_proc: Processes to work in; None for this one alone.

    Returns:
        The dataset with two more columns: `input_ids` and `labels`, lists of int without padding.
    """
    encode = partial(_encode, source_tokenizer=source_tokenizer, target_tokenizer=target_tokenizer)
    features = _with_ids(dataset.features)
    # by what the tokenizers do and not by where they were loaded from, so that a resumed run finds what is there
    states = [one.backend_tokenizer.to_str() if one.is_fast else one for one in (source_tokenizer, target_tokenizer)]
    fingerprint = Hasher.hash([dataset._fingerprint, *states])
    tokenized = dataset.map(
        encode, batched=True, features=features, desc="Tokenizing", num_proc=num_proc, new_fingerprint=fingerprint
    )
    if max_length is None:
        return tokenized
    longest = np.maximum(token_lengths(tokenized, "input_ids"), token_lengths(tokenized, "labels"))
    over = int((longest > max_length).sum())
    if not over:
        return tokenized
    logger.warning("%d of %d rows are longer than %d tokens and were cut", over, len(tokenized), max_length)
    encode = partial(encode, truncation=True, max_length=max_length)
    return dataset.map(encode, batched=True, features=features, desc="Truncating", num_proc=num_proc)


def encode_pairs(dataset: Dataset, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> Dataset:
    """What `tokenize_pairs` does, in memory and at once, for the rows of one block of a stream."""
    batches = [
        {**batch, **_encode(batch, source_tokenizer, target_tokenizer)}
        for batch in dataset.select_columns(["source", "target"]).iter(batch_size=_ROWS_PER_CALL)
    ]
    features = _with_ids(Features({name: Value("string") for name in ("source", "target")}))
    return concatenate_datasets([Dataset.from_dict(batch, features=features) for batch in batches])


def _encode(
    batch: dict[str, list],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    **options: Any,
) -> dict[str, list]:
    options = {"return_attention_mask": False, "verbose": False, **options}
    return {
        "input_ids": source_tokenizer(batch["source"], **options)["input_ids"],
        "labels": target_tokenizer(text_target=batch["target"], **options)["input_ids"],
    }


def _with_ids(features: Features) -> Features:
    ids = SequenceFeature(Value("int32"))
    return Features({**features, "input_ids": ids, "labels": ids})


def token_lengths(dataset: Dataset, column: str) -> np.ndarray:
    """Lengths int32 [rows] of a column of lists, such as "input_ids"."""
    blocks = dataset.select_columns([column]).with_format("arrow").iter(batch_size=ROWS_PER_BLOCK)
    lengths = [pc.list_value_length(block[column]).to_numpy() for block in blocks]
    return np.concatenate(lengths).astype(np.int32) if lengths else np.zeros(0, dtype=np.int32)


def describe_tokens(dataset: Dataset) -> dict[str, Any]:
    """Number of rows and SHA-256 of `input_ids` and `labels`, row by row."""
    digest, columns = hashlib.sha256(), ["input_ids", "labels"]
    for block in dataset.select_columns(columns).with_format("arrow").iter(batch_size=ROWS_PER_BLOCK):
        for column in columns:
            digest.update(pc.list_value_length(block[column]).to_numpy().astype(np.int64).tobytes())
            digest.update(pc.list_flatten(block[column]).to_numpy().astype(np.int64).tobytes())
    return {"rows": len(dataset), "sha256": digest.hexdigest()}
