# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Translation for `transformers.pipeline`: texts in, translations and word alignments out.

transformers removed its own task of this name; a repository whose config.json names this class has it again.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import AutoTokenizer, Pipeline, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .inline_tags import UNITS, TagProjection, take_tags

logger = logging.get_logger(__name__)

TARGET_FOLDER = "target_tokenizer"
# a translation may be this much longer than its source
EXTRA_TOKENS = 50
NO_WORD = -1
WORDS = r"\S+"
# words, and for each token the place of its word
Words = tuple[list[str], list[int]]
# unknown characters that a warning names
MOST_NAMED = 20


class TranslationPipeline(Pipeline):
    """Translate texts with an encoder–decoder model, one at a time or in batches.

    `pipeline("translation", model=…, trust_remote_code=True)` builds it from a folder or a repository. Generation goes
    by the model's generation_config.json; if that sets no length, a translation may have 50 tokens more than its
    source.

    Args:
        model: with `generate` and cross-attention.
        tokenizer: of the source language, or of both.
        target_tokenizer: of the target language; by default the one in `target_tokenizer/` of the place that
            `tokenizer` came from if the model has a target vocabulary of its own, else `tokenizer`.
        kwargs: as for any pipeline (`device`, `batch_size`); options of a call become defaults here.

    Raises:
        OSError: the model has a target vocabulary of its own, but there is no tokenizer of it.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs,
    ):
        kwargs.setdefault("task", "translation")
        super().__init__(model, tokenizer=tokenizer, **kwargs)
        self.target_tokenizer = target_tokenizer or self._open_target_tokenizer()

    def _open_target_tokenizer(self) -> PreTrainedTokenizerBase:
        config = self.model.config
        # Marian, which does not know our tying, always names the field, and its tokenizer has both sides
        if getattr(config, "decoder_vocab_size", None) is None or not hasattr(config, "tying"):
            return self.tokenizer
        place = self.tokenizer.name_or_path
        try:
            return AutoTokenizer.from_pretrained(
                place, subfolder=TARGET_FOLDER, revision=getattr(config, "_commit_hash", None) or "main"
            )
        except (OSError, ValueError) as error:
            raise OSError(
                f"{place}: the model has a target vocabulary of its own, but {TARGET_FOLDER}/ could not be opened; "
                "put the target's tokenizer there, log in with `hf auth login` if the repository is private, or pass "
                "target_tokenizer"
            ) from error

    @property
    def max_source_length(self) -> int:
        """Longest source that the model can take, in tokens with the closing `</s>`."""
        return min(self.tokenizer.model_max_length, self.model.config.max_position_embeddings)

    def __call__(self, inputs: str | Iterable[str], **kwargs) -> list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Translate.

        An alignment names, for each word of the translation, the source word that the decoder looks at when it writes
        it: cross-attention weights of a second pass over source and translation, averaged over the heads of a layer
        and summed over the tokens of each word. The layer is `alignment_layer` of the configuration, which training
        measures; where that is None it is the last but one (Garg et al. 2019). With `alignment_head` of the
        configuration one head is read alone, and with `alignment_shifted` a token's weights are those of the step that
        has it as its input (Chen et al. 2020). Words are what white space separates.

        Characters that the tokenizer does not know are named in one warning for a call.

        Args:
            inputs: a text or a list of texts; a generator, any other iterable or a dataset of texts is answered
                one by one.
            return_alignments: whether to add `alignments`.
            keep_tags: take inline tags, such as `<b>…</b>` and `<br/>`, for markup: the text is translated without
                them, and by the alignment each goes once into the translation; see `TagProjection`. Words must be
                separated by blanks.
            truncation: cut a source that is longer than `max_source_length`, with one warning for a call; False
                raises instead.
            batch_size: texts that are translated at a time.
            kwargs: options of `generate` (`num_beams`, `max_new_tokens`, …).

        Returns:
            For each text `translation_text`, and in `alignments` for each word of it `target`, `source` (None if all
            weights are zero), `source_index` (which of the source's words it is, from 0) and `weight`: the share of
            the attention that the source word has, in [0, 1]. Several sequences for a text (`num_return_sequences`)
            make a list of their own.

        Raises:
            ValueError: there is no text, one is empty or not a string, or too long and truncation is off.
        """
        if isinstance(inputs, str):
            check_text(inputs, "the text")
            (records,) = _unpack([super().__call__(inputs, **kwargs)])
            return records
        if isinstance(inputs, list | tuple):
            if not inputs:
                raise ValueError("there is no text to translate: got an empty list")
            for number, text in enumerate(inputs, start=1):
                check_text(text, f"text {number}")
            results = _unpack(super().__call__(list(inputs), **kwargs))
            return [records[0] if len(records) == 1 else records for records in results]
        if not isinstance(inputs, Iterable | Dataset) or isinstance(inputs, dict | bytes):
            raise ValueError(f"a text or a list of texts is to be translated, got {type(inputs).__name__}")
        # of what can be iterated over, transformers takes only these two for more than one input
        texts = inputs if isinstance(inputs, Dataset) else (text for text in inputs)
        results = _unpack(super().__call__(texts, **kwargs))
        return (records[0] if len(records) == 1 else records for records in results)

    def _sanitize_parameters(
        self,
        return_alignments: bool | None = None,
        keep_tags: bool | None = None,
        truncation: bool | None = None,
        **generate_options,
    ) -> tuple[dict, dict, dict]:
        aligned = {"return_alignments": return_alignments, "keep_tags": keep_tags}
        aligned = {name: value for name, value in aligned.items() if value is not None}
        cut = {} if truncation is None else {"truncation": truncation}
        return {**aligned, **cut}, {**aligned, **generate_options}, {}

    def preprocess(
        self, text: str, truncation: bool = True, return_alignments: bool = False, keep_tags: bool = False
    ) -> dict[str, Any]:
        check_text(text, "the text")
        text, tags = take_tags(text) if keep_tags else (text, [])
        check_text(text, "the text without its tags" if tags else "the text")
        limit = self.max_source_length
        length = len(self.tokenizer(text, verbose=False)["input_ids"])
        if length > limit and not truncation:
            raise ValueError(
                f"the text has {length} tokens, but the model takes {limit}; shorten it, or allow truncation"
            )
        encoding = self.tokenizer(
            text,
            truncation=length > limit,
            max_length=limit if length > limit else None,
            return_attention_mask=True,
        )
        return {
            "input_ids": torch.tensor([encoding["input_ids"]]),
            "attention_mask": torch.tensor([encoding["attention_mask"]]),
            "source": {
                "words": split_text(self.tokenizer, text, encoding["input_ids"]) if return_alignments else None,
                "units": split_text(self.tokenizer, text, encoding["input_ids"], UNITS) if tags else None,
                "tags": tags,
                "text": text,
                "num_cut": max(length - limit, 0),
                "unknown": unknown_characters(self.tokenizer, [text]),
            },
        }

    def _forward(
        self, inputs: dict[str, Any], return_alignments: bool = False, keep_tags: bool = False, **options
    ) -> dict[str, Any]:
        input_ids, attention_mask = inputs["input_ids"], inputs["attention_mask"]
        options = {**options, **self._length_option(input_ids.shape[1], options), "return_dict_in_generate": False}
        tokens = self.model.generate(input_ids=input_ids, attention_mask=attention_mask, **options)
        is_aligned = return_alignments or keep_tags
        weights = self.cross_weights(input_ids, attention_mask, tokens) if is_aligned else None
        by_text = (input_ids.shape[0], -1)
        return {
            "tokens": tokens.unflatten(0, by_text),  # [batch, sequences, target_len]
            "weights": None if weights is None else weights.unflatten(0, by_text),
            "attention_mask": attention_mask,
            "source": inputs["source"],
        }

    def _length_option(self, source_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """The longest output as `generate` takes it: one setting, the user's before the saved one before the default.

        Of two settings transformers follows `max_new_tokens`, be it the saved one, and warns at every call.
        """
        saved = self.model.generation_config
        if "generation_config" in options or None not in (options.get("max_length"), options.get("max_new_tokens")):
            return {}
        if options.get("max_length") is not None:
            return {"max_new_tokens": None}
        new_tokens = options.get("max_new_tokens")
        if new_tokens is None and (saved.max_length, saved.max_new_tokens) == (None, None):
            new_tokens = min(source_length + EXTRA_TOKENS, self.model.config.max_position_embeddings)
        # the start token counts
        return {} if new_tokens is None else {"max_length": new_tokens + 1, "max_new_tokens": None}

    def cross_weights(self, input_ids: Tensor, attention_mask: Tensor, tokens: Tensor) -> Tensor:
        """Attention of each target token but the first    [sequences, target_len - 1, source_len].

        Row t is that of the step which writes token t + 1, or, with `alignment_shifted`, of the step after it: of the
        layer of alignments the head of alignments, or the mean over the heads, without negative weights.

        Args:
            input_ids, attention_mask: [batch, source_len].
            tokens: [sequences, target_len], the same number of sequences for each source, start tokens included.
        """
        copies, config = tokens.shape[0] // input_ids.shape[0], self.model.config
        length = tokens.shape[1] - 1
        shift = int(getattr(config, "alignment_shifted", False))
        with eager_attention(self.model):
            cross_attentions = self.model(
                input_ids=input_ids.repeat_interleave(copies, 0),
                attention_mask=attention_mask.repeat_interleave(copies, 0),
                # of a translation that is as long as can be the last token is no input
                decoder_input_ids=tokens[:, : min(length + shift, config.max_position_embeddings)],
                output_attentions=True,
                use_cache=False,
            ).cross_attentions
        layer = getattr(config, "alignment_layer", None)
        layer = max(len(cross_attentions) - 2, 0) if layer is None else layer
        weights = weights_of_heads(cross_attentions[layer], getattr(config, "alignment_head", None))[:, shift:]
        return functional.pad(weights, (0, 0, 0, length - weights.shape[1]))

    @torch.inference_mode()
    def align(self, text: str, translation: str | list[int]) -> list[dict[str, Any]]:
        """Word alignments of a translation that is given, in the form in which `__call__` returns them.

        Args:
            text: is cut to what the model takes.
            translation: a text, which is cut as well, or tokens as `generate` returns them.

        Raises:
            ValueError: a text is empty or not a string.
        """
        inputs = self.preprocess(text, return_alignments=True)
        if isinstance(translation, str):
            check_text(translation, "the translation")
            limit = self.model.config.max_position_embeddings
            tokens = self.target_tokenizer(text_target=translation, truncation=True, max_length=limit)["input_ids"]
            translation = [self.model.generation_config.decoder_start_token_id, *tokens]
        sides = (inputs["input_ids"], inputs["attention_mask"], torch.tensor([translation]))
        weights = self.cross_weights(*(side.to(self.device) for side in sides))[0].cpu()
        return align_words(weights, inputs["source"]["words"], split_tokens(self.target_tokenizer, translation[1:]))

    def postprocess(self, outputs: dict[str, Any]) -> dict[str, Any]:
        source, records = outputs["source"], []
        for row, tokens in enumerate(outputs["tokens"][0].tolist()):
            record = {"translation_text": self.target_tokenizer.decode(tokens, skip_special_tokens=True)}
            if outputs["weights"] is not None:
                weights = outputs["weights"][0, row][:, outputs["attention_mask"][0].bool()]
                if source["words"]:
                    words = split_tokens(self.target_tokenizer, tokens[1:])
                    record["alignments"] = align_words(weights, source["words"], words)
                if source["tags"]:
                    units = split_tokens(self.target_tokenizer, tokens[1:], UNITS)
                    links = [link["source_index"] for link in align_words(weights, source["units"], units)]
                    projection = TagProjection(source["text"], record["translation_text"], links)
                    record["translation_text"] = projection.insert(source["tags"])
            records.append(record)
        return {"records": records, "num_cut": source["num_cut"], "unknown": source["unknown"]}

    def save_pretrained(self, save_directory: str, **kwargs) -> None:
        """Save model and tokenizers, and with the model this code."""
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(f"{save_directory}/{TARGET_FOLDER}")


def check_text(text: Any, name: str) -> None:
    """Refuse what cannot be translated.

    Raises:
        ValueError: it is not a string, there is nothing in it, or it has half a character.
    """
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"{name} is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is no valid text: half of a surrogate pair at character {error.start + 1}"
        ) from error


