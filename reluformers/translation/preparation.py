"""From a recipe to tokenizers, token ids and a model."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from reluformers.configuration.configuration_seq2seq import Seq2SeqTransformerConfig
from reluformers.conversion.start import spread_batches, start_model
from reluformers.data.batches import PairCollator
from reluformers.data.sources import read_splits

from .arguments import TranslationTrainingArguments
from .cleaning import clean
from .loading import load_translation_split, stream_translation_split
from .packing import pack_documents
from .recipe import TokenizerSection, TranslationDataSection, TranslationRecipe
from .streaming import PairStream
from .tokenization import Tokenizers, check_tokenizers_fit, load_tokenizers, save_tokenizers, train_tokenizer
from .tokenized_rows import encode_pairs, token_lengths, tokenize_pairs

logger = logging.getLogger(__name__)

# of a stream, for training its tokenizers
TOKENIZER_ROWS = 1_000_000
_CALIBRATION_BATCH = 32  # rows
_TOKENIZER_OPTIONS = ("vocab_size", "min_frequency", "byte_fallback", "max_digits")
_ATTENTION_FIELDS = ("attention", *(f"{site}_attention" for site in Seq2SeqTransformerConfig.sites))


@dataclass
class PreparedData:
    """What a run trains and evaluates on.

    Args:
        train: columns `input_ids`, `labels`, cleaned; or a stream of such rows.
        evaluation: splits `"validation"` and perhaps `"test"`, whole, with the texts `source` and `target` too.
        tokenizers: of the source and of the target side, which may be one.
    """

    train: Dataset | PairStream
    evaluation: dict[str, Dataset]
    tokenizers: Tokenizers


def load_splits(data: TranslationDataSection) -> dict[str, Dataset | PairStream]:
    """Read the splits that a recipe names: `train`, which may be a stream, `validation` and perhaps `test`.

    Raises:
        ValueError: the recipe does not say where they are, they cannot be read, or share rows with the training set.
    """
    sources = data.sources()
    needed = {"train", "validation"} - ({"validation"} if data.held_out else set())
    if None in (data.source_lang, data.target_lang) or not needed <= sources.keys():
        raise ValueError(
            "data needs source_lang, target_lang and, as files or splits of data.path, train and validation"
        )
    splits = read_splits(data, partial(_load_split, data))
    if data.held_out is not None:
        splits["train"], splits["validation"] = hold_out(splits["train"], data.held_out, data.held_out_seed or 0)
    return splits


def hold_out(rows: Dataset, count: int, seed: int) -> tuple[Dataset, Dataset]:
    """Draw `count` pairs out of a training set to evaluate on, none with an empty side.

    Returns:
        The rows whose source is not among those taken, and those taken, both in their order.
    """
    sources = rows["source"][:]
    whole = [row for row, pair in enumerate(zip(sources, rows["target"], strict=True)) if all(map(str.strip, pair))]
    drawn = np.random.default_rng(seed).permutation(whole)[:count]
    taken = {sources[row] for row in drawn}
    left = [row for row, source in enumerate(sources) if source not in taken]
    return rows.select(left), rows.select(sorted(drawn))


def _load_split(data: TranslationDataSection, name: str, source: Any, split: str) -> Dataset | PairStream:
    options = {name: getattr(data, name) for name in ("source_lang", "target_lang", "translation_column")}
    if data.streaming and name == "train":
        return PairStream(*stream_translation_split(source, split, **options), data.buffer_rows)
    return load_translation_split(source, split, document_column=data.document_column, **options)


def _texts(train: Dataset | PairStream, columns: tuple[str, ...]) -> Iterator[list[str]]:
    for dataset in train.texts(TOKENIZER_ROWS) if isinstance(train, PairStream) else [train]:
        for batch in dataset.select_columns(list(columns)).iter(batch_size=1000):
            for column in columns:
                yield batch[column]


def make_tokenizers(
    section: TokenizerSection, train: Dataset | PairStream, max_length: int, start: str | None = None
) -> Tokenizers:
    """Load the tokenizers of a recipe or of the model that it starts from, or train them on the training set.

    Of a stream they are trained on 1,000,000 rows.

    Args:
        section: of the recipe.
        train: columns `source` and `target`.
        max_length: longest sequence of the model, in tokens.
        start: where that model is, if there is one.
    """
    if (path := section.path or start) is not None:
        return load_tokenizers(path)
    options = {name: getattr(section, name) for name in _TOKENIZER_OPTIONS} | {"model_max_length": max_length}
    if section.shared:
        tokenizer = train_tokenizer(_texts(train, ("source", "target")), **options)
        return tokenizer, tokenizer
    source = train_tokenizer(_texts(train, ("source",)), normalization=section.source_normalization, **options)
    return source, train_tokenizer(_texts(train, ("target",)), **options)


def prepare_data(
    recipe: TranslationRecipe, folder: Path, *, reuse_tokenizers: bool, report: Callable[[str], None] = logger.info
) -> PreparedData:
    """Load, tokenise and clean.

    Args:
        recipe: of the run.
        folder: where the tokenizers are saved, the run's or a checkpoint's.
        reuse_tokenizers: load them from there instead, as a resumed run and its further processes do.
        report: takes one line about what was dropped.

    Raises:
        ValueError: the data cannot be read, or nothing is left of them.
    """
    data, max_length = recipe.data, recipe.model_config().max_position_embeddings
    splits = load_splits(data)
    if reuse_tokenizers:
        tokenizers = load_tokenizers(folder)
    else:
        tokenizers = make_tokenizers(recipe.tokenizer, splits["train"], max_length, recipe.start)
        save_tokenizers(folder, *tokenizers)
    if data.document_tokens is not None:
        splits = {name: pack_documents(split, *tokenizers, data.document_tokens) for name, split in splits.items()}
    limits = {
        "max_tokens": min(max_length, data.max_length or max_length),
        "max_length_ratio": data.max_length_ratio,
    }
    train = splits.pop("train")
    if isinstance(train, PairStream):
        budget = recipe.training.get("max_tokens", TranslationTrainingArguments.max_tokens)
        if limits["max_tokens"] > budget:
            raise ValueError(f"data.max_length is above training.max_tokens: set it to {budget} or less for a stream")
        train.tokenise = partial(tokenise_block, tokenizers=tokenizers, limits=limits)
        report(f"training set: a stream of {train.rows.num_shards:,} shards")
    else:
        train, cleaning_report = clean(tokenize_pairs(train, *tokenizers, num_proc=data.num_proc), **limits)
        report(f"training set: {cleaning_report}")
        # rows are read 5 times faster without the indirection that filtering leaves
        train = train.select_columns(["input_ids", "labels"]).flatten_indices()
    evaluation = {name: tokenize_pairs(split, *tokenizers, max_length=max_length) for name, split in splits.items()}
    return PreparedData(train, evaluation, tokenizers)


def tokenise_block(rows: Dataset, *, tokenizers: Tokenizers, limits: dict[str, Any]) -> Dataset:
    """Token ids of the rows of a stream that `clean` keeps within the limits; perhaps none."""
    rows, _ = clean(encode_pairs(rows, *tokenizers), may_be_empty=True, **limits)
    return rows.select_columns(["input_ids", "labels"])


def build_model(
    recipe: TranslationRecipe,
    prepared: PreparedData,
    checkpoint: Path | None = None,
    report: Callable[[str], None] = logger.info,
) -> PreTrainedModel:
    """A model for the recipe and its tokenizers, with generation defaults of the decoding section.

    The scale of cosine attention starts from the measured length of the training set unless the recipe gives one
    (QKNorm, section 3: L is the 97.5th percentile). It stands in config.json, and a resumed run takes it from there.

    Args:
        recipe: of the run.
        prepared: its data.
        checkpoint: where the run goes on, if it does.
        report: takes a line on how near an exchanged attention is to the one before.

    Raises:
        ValueError: the model and the tokenizers do not fit.
    """
    if recipe.start is not None:
        return _start_model(recipe, prepared, checkpoint, report)
    source, target = prepared.tokenizers
    ids = [f"{name}_token_id" for name in ("pad", "bos", "eos", "unk")]
    fields = {name: getattr(source, name) for name in ids if getattr(source, name) is not None}
    fields.setdefault("decoder_start_token_id", fields.get("bos_token_id", source.pad_token_id))
    fields["vocab_size"] = len(source)
    if target is not source:
        if recipe.model_config().tying == "all":
            raise ValueError("model.tying is 'all', but there are two tokenizers: set model.tying=decoder")
        fields["decoder_vocab_size"] = len(target)
    config = recipe.model_config(**fields, **_measured_scales(recipe, prepared.train, checkpoint))
    check_tokenizers_fit(prepared.tokenizers, config)
    model = AutoModelForSeq2SeqLM.from_config(config)
    token_ids = {name: getattr(config, f"{name}_token_id") for name in ("pad", "bos", "eos", "decoder_start")}
    model.generation_config = GenerationConfig(
        **{f"{name}_token_id": value for name, value in token_ids.items()},
        max_length=_default_max_length(recipe, config),
        **recipe.decoding.generation_options(),
    )
    return model


def _start_model(
    recipe: TranslationRecipe, prepared: PreparedData, checkpoint: Path | None, report: Callable[[str], None]
) -> PreTrainedModel:
    """The model that the recipe starts from; what it is never to generate stays so, the search is the recipe's."""
    # on the way from a checkpoint, whose weights come afterwards, there is nothing to fit
    count = recipe.calibration_rows if checkpoint is None else 0
    collate = PairCollator(prepared.tokenizers[0].pad_token_id)
    batches = spread_batches(prepared.train, count, collate, _CALIBRATION_BATCH) if count else []
    model = start_model(**recipe.start_options, batches=batches, report=report)
    check_tokenizers_fit(prepared.tokenizers, model.config)
    max_length = _default_max_length(recipe, model.config)
    model.generation_config.update(max_length=max_length, **recipe.decoding.generation_options())
    return model


