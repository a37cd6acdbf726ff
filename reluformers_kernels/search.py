# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy and beam search that give the tokens of transformers' own, in less time.

`generate` prepares everything as it always does and comes here with it. What the compiled code knows is one call of
that, and all else goes on to transformers.
"""

import copy
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    EosTokenCriteria,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    GenerationMixin,
    LogitNormalization,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput

from .decoder import SearchOptions, Translator, Unknown, are_tokens

# The compiled search allows `tokenizer` as input, because `generate` reads `stop_strings` with it, which become a
# stopping criterion.
KNOWN_INPUTS = {"attention_mask", "encoder_outputs", "past_key_values", "cache", "use_cache", "tokenizer"}
# transformers' search calls `prepare_inputs_for_generation` and `_update_model_kwargs_for_generation` at each step,
# and the compiled search does not.
_STEP_METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
# Options of `generate` that can be compared have plain types; a bool is an int.
_PLAIN = (int, float, str, list, tuple, dict, type(None))
_FOREVER = 2**31
# A model may replace some methods of transformers' search: `find_options` knows what a search by another length
# penalty replaces.
_OWN_ATTRIBUTES = ("generation_config", "_update_finished_beams", "_check_early_stop_heuristic")
# With some options `generate` prepares something else each time, so no earlier call can be repeated.
_OTHER_CALLS = ("custom_generate", "encoder_outputs")
# Each thread notes its own search: `source`, the tokens that `generate` prepares, and `search`, the options and
# prompt.
_SEARCHING = threading.local()
logger = logging.getLogger(__name__)


class SearchMixin(GenerationMixin):
    """Greedy and beam search of the library's encoder–decoder models.

    A class that names this one as its base is written for it; a subclass, a user or PEFT may replace its methods.
    """

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        if SearchMixin in cls.__bases__:
            cls._step_methods = {name: getattr(cls, name) for name in _STEP_METHODS}

    # `search_fallback` says why transformers made the last search, and not compiled code.
    search_fallback: str | None = None

    def _is_replaced(self) -> bool:
        """Whether a method that only the search of transformers calls is another than this search was written for."""
        is_patched = any(name not in _OWN_ATTRIBUTES and hasattr(GenerationMixin, name) for name in vars(self))
        return is_patched or any(
            getattr(type(self), name) is not method for name, method in self._step_methods.items()
        )

    def generate(self, inputs=None, generation_config: GenerationConfig | None = None, *args, **kwargs):
        """Generate as transformers does, and prepare nothing that the last call has prepared."""
        _SEARCHING.source = None
        if args or self._is_replaced():
            return super().generate(inputs, generation_config, *args, **kwargs)
        call = Call(self, inputs, generation_config, kwargs)
        tokens = call.repeat()
        if tokens is None:
            tokens = super().generate(inputs, generation_config, **kwargs, **call.encode())
            call.remember()
        _SEARCHING.source = None  # Another search in this thread may be of another source.
        return tokens

    def _sample(self, input_ids, **options):
        """Greedy search by compiled code; sampling, and what that does not know, by transformers."""
        return self._search_compiled(super()._sample, input_ids, options)

    def _beam_search(self, input_ids, **options):
        """Beam search by compiled code; what that does not know by transformers."""
        return self._search_compiled(super()._beam_search, input_ids, options)

    def _search_compiled(self, other_search: Callable, input_ids: Tensor, options: dict[str, Any]) -> Any:
        """Search by compiled code, or by `other_search` if that does not know the call: `search_fallback` says why."""
        try:
            tokens = search(self, input_ids, **options)
            reason = None
        except Unknown as unknown:
            reason = str(unknown)
        if reason is not None and reason != self.search_fallback:
            logger.info("transformers searches in place of compiled code: %s", reason)
        self.search_fallback = reason
        return tokens if reason is None else other_search(input_ids, **options)


def search(
    model: SearchMixin,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **model_kwargs: Any,
) -> Tensor:
    """Search for tokens as `generate` does, by compiled code; raises `Unknown` if that does not know the arguments."""
    if model._is_replaced():
        raise Unknown("a method of the search is replaced")
    check_asks_for_tokens(generation_config, model_kwargs)
    translator = Translator.of(model)
    options = find_options(model, logits_processor, stopping_criteria, generation_config)
    outputs = model_kwargs["encoder_outputs"]
    mask = model_kwargs.get("attention_mask")
    states = outputs[0]
    source = getattr(_SEARCHING, "source", None)
    if getattr(outputs, "exact", None) is not None:
        states = outputs.exact
    mask = states.new_ones(states.shape[:2]) if mask is None else mask
    if states.dim() != 3 or len(states) != len(input_ids):
        raise Unknown(f"states {list(states.shape)} for {len(input_ids)} rows")
    states = states[:: options.beams]
    mask = mask[:: options.beams].bool()
    if source is not None and source.shape == mask.shape:
        # The encoder's states are made from the tokens by compiled code, since those of PyTorch in bfloat16 differ
        # with and without a mask.
        states = source
    tokens = translator.search(states, mask, input_ids, options)
    _SEARCHING.search = (options, input_ids[0].tolist()) if (input_ids == input_ids[0]).all() else None
    return tokens


def explain_search(model: SearchMixin, **options: Any) -> str | None:
    """Say why transformers searches in place of compiled code, found by a search for one token; None if it does not.

    Args:
        model: an encoder–decoder model on its device, in evaluation mode.
        options: those of the searches to come, beside the model's own.
    """
    config = copy.deepcopy(model.generation_config)
    config.update(**options)
    config.update(max_length=None, min_length=None, max_new_tokens=1, min_new_tokens=None)
    source = torch.tensor([[model.config.eos_token_id or 0]], device=model.device)
    model.generate(source, config, attention_mask=torch.ones_like(source))
    return model.search_fallback


@dataclasses.dataclass
class EncodedSource(BaseModelOutput):
    """States of the encoder by compiled code; `exact` before they were rounded to the model's dtype."""

    exact: Tensor | None = None


