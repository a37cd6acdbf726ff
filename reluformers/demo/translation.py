"""The demo from corpus to translation: each step is the library's own, as in any other training run."""

import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from reluformers.errors import UserError
from reluformers.evaluation.translation import load_translation_model, translate
from reluformers.files import atomic_directory, iterate_lines
from reluformers.training import TranslationRecipe, train_translation
from reluformers.training.run import RECIPE_FILE

from .corpus import KINDS, DemoCorpus, Row

# characters; the recipe's model has a position for each, were every one a token
MAX_TEXT_LENGTH = 250
CORPUS_FILES = ("train.jsonl", "validation.jsonl")
CLEAN_PROCESS = Path(__file__).with_name("clean_process.py")


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


def check_output(folder: Path) -> None:
    """Refuse to replace a folder that no training run has made.

    Args:
        folder: where the model is to go.

    Raises:
        UserError: the folder holds something else.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECIPE_FILE).is_file():
        raise UserError(f"{folder}: holds something that is no trained model; choose another folder")


def _check_corpus_folder(folder: Path) -> None:
    """Refuse to replace files that `write_corpus` has not written."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        first = next(iterate_lines(path), "") if path.name in CORPUS_FILES and path.is_file() else ""
        if not first.startswith('{"kind": '):
            raise UserError(
                f"{folder}: holds {path.name}, which is no corpus of the demo; choose another output folder"
            )


def train_model(recipe: TranslationRecipe, files: dict[str, Path], folder: Path, report: Callable[[str], None]) -> dict:
    """Train, score on the held-out rows and save, whole or not at all.

    Args:
        recipe: with everything but the data.
        files: "train" and "validation", as `write_corpus` returns them.
        folder: where the model goes; an earlier one is replaced when the new one is finished.
        report: takes lines for the user.

    Returns:
        Results of `train_translation`.
    """
    data = replace(recipe.data, **{split: str(file) for split, file in files.items()})
    with atomic_directory(folder, overwrite=True) as temporary:
        return train_translation(replace(recipe, data=data), temporary, report=report)


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

    The process is offline and isolated (`python -I`: no PYTHONPATH, no current folder); transformers runs the code
    that lies in the folder.

    Args:
        folder: of the model.
        text: one line, as `check_text` returns it.

    Returns:
        The translation and the model's class.

    Raises:
        UserError: there is no model.
        RuntimeError: the process failed; the message is the end of what it said.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no model; run make demo first")
    with tempfile.TemporaryDirectory() as modules:
        process = subprocess.run(
            [sys.executable, "-I", str(CLEAN_PROCESS), str(folder.resolve())],
            input=text.encode(),
            capture_output=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": modules},
            check=False,
        )
    if process.returncode:
        raise RuntimeError(f"{folder} cannot be opened without reluformers:\n{process.stderr.decode()[-2000:]}")
    answer = json.loads(process.stdout)
    if answer["has_library"]:
        raise RuntimeError("the clean process can import reluformers, so it shows nothing")
    return CleanTranslation(answer["translation"], answer["model_class"])