def _default_max_length(recipe: TranslationRecipe, config: PreTrainedConfig) -> int:
    """The longest output by default, with the start token: a document that was learned in one piece is written so.

    A saved `max_new_tokens` would overrule the `max_length` that somebody asks for.
    """
    longest = max(recipe.decoding.max_new_tokens, recipe.data.document_tokens or 0)
    return 1 + min(longest, config.max_position_embeddings)


def _measured_scales(
    recipe: TranslationRecipe, train: Dataset | PairStream, checkpoint: Path | None
) -> dict[str, dict[str, Any]]:
    """Attention fields with the measured `scale_length`, for those of cosine score whose scale is not given."""
    config = recipe.model_config()
    earlier = None if checkpoint is None else AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    changed = {}
    for name in _ATTENTION_FIELDS:
        attention, given = getattr(config, name), recipe.model.get(name)
        gives_scale = isinstance(given, dict) and not {"scale", "scale_length"}.isdisjoint(given)
        if attention is None or gives_scale or attention.score != "cosine" or attention.scale is not None:
            continue
        percentile = recipe.data.scale_length_percentile
        length = scale_length(train, percentile) if earlier is None else getattr(earlier, name).scale_length
        changed[name] = dataclasses.replace(attention, scale_length=length).to_dict()
    return changed


def scale_length(train: Dataset | PairStream, percentile: float) -> int:
    """L of QKNorm eq. 3: a percentile of the lengths of both sides, of a stream of its first block; at least 2."""
    train = train.sample() if isinstance(train, PairStream) else train
    lengths = np.concatenate([token_lengths(train, column) for column in ("input_ids", "labels")])
    return max(2, round(float(np.percentile(lengths, percentile))))
