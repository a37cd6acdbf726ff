"""What a model card says of a translation model."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedConfig

from reluformers.data.sources import load_held_out
from reluformers.evaluation.attention_report import attention_report
from reluformers.evaluation.attention_statistics import AttentionReport
from reluformers.evaluation.examples import Example, read_examples

from .decoding import load_translation_model, saved_search, translate
from .evaluation import teacher_forced_batches
from .loading import load_translation_split
from .tokenization import TARGET_FOLDER

SHOWN_EXAMPLES = 3
# pairs of a held-out set that examples are chosen from, and those that the attention is measured on
TRANSLATED_PAIRS, MEASURED_PAIRS = 16, 200
# pictures that a run draws beside its curves
RUN_PICTURES: tuple[str, ...] = ()
_PARTS = ("source", "reference", "output")

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
        "target_folder": None if config.decoder_vocab_size is None else TARGET_FOLDER,
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
    """
    if not inputs:
        return []
    texts = [str(text) for text in inputs]
    rows = zip(texts, _translations(folder, texts), strict=True)
    return [Example(text, answer, f"Example {number}") for number, (text, answer) in enumerate(rows, start=1)]


def held_out_examples(folder: str | Path, run: Any, output: str | Path) -> list[Example]:
    """Sentences that the model has not learned from, with its translations; those first that match the reference.

    Args:
        folder: of the model.
        run: its `FinishedRun`: `examples` of its results, which a training run writes; else rows of its data.
        output: where the card goes; nothing is written.

    Returns:
        At most three examples; none where there is nothing held out that can be read here.
    """
    known = read_examples(run.results, *_PARTS) or _translate_held_out(folder, run)
    known = sorted(known, key=lambda row: row["output"].strip() != row["reference"].strip())
    return [
        Example(row["source"], row["output"], f"Example {number}", row["reference"])
        for number, row in enumerate(known[:SHOWN_EXAMPLES], start=1)
    ]


def measure_attention(folder: str | Path, run: Any) -> tuple[AttentionReport, str] | None:
    """Statistics of the attention on held-out pairs, and in words which these were; None where none can be read."""
    found = _held_out_pairs(run)
    if found is None:
        return None
    pairs, split = found
    rows = pairs.select(range(min(len(pairs), MEASURED_PAIRS)))
    model, tokenizers = load_translation_model(folder)
    batches = teacher_forced_batches(rows, *tokenizers, max_length=model.config.max_position_embeddings)
    return attention_report(model, batches), f"{len(rows):,} pairs of `{split}`"


def _translations(folder: str | Path, texts: list[str]) -> list[str]:
    model, tokenizers = load_translation_model(folder)
    return translate(model, tokenizers, texts, **saved_search(model.generation_config))


def _translate_held_out(folder: str | Path, run: Any) -> list[dict[str, str]]:
    found = _held_out_pairs(run)
    rows = [] if found is None else found[0].select(range(min(len(found[0]), TRANSLATED_PAIRS)))
    shown = [{"source": row["source"], "reference": row["target"]} for row in rows if row["source"].strip()]
    answers = _translations(folder, [row["source"] for row in shown]) if shown else []
    return [{**row, "output": answer} for row, answer in zip(shown, answers, strict=True)]


def _held_out_pairs(run: Any) -> tuple[Dataset, str] | None:
    """Pairs of the test set, else of the validation set, if they lie on this machine, and the name of the split."""
    data = run.section("data")
    names = ("source_lang", "target_lang", "translation_column")
    known = {name: data[name] for name in names if data.get(name) is not None}
    if not set(names[:2]) <= known.keys():
        return None
    return load_held_out(data, partial(load_translation_split, **known))
