"""Which layer's cross-attention gives the word alignments of a model, measured without alignments made by hand."""

from collections import Counter
from typing import NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformers.modeling.pipeline_translation import align_words, mean_over_heads, split_source

from .collation import PairCollator

MEASURED_ROWS = 500
ROWS_PER_BATCH = 50
# fewer links say nothing about the layers
LEAST_LINKS = 50

Words = tuple[list[str], list[int]]


class LayerAgreement(NamedTuple):
    """How well the layers link words that are the same on both sides.

    Args:
        shares: of such words that each layer links to each other, in [0, 1].
        links: number of such words.
        layer: that of the largest share, of equal ones the last but one and else the first; None if there are too few
            links to tell.
    """

    shares: list[float]
    links: int

    @property
    def layer(self) -> int | None:
        if self.links < LEAST_LINKS:
            return None
        best = [layer for layer, share in enumerate(self.shares) if share == max(self.shares)]
        usual = max(len(self.shares) - 2, 0)
        return usual if usual in best else best[0]


@torch.no_grad()
def measure_layers(
    model: PreTrainedModel,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    pairs: Dataset,
) -> LayerAgreement:
    """Compare the decoder's layers by the words that a translation takes over: names, numbers.

    A word with a letter or a digit that stands once in the source x and once in the reference y is its own
    translation, so the link (t, s) with y_t = x_s is known. With A the set of these links and a_l(t) the source word
    to which word t is aligned by layer l, as `TranslationPipeline` aligns it, the references being given as they are:

        share_l = |{(t, s) ∈ A : a_l(t) = s}| / |A|

    Args:
        model: with cross-attention; it stays in its mode.
        tokenizers: of source and target.
        pairs: columns `source`, `target`, and their tokens `input_ids` and `labels`; the first 500 rows count.

    Returns:
        The shares. There are no links where a tokenizer does not say where its tokens come from (a slow one).
    """
    hits, links = Counter(), 0
    layers = model.config.decoder_layers
    if not all(tokenizer.is_fast for tokenizer in tokenizers):
        return LayerAgreement([0.0] * layers, 0)
    collate = PairCollator(tokenizers[0].pad_token_id)
    is_training = model.training
    model.eval()
    for start in range(0, min(len(pairs), MEASURED_ROWS), ROWS_PER_BATCH):
        rows = pairs.select(range(start, min(start + ROWS_PER_BATCH, len(pairs), MEASURED_ROWS))).to_list()
        batch = {name: tensor.to(model.device) for name, tensor in collate(rows).items()}
        by_layer = [mean_over_heads(weights).cpu() for weights in _cross_attentions(model, batch)]
        for number, row in enumerate(rows):
            source = _words(tokenizers[0], row["source"], len(row["input_ids"]))
            target = _words(tokenizers[1], row["target"], len(row["labels"]))
            known = same_words(source[0], target[0])
            links += len(known)
            for layer, weights in enumerate(by_layer):
                weights = weights[number, : len(row["labels"]), : len(row["input_ids"])]
                found = align_words(weights, source, target)
                hits[layer] += sum(found[place]["source_index"] == other for place, other in known)
    model.train(is_training)
    return LayerAgreement([hits[layer] / max(links, 1) for layer in range(layers)], links)


def _cross_attentions(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return model(**batch, output_attentions=True, use_cache=False).cross_attentions


def _words(tokenizer: PreTrainedTokenizerBase, text: str, length: int) -> Words:
    """Words of a text, and for each of its tokens, of which the last ones may be cut, the word that it belongs to."""
    words, places = split_source(text, tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"])
    # of a text that is cut the last token is </s>
    return words, [*places[: length - 1], places[-1]]


def same_words(source: list[str], target: list[str]) -> list[tuple[int, int]]:
    """Places (in the target, in the source) of words that both sides have, each once, and that are no punctuation."""
    counts = Counter(source), Counter(target)
    return [
        (place, source.index(word))
        for place, word in enumerate(target)
        if counts[0][word] == counts[1][word] == 1 and any(map(str.isalnum, word))
    ]