def check_asks_for_tokens(generation_config: GenerationConfig, model_kwargs: dict) -> None:
    """Raise `Unknown` unless a search starts with an empty cache and gives nothing but tokens."""
    if generation_config.do_sample:
        raise Unknown("sampling")
    if generation_config.return_dict_in_generate:
        raise Unknown("return_dict_in_generate")
    # transformers calls the key and value cache `cache` from 5.24 on.
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    is_plain = isinstance(cache, EncoderDecoderCache) and type(cache.self_attention_cache) is DynamicCache
    if not (generation_config.use_cache and is_plain and cache.get_seq_length() == 0):
        raise Unknown("another cache than an empty dynamic one")
    # Keywords of `generate` that the compiled search does not know, such as a streamer or `synced_gpus`, leave the
    # search to transformers.
    for name, value in model_kwargs.items():
        if name not in KNOWN_INPUTS and value is not None and value is not False:
            raise Unknown(f"{name} is given to generate")


class Call:
    """A call of `generate` by its arguments, and what one in the same words has come to before.

    What transformers prepares for one takes as long as several steps. All that it looks at is compared: options, and
    configurations of generation.
    """

    def __init__(self, model: nn.Module, inputs: Tensor | None, generation_config: Any, others: dict[str, Any]):
        self.model = model
        self.key = None
        self.translator = None
        others = dict(others)
        is_usual = not any(others.get(name) is not None for name in _OTHER_CALLS)
        # If both `inputs` and `input_ids` are given, transformers raises an error.
        is_usual &= inputs is None or others.get("input_ids") is None
        mask = others.pop("attention_mask", None)
        ids = others.pop("input_ids", inputs)
        configs = [dict(vars(config)) for config in (generation_config, model.generation_config) if config is not None]
        values = [value for part in (others, *configs) for value in part.values()]
        is_usual &= isinstance(ids, Tensor) and ids.dim() == 2 and ids.is_cpu and ids.dtype == torch.long
        _SEARCHING.search = None
        _SEARCHING.source = ids if is_usual else None
        is_usual = is_usual and isinstance(mask, Tensor) and ids.shape == mask.shape
        if is_usual and all(isinstance(value, _PLAIN) for value in values):
            self.key = others, configs, vars(model).get("_update_finished_beams")
            try:
                with torch.no_grad():
                    translator = Translator.of(model)
            except Unknown:  # The search that follows says why compiled code does not take this model.
                return
            if ids.shape[1] <= translator.positions and are_tokens(ids, translator.vocabularies[0]):
                self.translator, self.source, self.mask = translator, ids, mask.bool()

    def repeat(self) -> Tensor | None:
        """Tokens, or None if no such call was before, or something else has changed."""
        known = None if self.translator is None else self.translator.known
        if known is None or known[0] != self.key:
            return None
        _, options, prompt = known
        first = torch.tensor([prompt]).expand(len(self.source) * options.beams, -1)
        try:
            with torch.no_grad():
                return self.translator.search(self.source, self.mask, first, options)
        except Unknown:
            return None

    def encode(self) -> dict[str, EncodedSource]:
        """States of the encoder as an option of `generate`; empty if PyTorch must compute them."""
        is_left = self.translator is None
        if is_left or any(part.get("return_dict_in_generate") for part in (self.key[0], *self.key[1])):
            return {}
        try:
            with torch.no_grad():
                states = self.translator.encode(self.source, self.mask)
        except Unknown:
            return {}
        return {"encoder_outputs": EncodedSource(states.to(self.model.dtype), exact=states)}

    def remember(self) -> None:
        """Keep what the call has come to, if it was a search of compiled code."""
        if self.translator is not None and _SEARCHING.search is not None:
            self.translator.known = copy.deepcopy(self.key[:2]) + self.key[2:], *_SEARCHING.search


