"""Tokenizers of translation models: training, storage, and sentence pairs turned into token ids."""

import json
import logging
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, Value, concatenate_datasets
from datasets import Sequence as SequenceFeature
from datasets.fingerprint import Hasher
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import has_file

from reluformers.configuration.configuration_base import MOST_TOKENS
from reluformers.modeling.pipeline_translation import TARGET_FOLDER, TOKENIZING
from reluformers.saved_models import opening

logger = logging.getLogger(__name__)

# order gives the ids 0 to 3, the defaults of the configurations
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
ROWS_PER_BLOCK = 100_000
_ROWS_PER_CALL = 1000
LONGEST_WORD = 1000
NORMALIZERS = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
Tokenizer = PreTrainedTokenizerBase
Tokenizers = tuple[Tokenizer, Tokenizer]
MOST_NAMED = 20  # unknown characters that a warning names
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")


def train_tokenizer(
    texts: Iterable[str] | Iterable[list[str]],
    vocab_size: int,
    *,
    min_frequency: int = 2,
    byte_fallback: bool = False,
    max_digits: int | None = None,
    normalization: str = "nfc",
    model_max_length: int = 1024,
) -> PreTrainedTokenizerFast:
    """Train a byte-pair encoding on words, as translation models use it.

    Text is brought to NFC, runs of white space become one blank, and the blank belongs to the word after it (`▁`), so
    that decoding gives the text back. A sequence ends in `</s>`; `<pad>`, `<s>`, `</s>`, `<unk>` have the ids 0 to 3
    and are not recognised inside a text. The same texts in the same order give the same tokenizer. For a joint
    vocabulary pass the texts of both languages. Byte-pair encoding: Sennrich et al. 2016.

    Args:
        texts: Sentences, or lists of them.
        vocab_size: Most tokens, special tokens (and bytes) included; there are fewer if nothing is left to merge.
        min_frequency: How often a pair must occur to be merged.
        byte_fallback: Spell a character outside the alphabet as its UTF-8 bytes (256 tokens more) instead of `<unk>`.
        max_digits: Cut numbers into groups of so many digits, from the left, before merging: 2 makes "20", "25" of
            2025. A number that was not seen is then copied group by group; None merges digits as letters.
        normalization: "nfc", or "nfkc" for a source alone: it has one form for ， and a comma, ½ and 1⁄2, and a target
            that is learned in it loses what was written.
        model_max_length: Length in tokens that truncation falls back to; training data are limited elsewhere.

    Raises:
        ValueError: If there is no text, the alphabet does not fit into `vocab_size`, or that is beyond any model's.
    """
    if vocab_size > MOST_TOKENS:  # room for all is taken at once
        raise ValueError(f"vocab_size is {vocab_size}, but must be at most {MOST_TOKENS}")
    tokenizer = _untrained(normalization, max_digits)
    reserved = len(SPECIAL_TOKENS) + (len(BYTE_TOKENS) if byte_fallback else 0)
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_size - (reserved - len(SPECIAL_TOKENS)), 0),
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS.values()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(_cut_long_words, texts), trainer)
    size = tokenizer.get_vocab_size() + reserved - len(SPECIAL_TOKENS)
    if not reserved < size <= vocab_size:
        raise ValueError(
            f"vocab_size {vocab_size} does not fit {size - reserved} tokens of texts and {reserved} reserved ones: "
            "check the data files and their languages, raise vocab_size, or limit the alphabet"
        )
    if size < vocab_size:
        logger.warning("the texts give only %d tokens of the %d asked for", size, vocab_size)
    return _finish(_with_bytes(tokenizer) if byte_fallback else tokenizer, model_max_length)


def save_tokenizers(
    folder: str | os.PathLike,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
) -> None:
    """Save the tokenizers of a model so that `AutoTokenizer` opens the folder for the source language.

    Args:
        folder: of the model; the source tokenizer goes to its root.
        source_tokenizer: of the source language, or of both.
        target_tokenizer: if the vocabularies are separate; saved under `target_tokenizer/`.
    """
    source_tokenizer.save_pretrained(folder)
    if target_tokenizer is not None and target_tokenizer is not source_tokenizer:
        target_tokenizer.save_pretrained(Path(folder, TARGET_FOLDER))


def load_tokenizers(
    name_or_path: str | os.PathLike, config: PreTrainedConfig | None = None, *, trust_remote_code: bool = False
) -> Tokenizers:
    """Open the tokenizers of a folder or Hub id; they are one object if the vocabulary is shared.

    Raises:
        ValueError: If there is no tokenizer, or it does not fit the configuration of the model.
    """
    name, options = str(name_or_path), {"trust_remote_code": trust_remote_code}
    with opening(name, "its tokenizer"):
        source = target = AutoTokenizer.from_pretrained(name, **options)
        if has_file(name, f"{TARGET_FOLDER}/tokenizer_config.json"):
            target = AutoTokenizer.from_pretrained(name, subfolder=TARGET_FOLDER, **options)
        if config is not None:
            check_tokenizers_fit((source, target), config)
    return source, target


