"""Translates texts with a trained model, fast and in the given order."""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel
from transformers.utils import cached_file

from reluformers.configuration.field_checks import check_number
from reluformers.data.batching import length_batches, pad_rows
from reluformers.modeling.pipeline_translation import TOKENIZING, longest_translation
from reluformers.saved_models import load_model, set_precision, to_accelerator
from reluformers.training.yaml_files import read_yaml
from reluformers_kernels import SearchMixin, explain_search

from .tokenization import Tokenizer, Tokenizers, encode_texts, load_tokenizers

logger = logging.getLogger(__name__)

# Whatever a model was saved with, translating gives one translation, the same each time.
ONE_BEST = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
# The penalty is ((_OFFSET + length) / (_OFFSET + 1)) ** alpha: Wu et al. 2016, eq. 14.
_OFFSET = 5
# These files know the languages: the recipe of a training run, and a file of OPUS-MT models and their offspring.
_LANGUAGE_FILES = {"recipe.yaml": "data", "tokenizer_config.json": None}
_LANGUAGES = ("source_lang", "target_lang")


@dataclass(kw_only=True)
class Search:
    """How a model translates, in recipes, in evaluations and as keywords of `translate`.

    Args:
        num_beams: width of the beam; 1 for greedy search.
        length_penalty: α; the search ranks translations by log P / penalty.
        penalty: hf is len^α, as in transformers; wu is ((5 + len)/6)^α, as in the papers.
        early_stopping: when a beam search ends, as in transformers; the papers have never.
        min_new_tokens: shortest output, in tokens; 1 forbids an empty output, as in the papers.
    """

    num_beams: int = 5
    length_penalty: float | int = 1.0
    penalty: Literal["hf", "wu"] = "hf"
    early_stopping: bool | Literal["never"] = False
    min_new_tokens: int = 0

    def __post_init__(self):
        # A recipe's search runs after its training, and an error there would come hours too late.
        check_number("decoding", "num_beams", self.num_beams, "[1, inf)", integer=True)

    def generation_options(self) -> dict[str, Any]:
        """What `generate` and a `GenerationConfig` need of it, all but the penalty."""
        options: dict[str, Any] = {"num_beams": self.num_beams}
        if self.num_beams > 1:
            options |= {"length_penalty": float(self.length_penalty), "early_stopping": self.early_stopping}
        if self.min_new_tokens > 0:
            options["min_new_tokens"] = self.min_new_tokens
        return options

    def translation_options(self) -> dict[str, Any]:
        """What `translate` needs of it."""
        return {**self.generation_options(), "penalty": self.penalty}


def load_translation_model(
    name_or_path: str | Path, *, trust_remote_code: bool = False, dtype: str | None = None
) -> tuple[PreTrainedModel, Tokenizers]:
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
    return model, load_tokenizers(name_or_path, model.config, trust_remote_code=trust_remote_code)


