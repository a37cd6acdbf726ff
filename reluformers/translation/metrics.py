"""BLEU and chrF by sacreBLEU as `evaluate` metrics that work without network and write no files; examples."""

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import evaluate
from datasets import Features, List, Value
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric, Score

NUM_EXAMPLES = 5


class _SacreMetric(evaluate.Metric):
    """One sacreBLEU metric; predictions and references stay in memory, so that processes cannot collide.

    `compute(predictions=…, references=…, **options)` takes the options of `metric`. A reference is a text, or in all
    rows a list of texts, whose number may differ.

    Returns:
        dict: `score` (0 to 100), `signature` and `details`.
    """

    metric: ClassVar[type[Metric]]
    details: ClassVar[tuple[str, ...]]

    def __init__(self, config_name: str | None = None, **kwargs):
        super().__init__(config_name, **{"keep_in_memory": True, **kwargs})

    def _build_data_dir(self) -> str:
        # in memory no folder is needed, and the home folder may be read-only
        return "" if self.keep_in_memory else super()._build_data_dir()

    def _info(self) -> evaluate.MetricInfo:
        text = Value("string")
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=type(self).__doc__,
            inputs_description=_SacreMetric.__doc__,
            features=[Features({"predictions": text, "references": kind}) for kind in (List(text), text)],
        )

    def _compute(self, predictions: list[str], references: list[Any], **options: Any) -> dict[str, Any]:
        rows = [[row] if isinstance(row, str) else row for row in references]
        score, signature = corpus_score(self.metric, options, predictions, rows)
        return {"score": score.score, "signature": signature} | {name: getattr(score, name) for name in self.details}


class SacreBLEU(_SacreMetric):
    """Corpus BLEU with sacreBLEU's signature.

    BLEU = BP · exp(¼ Σ_{n=1..4} log p_n), BP = min(1, exp(1 − reference length / system length)), in percent;
    `tokenize="none"` scores text that is already tokenised (the "tokenised BLEU" of the papers).

    Source: Papineni et al. 2002; Post 2018 (sacreBLEU).
    """

    metric, details = BLEU, ("precisions", "counts", "totals", "bp", "sys_len", "ref_len")


class ChrF(_SacreMetric):
    """Corpus chrF with sacreBLEU's signature.

    chrF = (1 + β²) · P·R / (β²·P + R) over character n-grams up to 6, β = 2, in percent; `word_order=2` is chrF++.

    Source: Popović 2015; Post 2018 (sacreBLEU).
    """

    metric, details = CHRF, ("char_order", "word_order", "beta")


def bleu_options(language: str | None, tokenize: str | None = None) -> dict[str, str | None]:
    """Options of sacreBLEU's `BLEU`: a given tokenizer, or that which it takes for a language.

    Args:
        language: of the references, such as "zh" or "zh_CN"; "zh", "ja" and "ko" have tokenizers of their own.
        tokenize: a name of `BLEU.TOKENIZERS`; None for that of the language, 13a of most.

    Raises:
        ValueError, ImportError, RuntimeError, OSError: there is no such tokenizer, or it is not installed.
    """
    options = {"tokenize": tokenize, "trg_lang": re.split("[-_]", language or "")[0].lower()}
    BLEU(**options)
    return options


def corpus_score(
    metric_class: Callable[..., Metric], options: dict, predictions: list[str], references: list[list[str]]
) -> tuple[Score, str]:
    """Score translations by one of sacreBLEU's metrics; gives its score and its signature.

    Args:
        metric_class: `BLEU` or `CHRF` of `sacrebleu.metrics`.
        options: of it.
        predictions: detokenised translations.
        references: of each of them, one or several.
    """
    metric = metric_class(**options)
    # sacreBLEU wants one stream per reference number; None marks a missing further reference
    streams = [list(stream) for stream in zip_longest(*references)]
    score = metric.corpus_score(list(predictions), streams)
    return score, metric.get_signature().format()


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
