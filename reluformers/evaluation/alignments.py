"""Word alignments in the cross-attention of given translations, and the layer that gives the best of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformers.data.batching import PairCollator, length_batches
from reluformers.modeling.pipeline_translation import most_positions, split_text, sum_over_words

from .observation import observing

MAX_TOKENS = 4096  # A batch has so many tokens with padding, of the longer side.

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
MEASURED_ROWS = 500
# Fewer links say nothing about the layers.
LEAST_LINKS = 50

# A link holds the index of a source word and of a target word, from 0.
Link = tuple[int, int]


def word_alignments(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    pairs: Iterable[tuple[str, str]],
) -> list[list[list[Link]]]:
    """Align the words of given translations by the mean of each layer's heads.

    With α ≥ 0 the cross-attention of target token t on source token s, summed over the tokens of words T and S:
        a(T) = argmax_S Σ_{t ∈ T} Σ_{s ∈ S} α_ts
    The end token takes part in nothing, and a word whose weights are all zero has no link (null attention). Sides that
    are longer than the model can take are cut.

    Args:
        model: with cross-attention; see `observing`.
        tokenizers: of source and target.
        pairs: source and target texts, all of which are held in memory.

    Returns:
        Links of each pair and layer, in the order of the target's words.
    """
    texts = list(pairs)
    source_tokens = _tokenize(model, tokenizers[0], "text", [source for source, _ in texts])
    target_tokens = _tokenize(model, tokenizers[1], "text_target", [target for _, target in texts])
    lengths = [max(map(len, sides)) for sides in zip(source_tokens, target_tokens, strict=True)]
    collate = PairCollator(tokenizers[0].pad_token_id)
    aligned: dict[int, list[list[Link]]] = {}
    with observing(model, ("cross",)) as observe:
        for rows in length_batches(lengths, MAX_TOKENS):
            batch = collate([{"input_ids": source_tokens[row], "labels": target_tokens[row]} for row in rows])
            layers = [layer.weights.clamp_min(0).cpu().mean(1) for layer in observe(batch)["cross"]]
            for row, weights in zip(rows, torch.stack(layers, dim=1), strict=True):
                source = split_text(tokenizers[0], texts[row][0], source_tokens[row])
                target = split_text(tokenizers[1], texts[row][1], target_tokens[row])
                weights = weights[:, : len(target_tokens[row]), : len(source_tokens[row])]
                aligned[row] = list(map(_links, sum_over_words(weights, source, target)[..., :-1]))
    return [aligned[row] for row in range(len(texts))]


def _tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, side: str, texts: Sequence[str]
) -> list[list[int]]:
    if not texts:
        return []
    limit = min(most_positions(model.config), tokenizer.model_max_length)
    return tokenizer(**{side: texts}, truncation=True, max_length=limit, verbose=False)["input_ids"]


def _links(sums: Tensor) -> list[Link]:
    """Link each target word to the source word with its largest sum [target words, source words]."""
    if not sums.shape[1]:  # A text may have no words.
        return []
    best, indices = sums.max(-1)
    return [(index, word) for word, index in enumerate(indices.tolist()) if best[word] > 0]


def measure_layers(model: PreTrainedModel, tokenizers: Tokenizers, pairs: Dataset) -> tuple[list[float], int | None]:
    """Measure how well each decoder layer aligns the words that a translation takes over: names, numbers.

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
    rows = list(islice(zip(pairs["source"], pairs["target"], strict=True), MEASURED_ROWS))
    for (source, target), aligned in zip(rows, word_alignments(model, tokenizers, rows), strict=True):
        known = same_words(source.split(), target.split())
        links += len(known)
        hits.update(layer for layer, own in enumerate(aligned) for link in own if link in known)
    shares = [hits[layer] / links for layer in range(len(aligned))] if links else []
    return shares, best_layer(shares) if links >= LEAST_LINKS else None


def best_layer(shares: list[float]) -> int:
    """The layer of the largest share; of equal ones the last but one, else the first."""
    return max(range(len(shares)), key=lambda layer: (shares[layer], layer == len(shares) - 2))


def same_words(source: list[str], target: list[str]) -> list[Link]:
    """Links of words that both sides have, each once, and that are no punctuation."""
    counts = Counter(source), Counter(target)
    return [
        (source.index(word), index)
        for index, word in enumerate(target)
        if counts[0][word] == counts[1][word] == 1 and any(map(str.isalnum, word))
    ]
