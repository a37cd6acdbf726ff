"""sacreBLEU's scores as metrics of `evaluate`, and the translations of an evaluation that are worth showing."""

import re
from collections.abc import Sequence
from typing import Any

import evaluate
from datasets import Features, Value
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

NUM_EXAMPLES = 5
_DETAILS = ("precisions", "bp", "sys_len", "ref_len")  # BLEU has these parts.


class CorpusMetric(evaluate.Metric):
    """A corpus score of sacreBLEU as a metric of `evaluate`, without network and files.

    `compute(predictions=texts, references=texts)` gives `score` (0 to 100), `signature` and, of BLEU, `precisions`,
    `bp`, `sys_len` and `ref_len`.

    Args:
        metric: such as `sacrebleu.metrics.BLEU()`.
    """

    def __init__(self, metric: Metric):
        self.metric = metric
        super().__init__(keep_in_memory=True)  # In memory, processes cannot collide.

    def _build_data_dir(self) -> str:
        return ""  # In memory it needs no folder, and the home folder may be read-only.

    def _info(self) -> evaluate.MetricInfo:
        rows = Features(dict.fromkeys(("predictions", "references"), Value("string")))
        return evaluate.MetricInfo(description=type(self).__doc__, citation="Post 2018 (sacreBLEU)", features=rows)

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        score = self.metric.corpus_score(predictions, [references])
        details = {name: getattr(score, name) for name in _DETAILS if hasattr(score, name)}
        return {"score": score.score, "signature": self.metric.get_signature().format(), **details}


def bleu_metric(language: str | None, tokenize: str | None = None) -> BLEU:
    """Make sacreBLEU's `BLEU` with a given tokenizer, or that which it takes for a language.

    Args:
        language: of the references, such as "zh" or "zh_CN"; "zh", "ja" and "ko" have tokenizers of their own.
        tokenize: a name of `BLEU.TOKENIZERS`; None for that of the language, 13a of most.
    """
    return BLEU(tokenize=tokenize, trg_lang=re.split("[-_]", language or "")[0].lower())


def choose_examples(
    sources: Sequence[str], references: Sequence[str], outputs: Sequence[str], count: int = NUM_EXAMPLES
) -> list[dict[str, str]]:
    """Choose translations to show: those equal to the reference first, then the nearest to it by chrF.

    Args:
        sources, references, outputs: texts, row by row.
        count: at most so many.

    Returns:
        `source`, `reference` and `output` of each; rows with an empty source or output are left out, a source counts
        once, and of equally good ones the earlier goes first.
    """
    chrf = CHRF()
    firsts = {}
    for row in zip(sources, references, outputs, strict=True):
        firsts.setdefault(row[0], row)
    rows = [row for row in firsts.values() if row[0].strip() and row[2].strip()]
    rows.sort(key=lambda row: (row[1] != row[2], -chrf.sentence_score(row[2], [row[1]]).score))
    return [dict(zip(("source", "reference", "output"), row, strict=True)) for row in rows[:count]]