def check_tokenizers_fit(tokenizers: Tokenizers, config: Any) -> None:
    """Check both sides by `check_tokenizer_fits`."""
    check_tokenizer_fits(tokenizers[0], config)
    check_tokenizer_fits(tokenizers[1], config, side="target")


def check_tokenizer_fits(tokenizer: Tokenizer, config: Any, *, side: str = "source") -> None:
    """Check that a model has an embedding for every token, and that padding and the end of a text are its own.

    Args:
        tokenizer: of one side.
        config: of the model.
        side: "source" compares with `vocab_size`, "target" with `decoder_vocab_size` if the model has one.

    Raises:
        ValueError: If the vocabulary is bigger than the model's, a special id differs, or the tokenizer has no padding
            or no end of a text.
    """
    separate = getattr(config, "decoder_vocab_size", None) if side == "target" else None
    if len(tokenizer) > (size := separate or config.vocab_size):
        raise ValueError(
            f"the {side} tokenizer has {len(tokenizer)} tokens, but the model {size}: they do not belong together"
        )
    for key in (f"{token}_id" for token in SPECIAL_TOKENS):
        ours, theirs = getattr(tokenizer, key, None), getattr(config, key, None)
        if None not in (ours, theirs) and ours != theirs:
            raise ValueError(
                f"the {side} tokenizer has {key} {ours}, but the model {theirs}: they do not belong together"
            )
    ends = {tokenizer.eos_token_id, getattr(config, "eos_token_id", None)}
    is_ended = not ends.isdisjoint(tokenizer(**{"text" if side == "source" else "text_target": ""})["input_ids"])
    if tokenizer.pad_token_id is None or not is_ended:
        raise ValueError(
            f"the {side} tokenizer has no padding token, or ends no text in {tokenizer.eos_token!r}, so that no model "
            "learns to stop: give it both, and save it again"
        )


def tokenize_pairs(
    dataset: Dataset,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    max_length: int | None = None,
    num_proc: int | None = None,
) -> Dataset:
    """Turn the columns "source" and "target" into token ids.

    Nothing is cut unless asked; the number of rows that are cut is logged as a warning.

    Args:
        dataset: Rows with "source" and "target", both str.
        source_tokenizer, target_tokenizer: of the two.
        max_length: Longer sides are cut to so many tokens, as the tokenizer does it (evaluation); None = no limit.
        num_proc: Processes to work in; None for this one alone.

    Returns:
        The dataset with two more columns: `input_ids` and `labels`, lists of int without padding.
    """
    encode = partial(_encode, source_tokenizer=source_tokenizer, target_tokenizer=target_tokenizer)
    features = _with_ids(dataset.features)
    # by what the tokenizers do and not by where they were loaded from, so that a resumed run finds what is there
    print_of = Hasher.hash([dataset._fingerprint, *map(_state, (source_tokenizer, target_tokenizer))])
    tokenized = dataset.map(
        encode, batched=True, features=features, desc="Tokenizing", num_proc=num_proc, new_fingerprint=print_of
    )
    if max_length is None:
        return tokenized
    longest = np.maximum(token_lengths(tokenized, "input_ids"), token_lengths(tokenized, "labels"))
    over = int((longest > max_length).sum())
    if not over:
        return tokenized
    logger.warning("%d of %d rows are longer than %d tokens and were cut", over, len(tokenized), max_length)
    encode = partial(encode, truncation=True, max_length=max_length)
    return dataset.map(encode, batched=True, features=features, desc="Truncating", num_proc=num_proc)


def _state(tokenizer: Tokenizer) -> Any:
    """What ids follow from; a call with truncation or padding leaves its options in a fast tokenizer."""
    if not tokenizer.is_fast:
        return tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return [type(tokenizer).__name__, {**state, "truncation": None, "padding": None}]


