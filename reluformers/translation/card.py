"""What a model card says of a translation model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from reluformers.evaluation.results import Example

from .decoding import load_translation_model, saved_search, translate
from .tokenization import TARGET_FOLDER

SHOWN_EXAMPLES = 3


def template_values(config: PreTrainedConfig, languages: Sequence[str]) -> dict[str, Any]:
    """What the card's template asks for beside what it asks of every model.

    Args:
        config: of the model.
        languages: codes of source and target, as far as they are known.
    """
    return {
        "languages": [LANGUAGES[code].title() if code in LANGUAGES else code for code in languages],
        "positions": config.max_position_embeddings,
        "target_folder": None if config.decoder_vocab_size is None else TARGET_FOLDER,
    }


def describe_shape(config: PreTrainedConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the card's training table on the sizes of the model and its tokenizer."""
    shape = (
        f"width {config.d_model}, {config.encoder_layers} + {config.decoder_layers} layers, "
        f"{config.encoder_attention_heads} heads, FFN {config.encoder_ffn_dim} ({config.activation_function}), "
        f"{config.norm_position}-norm"
    )
    kind = "" if (recipe.get("tokenizer") or {}).get("path") else "BPE, "
    tokens = f"{config.vocab_size:,} tokens for both sides"
    if config.decoder_vocab_size is not None:
        tokens = f"{config.vocab_size:,} source and {config.decoder_vocab_size:,} target tokens"
    return {"shape": shape, "tokenizer": f"{kind}{tokens}"}


def answer_examples(folder: str | Path, inputs: Sequence[str | Path], output: str | Path) -> list[Example]:
    """Translate texts as the saved model does by default.

    Args:
        folder: of the model.
        inputs: texts to translate.
        output: where the card goes; nothing is written.
    """
    if not inputs:
        return []
    texts = [str(text) for text in inputs]
    model, tokenizers = load_translation_model(folder)
    answers = translate(model, tokenizers, texts, **saved_search(model.generation_config))
    rows = enumerate(zip(texts, answers, strict=True), start=1)
    return [Example(text, answer, f"Example {number}") for number, (text, answer) in rows]


def held_out_examples(folder: str | Path, run: Any, output: str | Path) -> list[Example]:
    """At most three sentences that a training run wrote into its results; those first that match the reference.

    Args:
        folder: of the model.
        run: its `FinishedRun`.
        output: where the card goes; nothing is written.
    """
    known = run.results.get("examples") or []
    known = sorted(known, key=lambda row: row["output"].strip() != row["reference"].strip())
    return [
        Example(row["source"], row["output"], f"Example {number}", row["reference"])
        for number, row in enumerate(known[:SHOWN_EXAMPLES], start=1)
    ]
