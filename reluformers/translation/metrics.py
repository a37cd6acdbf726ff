"""BLEU as a language needs it, and the translations of an evaluation that are worth showing."""

import re
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF

NUM_EXAMPLES = 5


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