def translate(
    model: PreTrainedModel,
    tokenizers: Tokenizer | Tokenizers,
    texts: Iterable[str],
    *,
    penalty: str = "hf",
    max_tokens: int = 4096,
    batch_size: int | None = None,
    progress: bool | Callable[[int], None] | None = False,
    **search: Any,
) -> list[str]:
    """Translate texts by beam search.

    Texts are sorted by length and batched, longest first; a batch generates at most the `longest_translation` of its
    longest source, as the pipeline does. Warnings say how many sources are longer than the model's positions, and
    cut, and which characters the tokenizer does not know.

    Args:
        model: encoder–decoder model; it is put in evaluation mode and back.
        tokenizers: one for both sides, or (source, target).
        texts: an empty text is allowed; one string for all is a TypeError.
        penalty: see `Search`.
        max_tokens: source tokens of a batch with padding; beams multiply the memory. One long text may exceed it.
        batch_size: most texts of a batch; None for as many as `max_tokens` allows.
        progress: whether to show a progress bar; None for where somebody looks at the terminal; or what is told the
            number of texts of each batch.
        search: other fields of `Search`, and options of `generate`; without any, 5 beams. The papers' search is
            `early_stopping="never", min_new_tokens=1` (no empty translation).

    Returns:
        Translations, in the order of `texts`.
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of strings, got the string {texts[:50]!r}")
    if not (texts := list(texts)):
        return []
    tokenizers = tokenizers if isinstance(tokenizers, Sequence) else (tokenizers, tokenizers)
    rows, unknown = encode_texts(tokenizers[0], texts, getattr(model.config, "max_position_embeddings", None))
    if unknown:
        logger.warning("%s.", unknown)
    options = {"num_beams": 5, "length_penalty": 1.0, **ONE_BEST, **search}
    if options["num_beams"] == 1:
        del options["length_penalty"]  # Greedy search has no length penalty.
    translations = [""] * len(texts)
    is_hidden = None if progress is None else not progress or callable(progress)
    was_training = model.training
    searching = wu_length_penalty(model) if penalty == "wu" else model
    model.eval()
    try:
        with torch.inference_mode(), tqdm(total=len(texts), unit=" sentences", disable=is_hidden, leave=None) as bar:
            for batch in length_batches(list(map(len, rows)), max_tokens, batch_size):
                written = _translate_batch(searching, tokenizers, [rows[row] for row in batch], options)
                for row, text in zip(batch, written, strict=True):
                    translations[row] = text
                (progress if callable(progress) else bar.update)(len(batch))
    finally:
        model.train(was_training)
    return translations


def _translate_batch(
    model: PreTrainedModel, tokenizers: Tokenizers, rows: list[list[int]], options: dict[str, Any]
) -> list[str]:
    source, visible = pad_rows(rows, tokenizers[0].pad_token_id)
    inputs = {"input_ids": source.to(model.device), "attention_mask": visible.long().to(model.device)}
    # A saved max_length beside max_new_tokens would bring a warning for each batch. max_length counts the start token.
    limits = {"max_length": 1 + longest_translation(source.shape[1], model.config), "max_new_tokens": None}
    tokens = model.generate(**inputs, **{**limits, **options})
    with TOKENIZING:
        return tokenizers[1].batch_decode(tokens, skip_special_tokens=True)


def note_on_search(model: Any, **options: Any) -> str:
    """Name what searches on a CPU in place of compiled code, and why; empty where compiled code does.

    Args:
        model: any model with transformers' `generate`.
        options: those of the searches to come.
    """
    if not isinstance(model, SearchMixin) or model.device.type != "cpu":
        return ""
    reason = explain_search(model, **options)
    return "" if reason is None else f"transformers' search translates, as compiled code does not know this: {reason}"


def saved_search(defaults: GenerationConfig) -> dict[str, Any]:
    """Beams and length penalty of a saved model, as `translate` takes them."""
    penalty = defaults.length_penalty
    return {"num_beams": defaults.num_beams or 1, "length_penalty": 1.0 if penalty is None else penalty}


def saved_languages(name_or_path: str | Path) -> tuple[str | None, str | None]:
    """Source and target language of a translation model, None where neither recipe nor tokenizer says it.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
    """
    languages: dict[str, str] = {}
    for name, section in _LANGUAGE_FILES.items():
        try:
            content = read_yaml(cached_file(str(name_or_path), name))
            content = content.get(section) or {} if section else content
            languages = {key: content[key] for key in _LANGUAGES if isinstance(content.get(key), str)} | languages
        except (OSError, ValueError, AttributeError):
            continue  # Code that needs the file will say what is wrong with it.
    return languages.get(_LANGUAGES[0]), languages.get(_LANGUAGES[1])


def wu_length_penalty(model: Any) -> Any:
    """Copy a model, which shares all its modules, so that beam search divides by ((5 + len)/6)^α instead of len^α.

    score(Y) = log P(Y|X) · 6^α / (5 + |Y|)^α,  α = `length_penalty` of `generate`, |Y| = generated tokens with </s>.

    transformers divides by |Y|^α, so that an α from the papers (0.6) means something else there. The copy replaces
    the two steps of its beam search that divide: which hypothesis wins, when the search stops, and `sequences_scores`
    all follow the formula. Greedy search and sampling have no length penalty and stay as they are. The papers stop
    when no running beam can win any more: `early_stopping="never"`. The model itself, which others may use meanwhile,
    stays as it was.

    Args:
        model: a model with transformers' `generate`; merge an adapter of PEFT into its model first.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", eq. 14, without the coverage term; used by
    ReLA and QKNorm with α = 0.6.
    """
    generator = copy.copy(model)

    def shifted(method: Callable[..., Any], scores: str) -> Callable[..., Any]:
        def call(**state: Any) -> Any:
            state[scores] = state[scores] * (_OFFSET + 1) ** state["length_penalty"]
            state["decoder_prompt_len"] = state["decoder_prompt_len"] - _OFFSET
            return method(**state)

        return call

    # The methods come from the class, so that a copy of a copy does not shift the length twice.
    finish = partial(type(generator)._update_finished_beams, generator)
    generator._update_finished_beams = shifted(finish, "topk_log_probs")
    generator._update_finished_beams.penalty_offset = _OFFSET  # The compiled search reads the offset here.
    may_improve = type(generator)._check_early_stop_heuristic
    generator._check_early_stop_heuristic = shifted(may_improve, "running_beam_scores")
    return generator
