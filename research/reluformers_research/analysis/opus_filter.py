"""Null attention as a filter of OpusFilter (https://helsinki-nlp.github.io/OpusFilter/), which has to be installed.

In a configuration of OpusFilter:

    - NullAttentionFilter: {model: ./runs/rela, threshold: 0.6}
      module: reluformers_research.analysis.opus_filter
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from typing import Any

from opusfilter import CLEAN_LOW, FilterABC

from reluformers.evaluation.cross_attention import BLOCK_ROWS, MAX_TOKENS
from reluformers.translation.decoding import load_translation_model

from .filtering import SCORES, score_pairs


class NullAttentionFilter(FilterABC):
    """Keeps pairs whose null rate of cross-attention, or whose loss, is at most a threshold; see `score_pairs`.

    Args:
        model: folder of a saved model, or Hub id.
        threshold: of the score.
        score: "null_rate" or "loss".
        max_tokens: tokens of a batch with padding.
        trust_remote_code: whether to run model code of the repository.
        kwargs: as for any filter (`name`, `workdir`).

    Raises:
        ValueError: there is no such score, or the model cannot be opened.
    """

    score_direction = CLEAN_LOW
    # thresholds with which all pairs are kept, and none
    accept_threshold = float("inf")
    reject_threshold = -1.0

    def __init__(
        self,
        model: str,
        threshold: float,
        score: str = "null_rate",
        max_tokens: int = MAX_TOKENS,
        trust_remote_code: bool = False,
        **kwargs: Any,
    ):
        if score not in SCORES:
            raise ValueError(f"score is {score!r}, but must be one of {', '.join(SCORES)}")
        super().__init__(**kwargs)
        self.threshold, self.score_name, self.max_tokens = threshold, score, max_tokens
        self.model, self.tokenizers = load_translation_model(model, trust_remote_code=trust_remote_code)

    def score(self, pairs: Iterable[Sequence[str]]) -> Iterator[float]:
        """Yield the score of each pair."""
        for score in score_pairs(self.model, self.tokenizers, map(tuple, pairs), max_tokens=self.max_tokens):
            yield getattr(score, self.score_name)

    def accept(self, score: float) -> bool:
        """Whether a pair of this score is kept."""
        return score <= self.threshold

    def filter(self, pairs: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the pairs that are kept; in blocks, where OpusFilter would ask the model for one pair at a time."""
        pairs = iter(pairs)
        while block := list(islice(pairs, BLOCK_ROWS)):
            yield from compress(block, self.decisions(block))

    def filterfalse(self, pairs: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the pairs that are not kept."""
        pairs = iter(pairs)
        while block := list(islice(pairs, BLOCK_ROWS)):
            yield from compress(block, (not kept for kept in self.decisions(block)))
