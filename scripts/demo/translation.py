"""The translation demo from corpus to answer: each step is the library's own, as in any other training run."""

import json
from collections.abc import Sequence
from pathlib import Path

from demo.corpus import KINDS, DemoCorpus, Row
from reluformers.files import atomic_directory
from reluformers.publish.clean_process import answer_in_clean_process
from reluformers.translation.decoding import load_translation_model, saved_search, translate
from reluformers.translation.tokenization import encode_texts, load_tokenizers

README = "README.md"
CORPUS_CARD = """---
pretty_name: names, dates and amounts of the Unicode locale data (CLDR)
license: Unicode-3.0
language: [en, de]
---

English and German names of countries, languages, currencies and cities, dates, times and amounts, as translators
entered them in CLDR, composed by `make demo` into lines by way of Babel; no running text.
"""


def write_corpus(corpus: DemoCorpus, folder: Path) -> dict[str, Path]:
    """Write the corpus as JSON lines with a "translation" column, in place of an earlier one; split → file."""
    splits = {"train": corpus.train, "validation": corpus.held_out}
    with atomic_directory(folder, overwrite=True) as temporary:
        for split, rows in splits.items():
            lines = [
                json.dumps({"kind": row.kind, "translation": {"en": row.source, "de": row.target}}, ensure_ascii=False)
                for row in rows
            ]
            (temporary / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (temporary / README).write_text(CORPUS_CARD, encoding="utf-8")
    return {split: folder / f"{split}.jsonl" for split in splits}


def translate_rows(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Translate rows with a saved model, as it does by default."""
    model, tokenizers = load_translation_model(folder)
    return translate(model, tokenizers, [row.source for row in rows], **saved_search(model.generation_config))


def first_of_each_kind(rows: Sequence[Row], translations: Sequence[str], count: int) -> list[tuple[Row, str]]:
    """The first row of each kind with its translation, in the order of `KINDS`, at most `count`."""
    first = {row.kind: (row, text) for row, text in reversed(list(zip(rows, translations, strict=True)))}
    return [first[kind] for kind in KINDS if kind in first][:count]


def translate_in_clean_process(folder: Path, text: str) -> dict[str, str]:
    """Translate a line with 5 beams where `reluformers` cannot be imported.

    Returns:
        `translation_text`, its `model_class`, and `warning` of characters that the tokenizer does not know.
    """
    answer = answer_in_clean_process("translation", folder, text.encode())
    _, warning = encode_texts(load_tokenizers(folder)[0], [text])
    return {**answer, "warning": warning or ""}