def find_options(
    model: nn.Module,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
) -> SearchOptions:
    """Read the options of a search; raises `Unknown` for a processor, criterion or penalty that C does not know."""
    beams = config.num_beams
    rules, is_renormalized = read_search_rules(logits_processor)
    vocabulary = model.lm_head.out_features
    if not all(0 <= token < vocabulary for tokens, *_, is_forced in rules if is_forced for token in tokens):
        raise Unknown("a forced token that the vocabulary does not have")
    # Where one rule forbids a token that another forces, the order of rules counts, and transformers searches.
    banned = {token for tokens, *_, is_forced in rules if not is_forced for token in tokens}
    if any(is_forced and banned.intersection(tokens) for tokens, *_, is_forced in rules):
        raise Unknown("a token that is forced and forbidden")
    ends = []
    for criterion in stopping_criteria:
        # A caller's criterion takes the place of the configuration's, but transformers' beams read the latter.
        if type(criterion) is EosTokenCriteria and criterion.eos_token_id is config._eos_token_tensor:
            ends = criterion.eos_token_id.tolist()
        elif type(criterion) is not MaxLengthCriteria or criterion.max_length != config.max_length:
            raise Unknown(type(criterion).__name__)
    # A search by another length penalty puts its method on the model, with its `penalty_offset`.
    finishing = vars(model).get("_update_finished_beams")
    offset = 0 if finishing is None else getattr(finishing, "penalty_offset", None)
    if offset is None or ("_check_early_stop_heuristic" in vars(model)) != (finishing is not None):
        raise Unknown("a length penalty of its own")
    padding = config._pad_token_tensor
    if beams > 1:
        end_tokens = config._eos_token_tensor
        # As in transformers, a padding token of 0 counts as none.
        padding = padding or end_tokens[0] if end_tokens is not None else -1
    # As in transformers, `early_stopping` of None or 1 does not stop early.
    early_stopping = config.early_stopping is True
    if config.early_stopping == "never" and config.length_penalty > 0:
        early_stopping = "never"
    return SearchOptions(
        beams,
        config.num_return_sequences if beams > 1 else 1,
        config.max_length,
        0 if padding is None else int(padding),
        ends,
        rules,
        early_stopping,
        config.length_penalty,
        offset,
        is_renormalized,
    )


def read_search_rules(logits_processor: LogitsProcessorList) -> tuple[list[tuple[list[int], int, int, bool]], bool]:
    """Read what transformers' logits processors ask of the compiled search; `Unknown` if it cannot do one of them.

    Returns:
        Rules (tokens, first length, last length + 1, whether the tokens are forced or banned), and whether log P are
        normalised again over the tokens that no rule bans.
    """
    rules = []
    is_renormalized = False
    for processor in logits_processor:
        if is_renormalized:
            raise Unknown(f"{type(processor).__name__} behind a LogitNormalization")
        if type(processor) is ForcedBOSTokenLogitsProcessor:
            rules.append(([processor.bos_token_id], 1, 2, True))
        # Several forced tokens have equal scores, whose order in beams is that of PyTorch's topk.
        elif type(processor) is ForcedEOSTokenLogitsProcessor and len(processor.eos_token_id) == 1:
            length = processor.max_length
            rules.append((processor.eos_token_id.tolist(), length - 1, length, True))
        elif type(processor) is MinLengthLogitsProcessor:
            rules.append((processor.eos_token_id.tolist(), 0, processor.min_length, False))
        elif type(processor) is MinNewTokensLengthLogitsProcessor:
            length = processor.prompt_length_to_skip + processor.min_new_tokens
            rules.append((processor.eos_token_id.tolist(), 0, length, False))
        elif type(processor) is SuppressTokensLogitsProcessor:
            rules.append((processor.suppress_tokens.tolist(), 0, _FOREVER, False))
        elif type(processor) is NoBadWordsLogitsProcessor and all(len(word) == 1 for word in processor.sequence_bias):
            rules.append(([token for (token,) in processor.sequence_bias], 0, _FOREVER, False))
        elif type(processor) is LogitNormalization:
            is_renormalized = True
        else:
            raise Unknown(type(processor).__name__)
    return rules, is_renormalized
