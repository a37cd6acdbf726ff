"""Quality of sentence pairs from a translation model, by null attention or by its loss, for whole corpora."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from reluformers.data.batching import IGNORED_LABEL
from reluformers.evaluation.alignments import MAX_TOKENS, ForcedBatch, Tokenizers, measure_pairs


class PairScore(NamedTuple):
    """How bad a pair is; of both the smaller is the better.

    Args:
        null_rate: share of the cross-attention's rows, over layers, heads and target tokens with the end token, whose
            weights are all zero, in [0, 1].
        loss: mean negative log-likelihood of the target tokens with the end token, in nats.
    """

    null_rate: float
    loss: float


SCORES = PairScore._fields


def score_pairs(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    pairs: Iterable[tuple[str, str]],
    *,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[PairScore]:
    """Score pairs by how often the model, writing the target, attends to nothing of the source.

    With s_lhtj the cross-attention of layer l and head h from target token t to source token j:
        null_rate = |{(l, h, t) : Σ_j s_lhtj = 0}| / (L · H · T)
    0 for every pair if the attention cannot be null, as softmax.

    Args:
        model, tokenizers, pairs, max_tokens: as in `measure_pairs`.

    Yields:
        The score of each pair, in their order.

    Source: Zhang et al. 2021, ReLA, §5.2 and Appendix B.
    """
    return measure_pairs(model, tokenizers, pairs, _score_batch, max_tokens=max_tokens)


def _score_batch(batch: ForcedBatch) -> list[PairScore]:
    labels, layers = batch.seen.inputs["labels"], batch.seen.attention["cross"]
    is_target = labels != IGNORED_LABEL
    # [batch, target_len], over layers and heads
    null_rates = torch.stack([rows.null for rows in layers], 1).float().mean((1, 2))
    losses = functional.cross_entropy(batch.seen.logits.float().transpose(1, 2), labels, reduction="none")
    means = ((values * is_target).sum(-1) / is_target.sum(-1) for values in (null_rates, losses))
    return list(map(PairScore, *(mean.tolist() for mean in means)))


def keep_best(scores: Iterable[float], share: float) -> np.ndarray:
    """Which rows are among the best: bool [rows]; of equal ones the earlier.

    Args:
        scores: the smaller the better.
        share: of the rows that are kept, rounded up, in (0, 1].
    """
    values = np.fromiter(scores, dtype=np.float64)
    kept = np.zeros(len(values), dtype=bool)
    kept[np.argsort(values, kind="stable")[: int(np.ceil(share * len(values)))]] = True
    return kept
