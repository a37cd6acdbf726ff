"""The translation demo from corpus to answer: each step is the library's own, as in any other training run."""

import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from reluformers.clean_process import answer_in_clean_process
from reluformers.errors import UserError
from reluformers.files import atomic_directory, iterate_lines
from reluformers.translation.decoding import load_translation_model, translate

from .corpus import KINDS, DemoCorpus, Row

# characters; the recipe's model has a position for each, were every one a token
MAX_TEXT_LENGTH = 250
CORPUS_FILES = ("train.jsonl", "validation.jsonl")


class CleanTranslation(NamedTuple):
    """A translation, and the class that made it: of the code in the saved folder."""

    text: str
    model_class: str


def check_text(text: str) -> str:
    """Check a line that a user wants translated.

    Args:
        text: the line.

    Returns:
        The line with runs of white space as single blanks.

    Raises:
        UserError: the text is empty, too long or not Unicode.
    """
    text = " ".join(text.split())
    if not text:
        raise UserError('TEXT is empty; give one line, such as make demo TEXT="in 5 days"')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"TEXT is not valid UTF-8 at character {error.start + 1}; type it again as UTF-8") from error
    if (length := len(unicodedata.normalize("NFKC", text))) > MAX_TEXT_LENGTH:
        raise UserError(f"TEXT has {length} characters, at most {MAX_TEXT_LENGTH} are allowed; translate it in parts")
    return text


def write_corpus(corpus: DemoCorpus, folder: Path) -> dict[str, Path]:
    """Write the corpus as any other parallel data: JSON lines with a "translation" column.

    Args:
        corpus: what to write.
        folder: where to; an earlier corpus is replaced.

    Returns:
        Split → file.

    Raises:
        UserError: the folder holds something else.
    """
    _check_corpus_folder(folder)
    splits = {"train": corpus.train, "validation": corpus.held_out}
    with atomic_directory(folder, overwrite=True) as temporary:
        for split, rows in splits.items():
            lines = [
                json.dumps({"kind": row.kind, "translation": {"en": row.source, "de": row.target}}, ensure_ascii=False)
                for row in rows
            ]
            (temporary / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {split: folder / f"{split}.jsonl" for split in splits}


def _check_corpus_folder(folder: Path) -> None:
    """Refuse to replace files that `write_corpus` has not written."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        first = next(iterate_lines(path), "") if path.name in CORPUS_FILES and path.is_file() else ""
        if not first.startswith('{"kind": '):
            raise UserError(
                f"{folder}: holds {path.name}, which is no corpus of the demo; choose another output folder"
            )


def translate_examples(folder: Path, rows: Iterable[Row], count: int = 10) -> list[tuple[Row, str]]:
    """Translate rows of different kinds.

    Args:
        folder: of the model.
        rows: to choose from, the first of each kind.
        count: at most so many kinds.

    Returns:
        Rows with their translations, in the order of `KINDS`.
    """
    first = {row.kind: row for row in reversed(list(rows))}
    chosen = [first[kind] for kind in KINDS if kind in first][:count]
    model, tokenizers = load_translation_model(folder)
    return list(zip(chosen, translate(model, tokenizers, [row.source for row in chosen]), strict=True))


def translate_in_clean_process(folder: Path, text: str) -> CleanTranslation:
    """Open a saved folder where `reluformers` cannot be imported, and translate with 5 beams.

    Args:
        folder: of the model.
        text: one line, as `check_text` returns it.

    Returns:
        The translation and the model's class.

    Raises:
        UserError: there is no model.
        RuntimeError: the process failed; the message is the end of what it said.
    """
    answer = answer_in_clean_process("translation", folder, text.encode())
    return CleanTranslation(answer["translation"], answer["model_class"])
