"""From sentence pairs to rows of token ids: tokenised, cleaned, in documents, or as a stream.

Apart from tokenizers, so that translating waits for no `datasets`.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets
from datasets import Sequence as SequenceFeature
from datasets.fingerprint import Hasher

from reluformers.data.batching import TokenBudgetBatchSampler
from reluformers.data.streaming import BatchStream, BlockStream

from .tokenization import Tokenizer, Tokenizers

logger = logging.getLogger(__name__)

_ROWS_PER_BLOCK = 100_000
_ROWS_PER_CALL = 1000
_SAMPLE = 1000  # Two streams are told apart by so many rows of their first and last shard.


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
    # We hash what the tokenizers do, not where they were loaded from, so that a resumed run finds its cache.
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


def _arrow_blocks(dataset: Dataset, *columns: str) -> Iterator[pa.Table]:
    """Read some columns a block at a time, without making objects of Python."""
    return dataset.select_columns(list(columns)).with_format("arrow").iter(batch_size=_ROWS_PER_BLOCK)


def token_lengths(dataset: Dataset, column: str) -> np.ndarray:
    """Lengths int32 [rows] of a column of lists, such as "input_ids"."""
    lengths = [pc.list_value_length(block[column]).to_numpy() for block in _arrow_blocks(dataset, column)]
    return np.concatenate([np.zeros(0, dtype=np.int32), *lengths], dtype=np.int32)


def describe_tokens(dataset: Dataset) -> dict[str, Any]:
    """Number of rows and SHA-256 of `input_ids` and `labels`, row by row."""
    digest = hashlib.sha256()
    columns = ["input_ids", "labels"]
    for block in _arrow_blocks(dataset, *columns):
        for column in columns:
            digest.update(pc.list_value_length(block[column]).to_numpy().astype(np.int64).tobytes())
            digest.update(pc.list_flatten(block[column]).to_numpy().astype(np.int64).tobytes())
    return {"rows": len(dataset), "sha256": digest.hexdigest()}


def token_batches(
    rows: Dataset, seed: int = 0, *, max_tokens: int, shuffle: bool = True, **processes: int
) -> TokenBudgetBatchSampler:
    """Batches of token ids within a budget; those of evaluations, in order, have room for the longest row."""
    lengths = [token_lengths(rows, column) for column in ("input_ids", "labels")]
    if not shuffle:
        max_tokens = max(max_tokens, *(int(side.max()) for side in lengths))
    return TokenBudgetBatchSampler(*lengths, max_tokens, seed=seed, shuffle=shuffle, **processes)


def clean(dataset: Dataset, *, max_tokens: int, max_length_ratio: float | None) -> tuple[Dataset, str]:
    """Drop pairs that are empty, too long or of too unequal lengths.

    Empty is judged on the text, lengths are counted in tokens with the closing `</s>`: run it after `tokenize_pairs`.

    Args:
        dataset: Tokenised pairs with their texts.
        max_tokens: Most tokens of a side.
        max_length_ratio: Most tokens of the longer side per token of the shorter one, at least 1; None = no limit.

    Returns:
        The rows that are kept, in their order, and a line with the number of those dropped for each fault, the first
        one of a row.
    """
    source, target = (token_lengths(dataset, column) for column in ("input_ids", "labels"))
    longer = np.maximum(source, target)
    shorter = np.minimum(source, target)
    empty = _blank(dataset, "source") | _blank(dataset, "target")
    too_long = ~empty & (longer > max_tokens)
    unequal = ~empty & ~too_long & (longer > (max_length_ratio or np.inf) * np.maximum(shorter, 1))
    keep = ~(empty | too_long | unequal)
    dropped = [f"{empty.sum():,} with an empty side", f"{too_long.sum():,} over {max_tokens} tokens"]
    if max_length_ratio is not None:
        dropped.append(f"{unequal.sum():,} over length ratio {max_length_ratio:g}")
    report = f"kept {keep.sum():,} of {len(keep):,} pairs; dropped {', '.join(dropped)}"
    return dataset if keep.all() else dataset.select(np.flatnonzero(keep)), report


def _blank(dataset: Dataset, column: str) -> np.ndarray:
    blocks = _arrow_blocks(dataset, column)
    blank = [pc.equal(pc.utf8_trim_whitespace(block[column]), "").to_numpy() for block in blocks]
    return np.concatenate([np.zeros(0, dtype=bool), *blank])


def pack_documents(
    dataset: Dataset,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    limit: int,
) -> Dataset:
    """Join the sentences of each document, in order, until the next one would pass the limit.

    A row holds sentences 1..m of what is left of a document, with Σ₁ᵐ l_i ≤ L < Σ₁ᵐ⁺¹ l_i, and the next row starts
    with sentence m + 1 (ReLUFormer, appendix B). The paper leaves open which side is counted: here the limit holds on
    both sides, and for the joined ids with their closing `</s>`, so a row fits a model of L positions. No sentence is
    split; one that is longer than the limit stands alone. Sentences are joined by a blank, so the count is exact for
    tokenizers that do not merge over blanks, as those of `train_tokenizer`.

    Args:
        dataset: Sentence pairs with "source", "target" (str) and "document" (id), documents in one piece.
        source_tokenizer: Tokenizer that counts "source".
        target_tokenizer: Tokenizer that counts "target".
        limit: L, the most tokens of a row on each side.

    Returns:
        Rows with "source", "target", "document" and "sentences", the number of sentences joined.

    Raises:
        ValueError: If an id is None, or a document is in several pieces.
    """
    documents = dataset["document"][:]
    _check_documents(documents)
    tokenizers = {"source": source_tokenizer, "target": target_tokenizer}
    lengths = np.array([_lengths(dataset, side, tokenizer) for side, tokenizer in tokenizers.items()])
    # The lengths are those of sentences, so the </s> of each row comes off the limit.
    room = limit - np.array([tokenizer.num_special_tokens_to_add() for tokenizer in tokenizers.values()])
    spans = list(_spans(documents, lengths, room))
    packed: dict[str, list] = {}
    for side in tokenizers:
        texts = list(map(str.strip, dataset[side]))
        packed[side] = [" ".join(filter(None, texts[start:stop])) for start, stop in spans]
    packed["document"] = [documents[start] for start, _ in spans]
    packed["sentences"] = [stop - start for start, stop in spans]
    return Dataset.from_dict(packed)


def _spans(documents: list, lengths: np.ndarray, room: np.ndarray) -> Iterator[tuple[int, int]]:
    """First and last + 1 of the sentences of each row; `lengths` are int [2 sides, sentences], `room` int [2]."""
    start = 0
    total = 0
    for index, length in enumerate(lengths.T):
        if index > start and ((total + length > room).any() or documents[index] != documents[start]):
            yield start, index
            start = index
            total = 0
        total = total + length
    if documents:
        yield start, len(documents)


def _lengths(dataset: Dataset, column: str, tokenizer: Tokenizer) -> list[int]:
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    batches = dataset.select_columns([column]).iter(batch_size=_ROWS_PER_CALL)
    return [len(ids) for batch in batches for ids in tokenizer(batch[column], **options)["input_ids"]]


def _check_documents(documents: list) -> None:
    last_row: dict = {}
    for row, document in enumerate(documents):
        if document is None or last_row.get(document, row - 1) != row - 1:
            raise ValueError(f"row {row + 1}: document {document!r} must be an id, and the rows of one stand together")
        last_row[document] = row


@dataclass
class PairStream:
    """A training set of unknown size.

    Args:
        rows: as they lie in the shards.
        lay_out: makes of some of them rows with the texts `source` and `target`.
        buffer_rows: how many are tokenised, mixed and sorted into batches together.
        tokenizers: of the source and of the target; None until there are any.
        limits: of `clean`.
    """

    rows: IterableDataset
    lay_out: Callable[[Dataset], Dataset]
    buffer_rows: int
    tokenizers: Tokenizers | None = None
    limits: dict[str, Any] = field(default_factory=dict)

    def tokenize(self, texts: Dataset) -> Dataset:
        """Token ids of the rows that `clean` keeps within the limits; perhaps none."""
        rows, _ = clean(encode_pairs(texts, *self.tokenizers), **self.limits)
        return rows.select_columns(["input_ids", "labels"])

    def prepare(self, rows: Dataset) -> Dataset:
        """Token ids of rows as they lie in the shards."""
        return self.tokenize(self.lay_out(rows))

    def batches(self, max_tokens: int, collate: Callable[[list], Any], **processes: int) -> BatchStream:
        """Batches of one process within a budget of tokens, see `TokenBudgetBatchSampler`.

        Args:
            max_tokens: of a batch.
            collate: makes a batch of a list of rows.
            processes: `seed`, `rank` and `world_size`, see `BlockStream`.
        """
        blocks = BlockStream(self.rows, self.buffer_rows, **processes)
        return BatchStream(blocks, self.prepare, partial(token_batches, max_tokens=max_tokens), collate)

    def texts(self, rows: int) -> Iterator[Dataset]:
        """About so many rows with the texts, of shards in random order; all if there are fewer."""
        for block in BlockStream(self.rows, min(rows, self.buffer_rows)).blocks():
            if block.epoch or rows <= 0:
                return
            yield self.lay_out(block.rows)
            rows -= len(block.rows)

    def sample(self) -> Dataset:
        """Token ids of the first block."""
        return self.tokenize(next(self.texts(self.buffer_rows)))

    def describe(self) -> dict[str, Any]:
        """Number of shards, and a checksum of the first rows of the first and the last one."""
        shards = self.rows.num_shards
        ends = (self.rows.shard(shards, shard).with_format("arrow") for shard in (0, shards - 1))
        tables = (next(end.iter(_SAMPLE), None) for end in ends)  # A shard may have no rows.
        first, last = (table and describe_tokens(self.prepare(Dataset(table)))["sha256"] for table in tables)
        return {"shards": shards, "first": first, "last": last}
