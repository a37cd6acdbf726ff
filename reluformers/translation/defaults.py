"""The recipe of a translation model where there are sentence pairs and nothing else: sizes that follow from them."""

from pathlib import Path
from typing import Any

import torch

from reluformers.training.recipe import read_yaml

from .loading import load_translation_split

Source = str | dict[str, str]

TOKENS_PER_WORD = 1.3  # of vocabularies of this size
BATCH_FILL = 0.9  # of it, without padding
UPDATES = 10_000
HELD_OUT_SEED = 1


def default_recipe(
    train: Source, source_lang: str, target_lang: str, validation: Source | None = None
) -> dict[str, Any]:
    """Sections of default_recipe.yaml, with the sizes that follow from some sentence pairs.

    With W words on both sides, vocabulary: 4·√W tokens, 1,000 to 32,000. Training: 10,000 updates, though 3 to 50
    epochs, or until five evaluations are no better. Without a validation set, one in twenty rows, at most 1,000, is
    held out for it.

    Args:
        train: a file of rows, or {"source": file, "target": file} of text.
        source_lang, target_lang: languages, keys or columns of the rows.
        validation: as `train`.

    Raises:
        ValueError: the training set cannot be read.
    """
    rows = load_translation_split({"train": train}, "train", source_lang=source_lang, target_lang=target_lang)
    characters: set[str] = set()
    counts = []
    for row in rows:
        characters.update(row["source"], row["target"])
        counts.append((_count_words(row["source"]), _count_words(row["target"])))
    words, longer = sum(map(sum, counts)), sum(map(max, counts))
    vocab_size = round(min(max(4 * words**0.5, 1000), 32_000), -2) + round(len(characters), -2)
    sections = read_yaml(Path(__file__).with_name("default_recipe.yaml"))
    data, training = sections["data"], sections["training"]
    per_epoch = max(round(longer * TOKENS_PER_WORD / (training["max_tokens"] * BATCH_FILL)), 1)
    epochs = min(max(round(UPDATES / per_epoch), 3), 50)
    updates = epochs * per_epoch
    sections["tokenizer"] = {"vocab_size": int(vocab_size)}
    data |= {"train": train, "source_lang": source_lang, "target_lang": target_lang}
    if validation is None:
        data |= {"held_out": min(max(len(rows) // 20, 1), 1000), "held_out_seed": HELD_OUT_SEED}
    else:
        data["validation"] = validation
    training |= {
        "num_train_epochs": epochs,
        "warmup_steps": min(max(updates // 10, 50), 2000),
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "ema_decay": round(1 - 1 / min(max(updates / 20, 10), 2000), 5),
        "logging_steps": min(max(updates // 100, 1), 100),
        **dict.fromkeys(("eval_steps", "save_steps"), min(max(per_epoch, 200), 2000)),
    }
    return sections


def _count_words(text: str) -> int:
    """Number of words, of a language that does not separate them about that."""
    words = len(text.split())
    return words if len(text) < 15 * words else len(text) // 2
