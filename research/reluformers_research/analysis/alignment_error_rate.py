"""Alignment error rate as an `evaluate` metric that works without network and writes no files."""

import datasets
import evaluate

from reluformers.evaluation.in_memory_metric import InMemoryMetric

from .gold_alignments import alignment_scores

_INPUTS_DESCRIPTION = """
Args:
    predictions: for each pair a list of links [source word, target word].
    references: for each pair a dict: `sure` links, and `possible` ones, which may leave the sure ones out.
"""


class AlignmentErrorRate(InMemoryMetric):
    """Error rate of word alignments beside sure and possible links made by hand.

    With A the predicted, S the sure, P the possible links and the sure ones, summed over all pairs:
        AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    `compute(predictions=[[[0, 0], [1, 2]]], references=[{"sure": [[0, 0]], "possible": [[1, 2]]}])`; words may be
    counted from 0 or 1, on both sides alike, and a link given twice counts once.

    Returns:
        dict: `aer`, `precision` |A ∩ P| / |A| and `recall` |A ∩ S| / |S|, all in [0, 1], and `links` |A|, `sure` |S|.

    Raises:
        ValueError: there are neither links nor sure ones.

    Source: Och and Ney 2000, Improved Statistical Alignment Models.
    """

    def _info(self) -> evaluate.MetricInfo:
        links = datasets.List(datasets.List(datasets.Value("int32"), length=2))
        return evaluate.MetricInfo(
            description="Alignment error rate with sure and possible links.",
            citation="Och and Ney 2000, Improved Statistical Alignment Models.",
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": links, "references": {"sure": links, "possible": links}}),
        )

    def _compute(self, predictions, references) -> dict:
        counts = [0, 0, 0, 0]
        for found, gold in zip(predictions, references, strict=True):
            found, sure, possible = (set(map(tuple, links)) for links in (found, gold["sure"], gold["possible"]))
            for place, part in enumerate((found, found & sure, found & (sure | possible), sure)):
                counts[place] += len(part)
        return {**alignment_scores(*counts), "links": counts[0], "sure": counts[3]}
