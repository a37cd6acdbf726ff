# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Translation for `transformers.pipeline`, which lost its own: texts in, translations and word alignments out."""

import copy
import re
import threading
import torch
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from torch import Tensor
from torch.nn import functional
from transformers import (
    AttentionInterface,
    AutoTokenizer,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import has_file, logging
from typing import Any

# ---------------------------------------------------------------------------------------------------------------------
# modeling/pipeline_translation.py


logger = logging.get_logger(__name__)

TARGET_FOLDER = "target_tokenizer"
WORDS = r"\S+"
# The words of a text come with a list that gives, for each token, the index of its word, or the number of words if it
# belongs to none.
Words = tuple[list[str], list[int]]
# A lock guards the tokenizer: a call with truncation, padding or text_target changes it, and other threads use it too.
TOKENIZING = threading.RLock()


class TranslationPipeline(Pipeline):
    """Translate texts with an encoder–decoder model, one at a time or in batches.

    `pipeline("translation", model=…, trust_remote_code=True)` builds it from a folder or a repository.

    Args:
        model: with `generate` and cross-attention.
        tokenizer: of the source language, or of both.
        target_tokenizer: of the target language; by default the one in `target_tokenizer/` beside `tokenizer` if the
            model has a target vocabulary of its own, else `tokenizer`.
        kwargs: as for any pipeline (`device`, `batch_size`); options of a call become defaults here.
    """

    _load_tokenizer = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs,
    ):
        super().__init__(model, tokenizer=tokenizer, **{"task": "translation", **kwargs})
        self.target_tokenizer = target_tokenizer
        if target_tokenizer is None:
            is_beside = model.name_or_path == tokenizer.name_or_path
            revision = getattr(model, "opened_revision", None) if is_beside else None
            self.target_tokenizer = open_target_tokenizer(tokenizer, model.config, revision=revision or "main")

    def __call__(self, inputs: str | Iterable[str], **kwargs) -> list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Translate a text, a list of texts, or one by one a generator or a dataset of texts.

        Args:
            inputs: the texts.
            kwargs: `return_alignments`, to add `alignments`; `truncation`, False to refuse a text that is too long
                instead of cutting it with a warning; `batch_size`; and options of `generate`. Without `max_new_tokens`
                or `max_length` a translation may be as long as `longest_translation`.

        Returns:
            For each text `translation_text`, and in `alignments` for each word of it, as white space separates them,
            `target`, `source` (None if all weights are zero), `source_index` (its number in the source, from 0) and
            `weight`: the share of the attention that the source word has, in [0, 1]. Several sequences for a text
            (`num_return_sequences`) make a list of their own.
        """
        results = super().__call__(inputs, **kwargs)
        if isinstance(inputs, str):
            return results
        unpacked = (records[0] if len(records) == 1 else records for records in results)
        return list(unpacked) if isinstance(inputs, list) else unpacked

    def _sanitize_parameters(self, truncation=None, **options):
        return {} if truncation is None else {"truncation": truncation}, options, {}

    def preprocess(self, text: str, truncation: bool | str = True) -> dict[str, Any]:
        check_text(text, "the text")
        with TOKENIZING:
            encoding = self.tokenizer(text, return_offsets_mapping=self.tokenizer.is_fast, verbose=False)
        tokens, spans = encoding["input_ids"], encoding.get("offset_mapping", [])
        unknown = [span for token, span in zip(tokens, spans, strict=False) if token == self.tokenizer.unk_token_id]
        if unknown:
            named = ", ".join(dict.fromkeys(text[start:end].strip() for start, end in unknown))
            logger.warning(f"the tokenizer does not know {named}: what the model writes for it is invented")
        limit = min(self.tokenizer.model_max_length, most_positions(self.model.config))
        if len(tokens) > limit:
            if truncation in (False, "do_not_truncate"):
                raise ValueError(f"the text has {len(tokens)} tokens, but the model takes {limit}: shorten it")
            logger.warning(f"a text of {len(tokens)} tokens is cut to the {limit} that the model takes")
            with TOKENIZING:
                tokens = self.tokenizer(text, truncation=True, max_length=limit)["input_ids"]
        input_ids = torch.tensor([tokens])
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "text": text}

    def _forward(self, inputs: dict[str, Any], return_alignments: bool = False, **options) -> dict[str, Any]:
        input_ids, mask = inputs["input_ids"], inputs["attention_mask"]
        # A limit of None keeps a saved limit of length from winning over the one that is asked for.
        if "generation_config" not in options:
            length = longest_translation(input_ids.shape[1], self.model.config)
            # The start token counts as part of the length.
            longest = None if options.get("max_new_tokens") else length + 1
            options = {"max_length": longest, "max_new_tokens": None, **options}
        options["return_dict_in_generate"] = False
        # `generate` returns tokens alone: weights of alignments come from one pass over the finished translation.
        tokens = self.model.generate(input_ids=input_ids, attention_mask=mask, **options)
        outputs = {"tokens": tokens}
        batch = len(input_ids)
        if return_alignments:
            sources = (states.repeat_interleave(len(tokens) // batch, 0) for states in (input_ids, mask))
            outputs["weights"] = self.alignment_weights(*sources, tokens)
        # Each sentence of the batch gets a row of its own, with all its translations.
        return {**inputs, **{name: rows.unflatten(0, (batch, -1)) for name, rows in outputs.items()}}

    def postprocess(self, outputs: dict[str, Any]) -> list[dict[str, Any]]:
        with TOKENIZING:
            texts = self.target_tokenizer.batch_decode(outputs["tokens"][0], skip_special_tokens=True)
        records = [{"translation_text": text} for text in texts]
        if "weights" in outputs:
            is_real = outputs["attention_mask"][0].bool()
            source, rows = outputs["input_ids"][0, is_real], outputs["weights"][0, :, :, is_real]
            for record, tokens, weights in zip(records, outputs["tokens"][0], rows, strict=True):
                record["alignments"] = self.links(outputs["text"], source, tokens, weights)
        return records

    def align(self, text: str, translation: str | list[int], pattern: str = WORDS) -> list[dict[str, Any]]:
        """Align the words of a text and a given translation, a text or tokens of `generate`, as in `alignments`.

        The source word of a word is the one that the decoder looks at when it writes it: by cross-attention of the
        layer `alignment_layer` of the configuration, which training measures, or the last but one (Garg et al. 2019),
        of the head `alignment_head`, or the mean, summed over the tokens of each word that `pattern` finds. With
        `alignment_shifted` it is that of the step that has the token as its input (Chen et al. 2020).
        """
        source, target = self.preprocess(text)["input_ids"][0], self.read_target(translation)
        weights = self.alignment_weights(source[None], torch.ones_like(source)[None], target[None])
        return self.links(text, source, target, weights[0], pattern)

    def read_target(self, translation: str | list[int]) -> Tensor:
        """Tokens of a translation behind the first one of the decoder, cut to what the model takes."""
        if isinstance(translation, str):
            check_text(translation, "the translation")
            options = {"truncation": True, "max_length": most_positions(self.model.config)}
            with TOKENIZING:
                tokens = self.target_tokenizer(text_target=translation, **options)["input_ids"]
            translation = [self.model.generation_config.decoder_start_token_id, *tokens]
        return torch.tensor(translation)

    @torch.no_grad()
    def alignment_weights(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """The cross-attention that `align` reads [batch, target_len − 1, source_len] of tokens and sources' mask."""
        config, length = self.model.config, target.shape[1] - 1
        layer, head, is_shifted = (getattr(config, f"alignment_{name}", None) for name in ("layer", "head", "shifted"))
        first = int(bool(is_shifted))
        # The last token of a translation of full length is no input of the decoder.
        target = target[:, : min(length + first, most_positions(config))]
        inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
        inputs = {name: tokens.to(self.device) for name, tokens in inputs.items()}
        model = returning_weights(self.model).base_model
        layers = model(**inputs, output_attentions=True, use_cache=False).cross_attentions
        # If no layer was measured, the last but one is taken, which aligns best (Garg et al. 2019).
        weights = layers[max(len(layers) - 2, 0) if layer is None else layer].float().clamp_min(0).cpu()
        weights = (weights.mean(1) if head is None else weights[:, head])[:, first:]
        return functional.pad(weights, (0, 0, 0, length - weights.shape[1]))

    def links(self, text: str, source: Tensor, target: Tensor, weights: Tensor, pattern: str = WORDS) -> list[dict]:
        """The alignments of one pair, of tokens, padded or not, and their weights."""
        real = target[1:].ne(self.target_tokenizer.pad_token_id).nonzero()
        target = target[1 : 2 + int(real[-1])] if len(real) else target[:0]
        words = split_text(self.tokenizer, text, source.tolist(), pattern)
        links = split_tokens(self.target_tokenizer, target.tolist(), pattern)
        return align_words(weights[: len(target)], words, links)

    def save_pretrained(self, save_directory: str, **kwargs) -> None:
        """Save model, code and tokenizers."""
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(f"{save_directory}/{TARGET_FOLDER}")


