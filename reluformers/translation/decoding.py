"""Translates texts with a trained model, fast and in the given order."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from reluformers.data.batches import length_batches
from reluformers.errors import describe_error
from reluformers.modeling.pipeline_translation import longest_translation
from reluformers.saved_models import load_model, opening, set_precision, to_accelerator

from .length_penalty import wu_length_penalty
from .tokenization import check_tokenizer_fits, describe_unknown, load_tokenizers, unknown_characters

logger = logging.getLogger(__name__)

PENALTIES = ("hf", "wu")
# as recipes spell it → what `generate` takes
EARLY_STOPPING = {"false": False, "true": True, "never": "never"}

# whatever a model was saved with: the same translation each time, and one alone
ONE_BEST = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}

Tokenizers = PreTrainedTokenizerBase | tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def load_translation_model(
    name_or_path: str | Path, *, trust_remote_code: bool = False, dtype: str | None = None
) -> tuple[PreTrainedModel, tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]]:
    """Load a translation model and its tokenizers, and check that they belong together.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
        trust_remote_code: whether to run code of the repository, for models that are not in this library.
        dtype: one of `DTYPES`; None for what the model was saved with. int8 is `quantize_int8`, for CPUs alone, and
            what a folder that torchao has quantised becomes there.

    Returns:
        The model in evaluation mode, on the accelerator if there is one, and (source tokenizer, target tokenizer).

    Raises:
        ValueError: the folder, its weights or its tokenizer are missing or damaged, or do not fit each other.
    """
    options = {} if dtype is None else {"dtype": "float32" if dtype == "int8" else dtype}
    model = load_model(AutoModelForSeq2SeqLM, name_or_path, trust_remote_code=trust_remote_code, **options)
    model = set_precision(to_accelerator(model), dtype)
    tokenizers = load_tokenizers(name_or_path, trust_remote_code=trust_remote_code)
    with opening(name_or_path, "its tokenizer"):
        for tokenizer, side in zip(tokenizers, ("source", "target"), strict=True):
            check_tokenizer_fits(tokenizer, model.config, side=side)
    return model, tokenizers


def translate(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    texts: Iterable[str],
    *,
    num_beams: int = 5,
    length_penalty: float = 1.0,
    penalty: str = "hf",
    max_tokens: int = 4096,
    batch_size: int | None = None,
    progress: bool | Callable[[int], None] | None = False,
    reported: set[str] | None = None,
    **generation_options,
) -> list[str]:
    """Translate texts by beam search.

    Texts are sorted by length and batched, longest first; a batch generates at most the `longest_translation` of its
    longest source. That rule is the pipeline's too, and all records of evaluations are by it; the saved `max_length`
    is for a `generate` that is called without one.
    A source that is longer than the model's positions is cut, with one warning for all; another one names the
    characters that the tokenizer does not know.

    Args:
        model: encoder–decoder model; it is put in evaluation mode and back.
        tokenizers: one for both sides, or (source, target).
        texts: an empty text is allowed.
        num_beams: 1 is greedy search.
        length_penalty: α; hypotheses compete by log P / penalty.
        penalty: "hf" divides by len^α, "wu" by ((5 + len)/6)^α, which is what the papers mean by α = 0.6.
        max_tokens: source tokens of a batch with padding; beams multiply the memory. One long text may exceed it.
        batch_size: most texts of a batch; None for as many as `max_tokens` allows.
        progress: whether to show a progress bar; None for where somebody looks at the terminal; or what is told the
            number of texts of each batch.
        reported: characters that no warning is to name again; those of this one come to it.
        generation_options: more options of `generate`; the papers' search is `early_stopping="never",
            min_new_tokens=1` (no empty translation).

    Returns:
        Translations, in the order of `texts`.

    Raises:
        ValueError: an argument is not allowed, `texts` is empty or holds anything but strings.
    """
    texts = _checked_texts(texts)
    check_search(num_beams=num_beams, length_penalty=length_penalty, max_tokens=max_tokens)
    source_tokenizer, target_tokenizer = tokenizers if isinstance(tokenizers, Sequence) else (tokenizers, tokenizers)
    limit = getattr(model.config, "max_position_embeddings", None)
    lengths = _token_counts(source_tokenizer, texts, limit)
    reported = set() if reported is None else reported
    if unknown := [one for one in unknown_characters(source_tokenizer, texts) if one not in reported]:
        reported.update(unknown)
        logger.warning("%s.", describe_unknown(unknown))
    options = {"num_beams": num_beams, **ONE_BEST, **generation_options}
    if num_beams > 1:
        options["length_penalty"] = length_penalty
    translations = [""] * len(texts)
    is_hidden = None if progress is None else not progress or callable(progress)
    with _search(model, penalty), tqdm(total=len(texts), unit=" sentences", disable=is_hidden, leave=None) as bar:
        advance = progress if callable(progress) else bar.update
        for rows in length_batches(lengths, max_tokens, batch_size):
            tokens = _generate(model, source_tokenizer, [texts[row] for row in rows], limit, options)
            for row, text in zip(rows, target_tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
                translations[row] = text
            advance(len(rows))
    return translations


def saved_search(defaults: GenerationConfig) -> dict[str, Any]:
    """Beams and length penalty of a saved model, as `translate` takes them."""
    penalty = defaults.length_penalty
    return {"num_beams": defaults.num_beams or 1, "length_penalty": 1.0 if penalty is None else penalty}


def check_search(*, num_beams: int, length_penalty: float, max_tokens: int) -> None:
    """Check the arguments of `translate` that are numbers.

    Args:
        num_beams: at least 1.
        length_penalty: finite.
        max_tokens: at least 1.

    Raises:
        ValueError: one of them is out of its range.
    """
    for name, value in (("num_beams", num_beams), ("max_tokens", max_tokens)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if not isfinite(length_penalty):
        raise ValueError(f"length_penalty must be a finite number, got {length_penalty}.")


def _checked_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list, or say what is wrong with them."""
    if isinstance(texts, str):
        raise ValueError(f"texts must be a list of strings, got the string {texts[:50]!r}.")
    texts = list(texts)
    if not texts:
        raise ValueError("There are no texts to translate: got an empty list.")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ValueError(f"Text {number} must be a string, got {text!r}.")
    return texts


def _token_counts(tokenizer: PreTrainedTokenizerBase, texts: list[str], limit: int | None) -> list[int]:
    """Return the number of tokens of each text as the model will see it."""
    lengths = [len(tokens) for tokens in tokenizer(texts, verbose=False)["input_ids"]]
    if 0 in lengths:
        raise ValueError(f"Text {lengths.index(0) + 1} has no tokens; the tokenizer must end texts with </s>.")
    if limit is None:
        return lengths
    if too_long := sum(length > limit for length in lengths):
        logger.warning(
            "%d of %d texts have more than %d tokens, the positions of the model, and are cut (the longest has %d).",
            too_long,
            len(texts),
            limit,
            max(lengths),
        )
    return [min(length, limit) for length in lengths]


def _generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], limit: int | None, options: dict
) -> torch.Tensor:
    """Return the target tokens [rows, target_len] of one batch."""
    batch = tokenizer(
        texts,
        padding=True,
        truncation=limit is not None,
        max_length=limit,
        return_attention_mask=True,
        return_tensors="pt",
    ).to(model.device)
    options = {
        # one setting, as a saved one beside it would bring a warning for each batch; the start token counts
        "max_length": 1 + longest_translation(batch["input_ids"].shape[1], model.config),
        "max_new_tokens": None,
        **{name: batch[name] for name in ("input_ids", "attention_mask")},
        **options,
    }
    try:
        return model.generate(**options)
    except Exception as error:
        saved, model.generation_config = model.generation_config, GenerationConfig.from_model_config(model.config)
        try:
            model.generate(**options)
        except Exception:
            raise error from None
        finally:
            model.generation_config = saved
        # a fault that is gone without the saved settings is theirs
        raise ValueError(
            f"generation_config.json of {model.name_or_path}: generate cannot do what it says "
            f"({type(error).__name__}: {describe_error(error)})"
        ) from error


@contextmanager
def _search(model: PreTrainedModel, penalty: str) -> Iterator[None]:
    """Put the model in the state for searching, and back."""
    if penalty not in PENALTIES:
        raise ValueError(f"penalty={penalty!r} is not one of {list(PENALTIES)}.")
    training = model.training
    model.eval()
    try:
        with wu_length_penalty(model) if penalty == "wu" else nullcontext(), torch.inference_mode():
            yield
    finally:
        model.train(training)
