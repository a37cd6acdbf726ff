"""Quality of sentence pairs from a translation model, by null attention or by its loss, for whole corpora."""

import json
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from reluformers.data.batches import IGNORED_LABEL
from reluformers.evaluation.cross_attention import MAX_TOKENS, ForcedBatch, Tokenizers, measure_pairs
from reluformers.files import iterate_lines

from .parallel_text import ParallelRow, ParallelText


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
        model: any encoder–decoder that returns cross-attention.
        tokenizers: of source and target.
        pairs: source and target texts.
        max_tokens: tokens of a batch with padding, of the longer side.

    Yields:
        The score of each pair, in their order.

    Source: Zhang et al. 2021, ReLA, §5.2 and Appendix B.
    """
    return measure_pairs(model, tokenizers, pairs, _score_batch, max_tokens=max_tokens)


def _score_batch(batch: ForcedBatch) -> list[PairScore]:
    device = batch.weights.device
    lengths = torch.tensor([len(row) for row in batch.source_tokens], device=device)
    is_padding = torch.arange(batch.weights.shape[-1], device=device) >= lengths.unsqueeze(1)
    is_target = batch.labels != IGNORED_LABEL
    steps = is_target.sum(-1)
    # [batch, target_len], over layers and heads
    null_rates = ((batch.weights == 0) | is_padding[:, None, None, None]).all(-1).float().mean((1, 2))
    losses = functional.cross_entropy(batch.logits.float().transpose(1, 2), batch.labels, reduction="none")
    means = ((values * is_target).sum(-1) / steps for values in (null_rates, losses))
    return list(map(PairScore, *(mean.tolist() for mean in means)))


class ScoreFile:
    """Scores of a text in a file, a line each, that goes on where it was broken off.

    Its first line says of what they are, so that no other run goes on with them.

    Args:
        path: the file.
        of: what they are the scores of, as JSON takes it.

    Raises:
        ValueError: the file holds scores of something else.
    """

    def __init__(self, path: Path, of: dict):
        self.path = path
        head = json.dumps(of) + "\n"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head, encoding="utf-8")
        with path.open("r+b") as file:
            if file.readline() != head.encode():
                raise ValueError(f"{path}: holds scores of another model, data or option; remove it to start anew")
            self.start = file.tell()
            self.done = 0
            end = self.start
            for line in file:
                if line.endswith(b"\n"):  # a last line without its end was cut off
                    self.done, end = self.done + 1, end + len(line)
            file.truncate(end)

    def append(self, scores: Iterable[float]) -> Iterator[float]:
        """Write scores behind those that are there, each before it is passed on."""
        with self.path.open("a", encoding="utf-8", buffering=1) as file:
            for score in scores:
                file.write(f"{score!r}\n")
                self.done += 1
                yield score

    def read(self) -> Iterator[float]:
        """All scores."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            yield from map(float, file)

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink()


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


# rows that are sorted in memory at a time
_SORTED_ROWS = 200_000


def sort_rows(rows: Iterable[tuple[ParallelRow, float]]) -> Iterator[tuple[ParallelRow, float]]:
    """Rows from the smallest score to the largest, of equal ones the earlier first; more than a block goes to disk."""
    rows, runs = iter(rows), []
    with TemporaryDirectory() as folder:
        while block := list(islice(rows, _SORTED_ROWS)):
            block.sort(key=lambda scored: scored[1])
            path = Path(folder, str(len(runs)))
            with path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(scored) + "\n" for scored in block)
            runs.append(_read_run(path))
        yield from merge(*runs, key=lambda scored: scored[1])


def _read_run(path: Path) -> Iterator[tuple[ParallelRow, float]]:
    for line in iterate_lines(path):
        row, score = json.loads(line)
        yield ParallelRow(*row), score


def identity_of(model: str, text: ParallelText) -> dict:
    """What tells a model and a text from others, and from themselves when they were changed."""
    files = [*sorted(Path(model).glob("*.safetensors")), *map(Path, text.paths)]
    return {
        "model": model,
        "files": [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files],
        "rows": [text.rows.start, text.rows.stop],
        "columns": text.keys,
    }
