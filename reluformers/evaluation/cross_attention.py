"""Cross-attention of given translations, pair by pair, of any encoder–decoder model of transformers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformers.data.batches import PairCollator, length_batches
from reluformers.modeling.pipeline_translation import most_positions, returning_weights

from .observation import layer_weights

# pairs that are sorted by length at a time
BLOCK_ROWS = 1000
MAX_TOKENS = 4096

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
Measured = TypeVar("Measured")


@dataclass
class ForcedBatch:
    """Pairs whose targets a model was made to write, and what it did.

    Args:
        texts: source and target of each pair.
        source_tokens, target_tokens: of each pair, without padding, which is on the right.
        weights: cross-attention    [batch, layers, heads, target_len, source_len]; row t is that of the step that
            writes token t.
        labels: target tokens, padded with −100    [batch, target_len].
        logits: of the same steps    [batch, target_len, vocab_size].
    """

    texts: list[tuple[str, str]]
    source_tokens: list[list[int]]
    target_tokens: list[list[int]]
    weights: Tensor
    labels: Tensor
    logits: Tensor


def measure_pairs(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    pairs: Iterable[tuple[str, str]],
    measure: Callable[[ForcedBatch], Sequence[Measured]],
    *,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[Measured]:
    """Let a model write given targets, and yield what `measure` makes of each pair, in their order.

    Pairs are read in blocks of 1000, so memory is bounded by a block and a batch. Sides that are longer than the model
    can take are cut.

    Args:
        model: with cross-attention; it is evaluated with the eager attention, which returns weights, and left in the
            mode it came in.
        tokenizers: of source and target.
        pairs: source and target texts.
        measure: one result for each pair of a batch.
        max_tokens: tokens of a batch with padding, of the longer side.
    """
    pairs = iter(pairs)
    while block := list(islice(pairs, BLOCK_ROWS)):
        sides = zip(tokenizers, ("text", "text_target"), zip(*block, strict=True), strict=True)
        tokens = [_tokenize(model, tokenizer, side, list(texts)) for tokenizer, side, texts in sides]
        results: dict[int, Measured] = {}
        lengths = [max(map(len, row)) for row in zip(*tokens, strict=True)]
        for rows in length_batches(lengths, max_tokens):
            chosen = ([side[row] for row in rows] for side in tokens)
            batch = _run(model, tokenizers[0].pad_token_id, [block[row] for row in rows], *chosen)
            results.update(zip(rows, measure(batch), strict=True))
        yield from (results[row] for row in range(len(block)))


def _tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, side: str, texts: list[str]
) -> list[list[int]]:
    limit = min(most_positions(model.config), tokenizer.model_max_length)
    options = {"truncation": True, "max_length": limit, "verbose": False}
    return tokenizer(**{side: texts}, **options)["input_ids"]


@torch.no_grad()
def _run(
    model: PreTrainedModel,
    pad_token_id: int,
    texts: list[tuple[str, str]],
    source_tokens: list[list[int]],
    target_tokens: list[list[int]],
) -> ForcedBatch:
    sides = zip(source_tokens, target_tokens, strict=True)
    padded = PairCollator(pad_token_id)([{"input_ids": source, "labels": target} for source, target in sides])
    batch = {name: tensor.to(model.device) for name, tensor in padded.items()}
    is_training = model.training
    model.eval()
    try:
        outputs = returning_weights(model)(**batch, output_attentions=True, use_cache=False, return_dict=True)
    finally:
        model.train(is_training)
    weights = torch.stack(tuple(layer_weights(model, outputs, "cross")), 1)
    return ForcedBatch(texts, source_tokens, target_tokens, weights, batch["labels"], outputs.logits)
