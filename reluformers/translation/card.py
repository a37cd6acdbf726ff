"""What a model card says of a translation model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from reluformers.errors import UserError
from reluformers.examples import Example

from .decoding import load_translation_model, translate

_LANGUAGES = {
    "be": "Belarusian",
    "az": "Azerbaijani",
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "gl": "Galician",
    "it": "Italian",
    "ja": "Japanese",
    "ro": "Romanian",
    "ru": "Russian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}


def template_values(config: PreTrainedConfig, languages: Sequence[str]) -> dict[str, Any]:
    """What the card's template asks for beside what it asks of every model.

    Args:
        config: of the model.
        languages: codes of source and target, as far as they are known.
    """
    return {
        "languages": [_LANGUAGES.get(code, code) for code in languages],
        "positions": config.max_position_embeddings,
    }


def describe_shape(config: PreTrainedConfig) -> str:
    """Sizes of the model in a line."""
    return (
        f"width {config.d_model}, {config.encoder_layers} + {config.decoder_layers} layers, "
        f"{config.encoder_attention_heads} heads, FFN {config.encoder_ffn_dim} ({config.activation_function}), "
        f"{config.norm_position}-norm"
    )


def describe_inputs(config: PreTrainedConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the card's training table on what goes into the model."""
    kind = "" if (recipe.get("tokenizer") or {}).get("path") else "BPE, "
    if config.decoder_vocab_size is not None:
        return {"tokenizer": f"{kind}{config.vocab_size:,} source and {config.decoder_vocab_size:,} target tokens"}
    return {"tokenizer": f"{kind}{config.vocab_size:,} tokens for both sides"}


def answer_examples(folder: str | Path, inputs: Sequence[str | Path], output: str | Path) -> list[Example]:
    """Translate texts as the saved model does by default.

    Args:
        folder: of the model.
        inputs: texts to translate.
        output: where the card goes; nothing is written.

    Returns:
        An example of each.

    Raises:
        UserError: the model cannot be loaded, or a text is empty.
    """
    texts = [str(text) for text in inputs]
    if not texts:
        return []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise UserError(f"example {number} is empty; give a text")
    model, tokenizers = load_translation_model(folder)
    defaults = model.generation_config
    options = {"num_beams": defaults.num_beams or 1, "length_penalty": defaults.length_penalty or 1.0}
    answers = translate(model, tokenizers, texts, **options)
    return [
        Example(text, answer, f"Example {number}")
        for number, (text, answer) in enumerate(zip(texts, answers, strict=True), start=1)
    ]
