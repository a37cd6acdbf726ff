"""BLEU and chrF by sacreBLEU as `evaluate` metrics that work without network and write no files."""

import re
from collections.abc import Callable
from itertools import zip_longest

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.base import Score as MetricScore

from reluformers.errors import describe_error
from reluformers.evaluation.in_memory_metric import InMemoryMetric

_INPUTS_DESCRIPTION = """
Args:
    predictions: list of str, detokenised system output.
    references: list of str, or list of lists of str (several references; their number may differ from row to row).
"""


class _SacreMetric(InMemoryMetric):
    """Feeds one sacreBLEU metric."""

    description: str
    citation: str

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.description,
            citation=self.citation,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
            reference_urls=["https://github.com/mjpost/sacrebleu"],
        )

    def add(self, *, prediction: str, reference: str | list[str]) -> None:
        """Add one prediction with its reference(s)."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: list[str], references: list[str] | list[list[str]]) -> None:
        """Add predictions with their references.

        Raises:
            ValueError: the lists differ in length, or hold anything but text (`evaluate` would turn it into text).
        """
        if len(predictions) != len(references):
            raise ValueError(f"Got {len(predictions)} predictions but {len(references)} references.")
        rows = [[row] if isinstance(row, str) else row for row in references]
        for number, (prediction, row) in enumerate(zip(predictions, rows, strict=True), start=1):
            if not isinstance(prediction, str):
                raise ValueError(f"Prediction {number} must be a string, got {prediction!r}.")
            if not isinstance(row, list | tuple) or not row or not all(isinstance(text, str) for text in row):
                raise ValueError(f"Reference {number} must be a string or a list of strings, got {row!r}.")
        super().add_batch(predictions=list(predictions), references=rows)


class SacreBLEU(_SacreMetric):
    """Corpus BLEU with sacreBLEU's signature.

    BLEU = BP · exp(¼ Σ_{n=1..4} log p_n), BP = min(1, exp(1 − reference length / system length)), in percent.

    `compute(predictions=…, references=…, tokenize="13a", lowercase=False, force=True, …)` takes the options of
    `sacrebleu.metrics.BLEU`: `tokenize="none"` scores text that is already tokenised (the "tokenised BLEU" of the
    papers), `force=True` silences the warning about it.

    Returns:
        dict: `score` (0 to 100), `signature`, `precisions` (four, in percent), `counts`, `totals`, `bp`, `sys_len`,
        `ref_len` (tokens).

    Source: Papineni et al. 2002; Post 2018 (sacreBLEU).
    """

    description = "Corpus BLEU of sacreBLEU, with its signature."
    citation = "Papineni et al. 2002, BLEU. Post 2018, A Call for Clarity in Reporting BLEU Scores."

    def _compute(self, predictions, references, **options) -> dict:
        tokenizer = options.get("tokenize")
        if tokenizer is not None and tokenizer not in BLEU.TOKENIZERS:
            raise ValueError(f"tokenize={tokenizer!r} is not one of {sorted(BLEU.TOKENIZERS)}.")
        score, signature = corpus_score(BLEU, options, predictions, references)
        return {
            "score": score.score,
            "signature": signature,
            "precisions": score.precisions,
            "counts": score.counts,
            "totals": score.totals,
            "bp": score.bp,
            "sys_len": score.sys_len,
            "ref_len": score.ref_len,
        }


class ChrF(_SacreMetric):
    """Corpus chrF with sacreBLEU's signature.

    chrF = (1 + β²) · P·R / (β²·P + R) over character n-grams up to 6, β = 2, in percent; `word_order=2` is chrF++.

    `compute(predictions=…, references=…, word_order=0, char_order=6, beta=2, …)` takes the options of
    `sacrebleu.metrics.CHRF`.

    Returns:
        dict: `score` (0 to 100), `signature`, `char_order`, `word_order`, `beta`.

    Source: Popović 2015; Post 2018 (sacreBLEU).
    """

    description = "Corpus chrF of sacreBLEU, with its signature."
    citation = "Popović 2015, chrF. Post 2018, A Call for Clarity in Reporting BLEU Scores."

    def _compute(self, predictions, references, **options) -> dict:
        score, signature = corpus_score(CHRF, options, predictions, references)
        return {
            "score": score.score,
            "signature": signature,
            "char_order": score.char_order,
            "word_order": score.word_order,
            "beta": score.beta,
        }


def bleu_options(language: str | None, tokenize: str | None = None) -> dict[str, str | None]:
    """Options of sacreBLEU's `BLEU`: a given tokenizer, or that which it takes for a language.

    Args:
        language: of the references, such as "zh" or "zh_CN"; "zh", "ja" and "ko" have tokenizers of their own.
        tokenize: a name of `BLEU.TOKENIZERS`; None for that of the language, 13a of most.

    Raises:
        ValueError: there is no such tokenizer, or a package that it needs is not installed.
    """
    options = {"tokenize": tokenize, "trg_lang": re.split("[-_]", language or "")[0].lower()}
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize {tokenize!r} is not one of {', '.join(sorted(BLEU.TOKENIZERS))}")
    try:
        BLEU(**options)
    except (RuntimeError, ImportError, OSError) as error:  # of a package or a file that is not there
        asked = f"tokenize {tokenize!r}" if tokenize else f"sacreBLEU's tokenizer of {options['trg_lang']!r}"
        raise ValueError(f"{asked} cannot be used: {describe_error(error)}") from error
    return options


def corpus_score(
    metric_class: Callable[..., Metric], options: dict, predictions: list[str], references: list[list[str]]
) -> tuple[MetricScore, str]:
    """Score translations by one of sacreBLEU's metrics.

    Args:
        metric_class: `BLEU` or `CHRF` of `sacrebleu.metrics`.
        options: of it.
        predictions: detokenised translations.
        references: of each of them, one or several.

    Returns:
        sacreBLEU's score, and its signature.

    Raises:
        ValueError: there are no predictions, or an option is not known.
    """
    if not predictions:
        raise ValueError("There are no predictions to score.")
    try:
        metric = metric_class(**options)
    except TypeError as error:
        raise ValueError(f"sacreBLEU does not know one of the options {sorted(options)}: {error}.") from error
    # sacreBLEU wants one stream per reference number; None marks a missing further reference
    streams = [list(stream) for stream in zip_longest(*references)]
    score = metric.corpus_score(list(predictions), streams)
    return score, metric.get_signature().format()