def unknown_characters(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> list[str]:
    """Characters that a tokenizer turns into `<unk>`, each once, in the order of the texts.

    Args:
        tokenizer: only a fast one says where its tokens come from; of another one nothing is found.
        texts: any.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or not tokenizer.is_fast:
        return []
    texts = list(texts)
    encoding = tokenizer(texts, return_offsets_mapping=True, verbose=False)
    found = []
    for text, tokens, offsets in zip(texts, encoding["input_ids"], encoding["offset_mapping"], strict=True):
        for token, (start, end) in zip(tokens, offsets, strict=True):
            found += text[start:end] if token == unknown else ""
    return [character for character in dict.fromkeys(found) if not character.isspace()]


def describe_unknown(characters: list[str]) -> str:
    """One line on characters that a tokenizer does not know; longer lists are cut."""
    named = ", ".join(characters[:MOST_NAMED]) + (", …" if len(characters) > MOST_NAMED else "")
    return f"the tokenizer does not know {named}: what the model writes for such characters is invented"


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model compute with the attention that returns its weights, and go back."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def weights_of_heads(weights: Tensor, head: int | None = None) -> Tensor:
    """Attention weights as alignments take them, without negative ones    [batch, target_len, source_len].

    Args:
        weights: of a layer    [batch, heads, target_len, source_len].
        head: the one to read, from 0; None for the mean over all.
    """
    weights = weights.float().clamp_min(0)
    return weights.mean(1) if head is None else weights[:, head]


def split_text(tokenizer: PreTrainedTokenizerBase, text: str, tokens: list[int], pattern: str = WORDS) -> Words:
    """Words of a text, and for each of its tokens the one that it belongs to, `NO_WORD` for special ones.

    Args:
        tokenizer: one that is not fast says nothing of where a token comes from, so that the beginnings of the text
            are decoded.
        tokens: of the text, perhaps without the last ones.
        pattern: what is a word.
    """
    if not tokenizer.is_fast:
        words, (_, places) = re.findall(pattern, text), split_tokens(tokenizer, tokens, pattern)
        # a decoded text may have other words
        return words, [min(place, len(words) - 1) for place in places]
    offsets = tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    # of a text that is cut the last token is </s>
    return split_source(text, [*offsets[: len(tokens) - 1], offsets[-1]], pattern)


def split_source(text: str, offsets: list[tuple[int, int]], pattern: str = WORDS) -> Words:
    """Words of a text, and for each token the one that it begins in or before, `NO_WORD` for special ones."""
    words, word_of_character = [], [NO_WORD] * len(text)
    for match in re.finditer(pattern, text):
        word_of_character[match.start() : match.end()] = [len(words)] * len(match[0])
        words.append(match[0])
    following = [NO_WORD] * (len(text) + 1)
    for place in range(len(text) - 1, -1, -1):
        following[place] = following[place + 1] if word_of_character[place] == NO_WORD else word_of_character[place]
    return words, [following[start] if start < end else NO_WORD for start, end in offsets]


def split_tokens(tokenizer: PreTrainedTokenizerBase, tokens: list[int], pattern: str = WORDS) -> Words:
    """Words of a decoded text, and for each token the one that it begins in or before, `NO_WORD` for special ones."""
    special = set(tokenizer.all_special_ids)
    words = re.findall(pattern, tokenizer.decode(tokens, skip_special_tokens=True))
    texts = [tokenizer.decode(tokens[:length], skip_special_tokens=True) for length in range(len(tokens) + 1)]
    places, following = [], len(words) - 1
    for token, before, text in zip(tokens[::-1], texts[-2::-1], texts[:0:-1], strict=True):
        # tokenizers differ in how they mark words, so it is the text that says where one begins
        new = text[len(before) :].lstrip()
        if new:
            begun = len(re.findall(pattern, text[: len(text) - len(new) + 1]))
            following = min(max(begun, 1), len(words)) - 1
        places.append(NO_WORD if token in special else following)
    return words, places[::-1]


def sum_over_words(weights: Tensor, source: Words, target: Words) -> Tensor:
    """Weights of words: sums over their tokens    [..., target words, source words + 1], the first of no word.

    Args:
        weights: of target tokens on source tokens    [..., target_len, source_len].
        source, target: words, and for each token the place of its word.
    """
    columns, rows = (
        functional.one_hot(torch.tensor(places) + 1, len(words) + 1) for words, places in (source, target)
    )
    return rows[:, 1:].T.float() @ weights @ columns.float()


def align_words(weights: Tensor, source: Words, target: Words) -> list[dict[str, Any]]:
    """For each target word the source word with most of its attention; see `TranslationPipeline.__call__`.

    Args:
        weights: at least 0, of target tokens on source tokens    [target_len, source_len].
        source, target: words, and for each token the place of its word.
    """
    (source_words, _), (target_words, _) = source, target
    if not target_words:
        return []
    sums = sum_over_words(weights, source, target)
    shares = sums / sums.sum(-1, keepdim=True).clamp_min(torch.finfo(sums.dtype).tiny)
    best, places = shares[:, 1:].max(-1)
    return [
        {
            "target": word,
            "source": source_words[place] if weight > 0 else None,
            "source_index": place if weight > 0 else None,
            "weight": min(weight, 1.0),
        }
        for word, weight, place in zip(target_words, best.tolist(), places.tolist(), strict=True)
    ]


def _unpack(results: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Records of each text, and after the last one a warning if some were cut or have unknown characters."""
    cut, unknown = [], {}
    for result in results:
        cut += [result["num_cut"]] if result["num_cut"] else []
        unknown |= dict.fromkeys(result["unknown"])
        yield result["records"]
    if unknown:
        logger.warning(describe_unknown(list(unknown)))
    if cut:
        logger.warning(
            f"{len(cut)} of the texts {'was' if len(cut) == 1 else 'were'} longer than the model can take and "
            f"{'was' if len(cut) == 1 else 'were'} cut by {sum(cut)} tokens"
        )
