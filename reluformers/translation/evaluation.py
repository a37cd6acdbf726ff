"""Scores a trained translation model."""

from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from reluformers.training.batching import TokenBudgetBatchSampler

from .tokenization import token_lengths, tokenize_pairs


def teacher_forced_batches(
    dataset: Dataset,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    max_tokens: int = 4096,
) -> DataLoader:
    """Turn sentence pairs into the batches that `attention_report` takes.

    Args:
        dataset: columns `source` and `target`, str.
        source_tokenizer: tokenizer of the source.
        target_tokenizer: tokenizer of the target; the same object where the vocabulary is shared.
        max_length: longer sides are cut to so many tokens, with a warning; None = no limit.
        max_tokens: tokens of a batch with padding.

    Returns:
        Loader of dicts with `input_ids`, `attention_mask` and `labels`.
    """
    pairs = tokenize_pairs(
        dataset, source_tokenizer, target_tokenizer, max_length=max_length, truncate=max_length is not None
    ).select_columns(["input_ids", "labels"])
    lengths = [token_lengths(pairs, column) for column in ("input_ids", "labels")]
    longest = max(int(side.max()) for side in lengths)
    sampler = TokenBudgetBatchSampler(*lengths, max(max_tokens, longest), shuffle=False)
    return DataLoader(pairs, batch_sampler=sampler, collate_fn=DataCollatorForSeq2Seq(source_tokenizer))