def open_target_tokenizer(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig | None = None, **options: Any
) -> PreTrainedTokenizerBase:
    """Open the tokenizer of the target language beside the source's; the latter itself if it has both sides.

    Args:
        tokenizer: of the source, as it was opened.
        config: of the model; None if only the files are known.
        options: for `from_pretrained`.

    Raises:
        OSError: a model of this library has another target vocabulary, and no tokenizer for it.
    """
    size = getattr(config, "decoder_vocab_size", None)
    has_one_vocabulary = config is not None and size is None
    # Marian's tokenizer always has both source and target.
    if has_one_vocabulary or hasattr(tokenizer, "separate_vocabs"):
        return tokenizer
    name = tokenizer.name_or_path
    # Stock configurations without our field `tying` may name a vocabulary size that both sides share.
    is_needed = hasattr(config, "tying") and size != config.vocab_size
    file = f"{TARGET_FOLDER}/tokenizer_config.json"
    if is_needed or (name and has_file(name, file, revision=options.get("revision"))):
        return AutoTokenizer.from_pretrained(name, subfolder=TARGET_FOLDER, **options)
    return tokenizer


def check_text(text: Any, name: str) -> None:
    """Raise a `ValueError` for what is no string, is empty or has half a character."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} must be a string that is not empty, got {text!r:.50}")
    text.encode()  # Half a character raises UnicodeEncodeError, which is a ValueError.


def longest_translation(source_length: int, config: PreTrainedConfig) -> int:
    """Bound its tokens, `</s>` too: the source's and 50 (the papers), or twice the source's; at most all positions."""
    return min(source_length + max(source_length, 50), most_positions(config))


def most_positions(config: PreTrainedConfig) -> int:
    """The longest sequence in tokens; T5 has no limit."""
    return getattr(config, "max_position_embeddings", None) or 10**6


def returning_weights(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself if `output_attentions` is all it needs to return its weights, else one that shares its tensors.

    Ours compute so in each call, and so does an attention of ours by name. Another one of transformers does where
    `"eager"`, which computes softmax, is set for the model: here for a copy, as others may use the model meanwhile.
    """
    known = AttentionInterface()

    def returns_weights(part: PreTrainedModel) -> bool:
        name = part.config._attn_implementation_internal
        return hasattr(part, "attention_options") or getattr(known.get(name), "returns_weights", name == "eager")

    def parts(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
        return (part for part in model.modules() if isinstance(part, PreTrainedModel) and not returns_weights(part))

    if next(parts(model), None) is None:
        return model
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for config in [part.config for part in parts(twin)]:
        config._attn_implementation_internal = "eager"
    return twin


def split_text(tokenizer: PreTrainedTokenizerBase, text: str, tokens: list[int], pattern: str = WORDS) -> Words:
    """Find the words of a text, and for each of its tokens, perhaps without the last ones, the index of its word."""
    if not tokenizer.is_fast:  # A slow tokenizer does not say where in the text a token comes from.
        return _split_by_pieces(tokenizer, " ".join(text.split()), tokens, pattern)
    options = {"truncation": True, "max_length": len(tokens), "return_offsets_mapping": True}
    with TOKENIZING:
        offsets = tokenizer(text, **options)["offset_mapping"]
    return _words(text, [start if start < end else None for start, end in offsets], pattern)


def _split_by_pieces(tokenizer: PreTrainedTokenizerBase, text: str, tokens: list[int], pattern: str) -> Words:
    """`split_text` by what the pieces of a text spell: Marian decodes tokens by the target's vocabulary alone."""
    starts: list[int | None] = []
    index = 0
    with TOKENIZING:
        pieces = tokenizer.tokenize(text)[: len(tokens)]
        ids = tokenizer.convert_tokens_to_ids(pieces)
        for token in tokens:
            # A token that is not of the text marks the end or a language.
            is_of_text = ids[index : index + 1] == [token]
            starts.append(len(tokenizer.convert_tokens_to_string(pieces[:index])) if is_of_text else None)
            index += is_of_text
    return _words(text, starts, pattern)


def split_tokens(tokenizer: PreTrainedTokenizerBase, tokens: list[int], pattern: str = WORDS) -> Words:
    """Find the words of what tokens spell, and for each token the index of its word."""
    with TOKENIZING:
        spelled = [tokenizer.decode(tokens[:count], skip_special_tokens=True) for count in range(len(tokens) + 1)]
    # The first bytes of a character of several bytes are decoded as U+FFFD, which is not text yet.
    starts = [len(before.rstrip("\N{REPLACEMENT CHARACTER}")) for before in spelled[:-1]]
    special = set(tokenizer.all_special_ids)
    starts = [None if token in special else start for token, start in zip(tokens, starts, strict=True)]
    return _words(spelled[-1], starts, pattern)


def _words(text: str, starts: list[int | None], pattern: str) -> Words:
    """Find the words of a text up to the last token, and for each token the first one that ends behind its start."""
    last, words = max((start for start in starts if start is not None), default=0), []
    for word in re.finditer(pattern, text):
        words.append(word)
        # Words behind the last token have no weights to show: most words of a long text that was cut have no token.
        if word.end() > last:
            break
    ends = [word.end() for word in words]
    indices = [len(words) if start is None else bisect_right(ends, start) for start in starts]
    return [word[0] for word in words], indices


def sum_over_words(weights: Tensor, source: Words, target: Words) -> Tensor:
    """Sum over tokens [..., target_len, source_len] to words [..., target words, source words + 1: of no word]."""
    columns, rows = (
        functional.one_hot(torch.tensor(indices, dtype=torch.long), len(words) + 1)
        for words, indices in (source, target)
    )
    # Weights of tokens are summed over words by two products with matrices of 0 and 1, which save a loop over words.
    return rows[:, :-1].T.float() @ weights @ columns.float()


def align_words(weights: Tensor, source: Words, target: Words) -> list[dict[str, Any]]:
    """Choose for each target word the source word with most of its attention; see `TranslationPipeline`."""
    if not source[0]:
        return [{"target": word, "source": None, "source_index": None, "weight": 0.0} for word in target[0]]
    sums = sum_over_words(weights, source, target)
    shares = sums / sums.sum(-1, keepdim=True).clamp_min(torch.finfo(sums.dtype).tiny)
    best, indices = (values.tolist() for values in shares[:, :-1].max(-1))
    return [
        {
            "target": word,
            "source": source[0][index] if share > 0 else None,
            "source_index": index if share > 0 else None,
            "weight": min(share, 1.0),
        }
        for word, share, index in zip(target[0], best, indices, strict=True)
    ]
