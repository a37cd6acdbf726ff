"""The recipe of a translation model where there are sentence pairs and nothing else: sizes that follow from them."""

from typing import Any

import torch

from .loading import load_translation_split

Source = str | dict[str, str]

TOKENS_PER_WORD = 1.3  # of vocabularies of this size
MAX_TOKENS = 2000  # of a batch
BATCH_FILL = 0.9  # of it, without padding
UPDATES = 10_000
HELD_OUT_SEED = 1


def default_recipe(
    train: Source, source_lang: str, target_lang: str, validation: Source | None = None
) -> dict[str, Any]:
    """Sections of a recipe for a small model, that of scripts/recipes/tatoeba_en_de.yaml, on some sentence pairs.

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
    per_epoch = max(round(longer * TOKENS_PER_WORD / (MAX_TOKENS * BATCH_FILL)), 1)
    epochs = min(max(round(UPDATES / per_epoch), 3), 50)
    updates = epochs * per_epoch
    interval = min(max(per_epoch, 200), 2000)
    held_out = {"validation": validation}
    if validation is None:
        held_out = {"held_out": min(max(len(rows) // 20, 1), 1000), "held_out_seed": HELD_OUT_SEED}
    return {
        "task": "translation",
        "model": {
            "preset": "reluformer",
            "d_model": 256,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 1024,
            "decoder_ffn_dim": 1024,
            "norm_position": "pre",
            "max_position_embeddings": 256,
            "tying": "all",
            "dropout": 0.2,
            "attention_dropout": 0.0,
            "label_smoothing": 0.1,
        },
        "tokenizer": {"vocab_size": int(vocab_size)},
        "data": {
            "train": train,
            **held_out,
            "source_lang": source_lang,
            "target_lang": target_lang,
            "max_length": 128,
            "max_length_ratio": 4.0,
        },
        "training": {
            "max_tokens": MAX_TOKENS,
            "num_train_epochs": epochs,
            "learning_rate": 1.2e-3,
            "lr_scheduler_type": "inverse_sqrt",
            "warmup_steps": min(max(updates // 10, 50), 2000),
            "optim": "adamw_torch_fused",
            "adam_beta2": 0.98,
            "max_grad_norm": 1.0,
            "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
            "seed": 1,
            "ema_decay": round(1 - 1 / min(max(updates / 20, 10), 2000), 5),
            "eval_strategy": "steps",
            "eval_steps": interval,
            "early_stopping_patience": 5,
            "save_strategy": "steps",
            "save_steps": interval,
            "save_total_limit": 2,
            "logging_steps": min(max(updates // 100, 1), 100),
        },
        "decoding": {"num_beams": 5, "max_new_tokens": 128},
    }


def _count_words(text: str) -> int:
    """Number of words, of a language that does not separate them about that."""
    words = len(text.split())
    return words if len(text) < 15 * words else len(text) // 2