def encode_pairs(dataset: Dataset, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> Dataset:
    """What `tokenize_pairs` does, in memory and at once, for the rows of one block of a stream."""
    batches = [
        {**batch, **_encode(batch, source_tokenizer, target_tokenizer)}
        for batch in dataset.select_columns(["source", "target"]).iter(batch_size=_ROWS_PER_CALL)
    ]
    features = _with_ids(Features({name: Value("string") for name in ("source", "target")}))
    return concatenate_datasets([Dataset.from_dict(batch, features=features) for batch in batches])


def _encode(
    batch: dict[str, list],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    **options: Any,
) -> dict[str, list]:
    options = {"return_attention_mask": False, "verbose": False, **options}
    return {
        "input_ids": source_tokenizer(batch["source"], **options)["input_ids"],
        "labels": target_tokenizer(text_target=batch["target"], **options)["input_ids"],
    }


def _with_ids(features: Features) -> Features:
    ids = SequenceFeature(Value("int32"))
    return Features({**features, "input_ids": ids, "labels": ids})


def token_lengths(dataset: Dataset, column: str) -> np.ndarray:
    """Lengths int32 [rows] of a column of lists, such as "input_ids"."""
    blocks = dataset.select_columns([column]).with_format("arrow").iter(batch_size=ROWS_PER_BLOCK)
    lengths = [pc.list_value_length(block[column]).to_numpy() for block in blocks]
    return np.concatenate(lengths).astype(np.int32) if lengths else np.zeros(0, dtype=np.int32)


def example_tokens(config: PreTrainedConfig) -> dict[str, Tensor]:
    """A small batch that any translation model takes, as arguments of `forward`: two rows, the second one padded."""
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    source, target = (7 * torch.arange(2 * length).view(2, length) + 5 for length in (6, 5))
    target = target % (config.decoder_vocab_size or config.vocab_size)
    return {"input_ids": source % config.vocab_size, "attention_mask": mask, "decoder_input_ids": target}


def _untrained(normalization: str, max_digits: int | None) -> Backend:
    tokenizer = Backend(models.BPE(unk_token=SPECIAL_TOKENS["unk_token"], fuse_unk=True))
    steps = [NORMALIZERS[normalization](), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    words = pre_tokenizers.Metaspace()
    if max_digits is not None:
        # with the mark of the blank before it, which would be a token of its own
        groups = pre_tokenizers.Split(Regex(rf"▁?\d{{1,{max_digits}}}"), "isolated")
        words = pre_tokenizers.Sequence([words, groups])
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _cut_long_words(item: str | list[str]) -> str | list[str]:
    """Text with a blank in words that no language has, on which training takes time by the square of their length."""
    if not isinstance(item, str):
        return [_cut_long_words(text) for text in item]
    return _LONG_WORD.sub(r"\g<0> ", item) if len(item) > LONGEST_WORD else item


def encode_texts(
    tokenizer: Tokenizer, texts: Iterable[str], limit: int | None = None
) -> tuple[list[list[int]], list[str]]:
    """Token ids of texts, and the characters that a tokenizer turns into `<unk>`.

    Args:
        tokenizer: of the source; only of a fast one, which says where its tokens come from, a character is found.
        texts: any.
        limit: longer ones are cut to so many tokens, with one warning for all; None = no limit.

    Returns:
        Ids of each text, and each unknown character once, in the order of the texts.
    """
    texts, unknown = list(texts), []
    if not texts:
        return [], []
    options = {"return_attention_mask": False, "verbose": False}
    with TOKENIZING:
        encoding = tokenizer(texts, return_offsets_mapping=tokenizer.is_fast, **options)
        rows = encoding["input_ids"]
        for text, tokens, offsets in zip(texts, rows, encoding.get("offset_mapping", ()), strict=False):
            for token, (start, end) in zip(tokens, offsets, strict=True):
                unknown += text[start:end] if token == tokenizer.unk_token_id else ""
        if too_long := [row for row, tokens in enumerate(rows) if limit is not None and len(tokens) > limit]:
            logger.warning(
                "%d of %d texts have more than %d tokens, the positions of the model, and are cut.",
                *(len(too_long), len(texts), limit),
            )
            cut = tokenizer([texts[row] for row in too_long], truncation=True, max_length=limit, **options)
            for row, tokens in zip(too_long, cut["input_ids"], strict=True):
                rows[row] = tokens
    return rows, [character for character in dict.fromkeys(unknown) if not character.isspace()]


def describe_unknown(characters: list[str]) -> str:
    """Say in one line which characters a tokenizer does not know; longer lists are cut."""
    named = ", ".join(characters[:MOST_NAMED]) + (", …" if len(characters) > MOST_NAMED else "")
    return f"the tokenizer does not know {named}: what the model writes for such characters is invented"


def _with_bytes(tokenizer: Backend) -> Backend:
    state = json.loads(tokenizer.to_str())
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)
    tokens[len(SPECIAL_TOKENS) : len(SPECIAL_TOKENS)] = BYTE_TOKENS
    state["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    state["model"]["byte_fallback"] = True
    tokenizer = Backend.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def _finish(tokenizer: Backend, model_max_length: int) -> PreTrainedTokenizerFast:
    end = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        # a text that happens to hold "</s>", an HTML tag say, must not end the sentence
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )
