"""Tokenizers of translation models: training, storage, and texts turned into token ids."""

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from reluformers.modeling.pipeline_translation import TARGET_FOLDER, TOKENIZING, open_target_tokenizer

logger = logging.getLogger(__name__)

# Their order gives the ids 0 to 3, the defaults of the configurations.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
LONGEST_WORD = 1000
NORMALIZERS = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
Tokenizer = PreTrainedTokenizerBase
Tokenizers = tuple[Tokenizer, Tokenizer]
MOST_NAMED = 20  # A warning names so many unknown characters.
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
        ValueError: If there is no text, or the alphabet does not fit into `vocab_size`.
    """
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
        ValueError: If it does not fit the configuration of the model.
    """
    options = {"trust_remote_code": trust_remote_code}
    source = AutoTokenizer.from_pretrained(str(name_or_path), **options)
    target = open_target_tokenizer(source, config, **options)
    if config is not None:
        check_tokenizers_fit((source, target), config)
    return source, target


def check_tokenizers_fit(tokenizers: Tokenizers, config: Any) -> None:
    """Check that a model has an embedding for every token, and that padding and the end of a text are its own.

    Raises:
        ValueError: If a vocabulary is bigger than the model's, a special id differs, or a tokenizer has no padding or
            no end of a text, so that no model learns to stop.
    """
    sizes = config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size
    # Marian's tokenizer has both sides, and its length is the source's.
    counts = len(tokenizers[0]), len(getattr(tokenizers[1], "target_encoder", tokenizers[1]))
    for side, argument, tokenizer, count, size in zip(
        ("source", "target"), ("text", "text_target"), tokenizers, counts, sizes, strict=True
    ):
        names = [f"{token}_id" for token in SPECIAL_TOKENS]
        ids = {name: (getattr(tokenizer, name, None), getattr(config, name, None)) for name in names}
        differing = {name: pair for name, pair in ids.items() if None not in pair and pair[0] != pair[1]}
        has_end = not set(ids["eos_token_id"]).isdisjoint(tokenizer(**{argument: ""})["input_ids"])
        if count > size or differing or tokenizer.pad_token_id is None or not has_end:
            raise ValueError(
                f"the {side} tokenizer does not fit the model: it has {count} tokens for {size} embeddings, "
                f"other ids than the model: {differing}, padding: {tokenizer.pad_token}, an end of texts: {has_end}"
            )


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
        # A group of digits keeps the mark of the blank before it, which would be a token of its own.
        groups = pre_tokenizers.Split(Regex(rf"▁?\d{{1,{max_digits}}}"), "isolated")
        words = pre_tokenizers.Sequence([words, groups])
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _cut_long_words(item: str | list[str]) -> str | list[str]:
    """Text with a blank in words that no language has, on which training takes time by the square of their length."""
    if not isinstance(item, str):
        return [_cut_long_words(text) for text in item]
    if len(item) > LONGEST_WORD:
        return _LONG_WORD.sub(r"\g<0> ", item)
    return item


def encode_texts(
    tokenizer: Tokenizer, texts: list[str], limit: int | None = None
) -> tuple[list[list[int]], str | None]:
    """Turn texts into token ids, and make a warning that names the characters which become `<unk>`.

    Args:
        tokenizer: of the source; only of a fast one, which says where its tokens come from, a character is found.
        texts: any.
        limit: longer ones are cut to so many tokens, with one warning for all; None = no limit.
    """
    options = {"return_attention_mask": False, "verbose": False}
    with TOKENIZING:
        encoding = tokenizer(texts, return_offsets_mapping=tokenizer.is_fast, **options)
        rows = encoding["input_ids"]
        if limit is not None and (count := sum(len(tokens) > limit for tokens in rows)):
            logger.warning(
                "%d of %d texts have more than %d tokens, the positions of the model, and are cut.",
                *(count, len(texts), limit),
            )
            rows = tokenizer(texts, truncation=True, max_length=limit, **options)["input_ids"]
    unknown: dict[str, None] = {}
    for text, tokens, offsets in zip(texts, encoding["input_ids"], encoding.get("offset_mapping", ()), strict=False):
        for token, (start, end) in zip(tokens, offsets, strict=True):
            if token == tokenizer.unk_token_id:
                unknown |= dict.fromkeys("".join(text[start:end].split()))
    if not unknown:
        return rows, None
    named = ", ".join(list(unknown)[:MOST_NAMED]) + (", …" if len(unknown) > MOST_NAMED else "")
    return rows, f"the tokenizer does not know {named}: what the model writes for such characters is invented"


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
        # A text that happens to hold "</s>", such as an HTML tag, must not end the sentence.
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )
