"""Cross-attention of given translations, the word alignments in it, and the layer that gives the best of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from reluformers.data.batching import PairCollator, length_batches
from reluformers.modeling.pipeline_translation import most_positions, split_text, sum_over_words

from .observation import Observed, observing

# So many pairs are sorted by length at a time.
BLOCK_ROWS = 1000
MAX_TOKENS = 4096

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
Measured = TypeVar("Measured")
NO_LINK = -1
MEASURED_ROWS = 500
# Fewer links say nothing about the layers.
LEAST_LINKS = 50

# A link holds the index of a source word and of a target word, from 0.
Link = tuple[int, int]


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
    pairs = iter(pairs)
    collate = PairCollator(tokenizers[0].pad_token_id)
    while block := list(islice(pairs, BLOCK_ROWS)):
        texts, target_texts = zip(*block, strict=True)
        source_tokens = _tokenize(model, tokenizers[0], "text", texts)
        target_tokens = _tokenize(model, tokenizers[1], "text_target", target_texts)
        tokens = list(zip(source_tokens, target_tokens, strict=True))
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


@dataclass(frozen=True)
class AlignmentHead:
    """Which cross-attention gives the alignments.

    Args:
        layer: decoder layer, from 0.
        head: from 0; None for the mean over the heads.
        shifted: whether a token's weights are those of the step that has it as input and writes the next one, instead
            of the step that writes it (Chen et al. 2020; ReLA §5).
    """

    layer: int
    head: int | None = None
    shifted: bool = False

    @classmethod
    def of_config(cls, config: PreTrainedConfig) -> "AlignmentHead":
        """Choose as the pipeline does, by the fields `alignment_…`; by default the mean of the last layer but one."""
        layer = getattr(config, "alignment_layer", None)
        return cls(
            max(decoder_layers(config) - 2, 0) if layer is None else layer,
            getattr(config, "alignment_head", None),
            getattr(config, "alignment_shifted", False),
        )


def decoder_layers(config: PreTrainedConfig) -> int:
    """Number of decoder layers, by any name that transformers has for it."""
    layers = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None)
    return layers or config.get_text_config(decoder=True).num_hidden_layers


class WordAlignments(NamedTuple):
    """Alignments of a pair by every layer and head.

    Args:
        source, target: words, which white space separates.
        links: for each target word the index of its source word, −1 for none    int64 [2, layers, heads + 1, target
            words]; of the first axis normal and shifted attention, of the heads the last is the mean of all.
    """

    source: list[str]
    target: list[str]
    links: Tensor

    def of(self, head: AlignmentHead) -> list[Link]:
        """Links of one head, in the order of the target."""
        places = self.links[int(head.shifted), head.layer, -1 if head.head is None else head.head].tolist()
        return [(index, number) for number, index in enumerate(places) if index != NO_LINK]


def word_alignments(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    pairs: Iterable[tuple[str, str]],
    *,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[WordAlignments]:
    """Align the words of given translations, by every layer and head.

    With α ≥ 0 the cross-attention of target token t on source token s, summed over the tokens of words T and S:
        a(T) = argmax_S Σ_{t ∈ T} Σ_{s ∈ S} α_ts
    The end token takes part in nothing, and a word whose weights are all zero has no link (null attention).

    Args:
        model, tokenizers, pairs, max_tokens: as in `measure_pairs`.

    Yields:
        The alignments of each pair, in their order.
    """
    return measure_pairs(
        model, tokenizers, pairs, lambda batch: _align_batch(tokenizers, batch), max_tokens=max_tokens
    )


def _align_batch(tokenizers: Tokenizers, batch: ForcedBatch) -> list[WordAlignments]:
    weights = torch.stack([rows.weights for rows in batch.seen.attention["cross"]], 1).clamp_min(0).cpu()
    weights = torch.cat([weights, weights.mean(2, keepdim=True)], 2)
    aligned = []
    for row, (texts, tokens) in enumerate(zip(batch.texts, batch.tokens, strict=True)):
        source = split_text(tokenizers[0], texts[0], tokens[0])
        target = split_text(tokenizers[1], texts[1], tokens[1])
        normal = weights[row, :, :, : len(tokens[1]), : len(tokens[0])]
        shifted = functional.pad(normal[:, :, 1:], (0, 0, 0, 1))
        sums = sum_over_words(torch.stack([normal, shifted]), source, target)[..., :-1]
        best, links = functional.pad(sums, (0, 1)).max(-1)  # A text may have no words.
        words = [text.split() for text in texts]
        beyond = len(words[1]) - links.shape[-1]  # A target that was cut has words beyond its tokens.
        links = functional.pad(links.masked_fill(best == 0, NO_LINK), (0, beyond), value=NO_LINK)
        aligned.append(WordAlignments(*words, links))
    return aligned


def measure_layers(model: PreTrainedModel, tokenizers: Tokenizers, pairs: Dataset) -> tuple[list[float], int | None]:
    """Compare the decoder's layers by the words that a translation takes over: names, numbers.

    A word with a letter or a digit that stands once in the source x and once in the reference y is its own
    translation, so the link (t, s) with y_t = x_s is known. With A the set of these links and a_l(t) the source word
    to which word t is aligned by the mean of layer l's heads, as `word_alignments` does it:

        share_l = |{(t, s) ∈ A : a_l(t) = s}| / |A|

    Args:
        model: with cross-attention; it stays in its mode.
        tokenizers: of source and target.
        pairs: columns `source` and `target`; the first 500 rows count.

    Returns:
        The shares, none where no such link is known; and the layer of the largest, or None of fewer than 50 links.
    """
    hits = Counter()
    links = 0
    layers = range(decoder_layers(model.config))
    rows = islice(zip(pairs["source"], pairs["target"], strict=True), MEASURED_ROWS)
    for aligned in word_alignments(model, tokenizers, rows):
        known = same_words(aligned.source, aligned.target)
        links += len(known)
        hits.update(layer for layer in layers for link in aligned.of(AlignmentHead(layer)) if link in known)
    shares = [hits[layer] / links for layer in layers] if links else []
    return shares, best_layer(shares) if links >= LEAST_LINKS else None


def best_layer(shares: list[float]) -> int:
    """The layer of the largest share; of equal ones the last but one, else the first."""
    best = [layer for layer, share in enumerate(shares) if share == max(shares)]
    usual = max(len(shares) - 2, 0)
    return usual if usual in best else best[0]


def same_words(source: list[str], target: list[str]) -> list[Link]:
    """Links of words that both sides have, each once, and that are no punctuation."""
    counts = Counter(source), Counter(target)
    return [
        (source.index(word), index)
        for index, word in enumerate(target)
        if counts[0][word] == counts[1][word] == 1 and any(map(str.isalnum, word))
    ]
