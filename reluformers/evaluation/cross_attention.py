"""Cross-attention of given translations, pair by pair, of any encoder–decoder model of transformers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformers.data.batches import PairCollator, length_batches
from reluformers.modeling.pipeline_translation import most_positions

from .observation import Observed, observing

# pairs that are sorted by length at a time
BLOCK_ROWS = 1000
MAX_TOKENS = 4096

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
Measured = TypeVar("Measured")


class ForcedBatch(NamedTuple):
    """Pairs whose targets a model was made to write, and what it did.

    Args:
        texts: source and target of each pair.
        tokens: of source and target of each pair, without padding, which is on the right.
        seen: its cross-attention, whose row t is that of the step that writes token t, inputs and logits.
    """

    texts: list[tuple[str, str]]
    tokens: list[tuple[list[int], list[int]]]
    seen: Observed


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
        model: with cross-attention; see `observing`.
        tokenizers: of source and target.
        pairs: source and target texts.
        measure: one result for each pair of a batch.
        max_tokens: tokens of a batch with padding, of the longer side.
    """
    pairs, collate = iter(pairs), PairCollator(tokenizers[0].pad_token_id)
    while block := list(islice(pairs, BLOCK_ROWS)):
        sides = zip(tokenizers, ("text", "text_target"), zip(*block, strict=True), strict=True)
        tokens = list(zip(*(_tokenize(model, *side) for side in sides), strict=True))
        results: dict[int, Measured] = {}
        with observing(model, ("cross",)) as observe:
            for rows in length_batches([max(map(len, pair)) for pair in tokens], max_tokens):
                chosen = [tokens[row] for row in rows]
                seen = observe(collate([{"input_ids": source, "labels": target} for source, target in chosen]))
                batch = ForcedBatch([block[row] for row in rows], chosen, seen)
                results.update(zip(rows, measure(batch), strict=True))
        yield from (results[row] for row in range(len(block)))


def _tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, side: str, texts: Sequence[str]
) -> list[list[int]]:
    limit = min(most_positions(model.config), tokenizer.model_max_length)
    return tokenizer(**{side: list(texts)}, truncation=True, max_length=limit, verbose=False)["input_ids"]
