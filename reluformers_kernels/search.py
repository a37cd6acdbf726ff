# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy and beam search that give the tokens of transformers' own, in less time.

`generate` prepares everything as it always does and comes here with it; what a search here does not know goes on to
transformers. The rules of beam search (which hypotheses go on, which are finished, when to stop) are its methods too.
Different is what they cost: beams of a sentence are queries of one cross-attention, keys and values stay in memory
that is there before, sentences that are finished leave the batch, and of the vocabulary only the best tokens are
ordered.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    EosTokenCriteria,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput

from .cache import SourceCache, TargetCache
from .decoder import KnownSearch, search_compiled

# those that look at nothing but the tokens of a row, so that rows may leave the batch
ROW_PROCESSORS = (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
ROW_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)
# the last one reads `stop_strings`, which are a criterion of their own
KNOWN_INPUTS = {"attention_mask", "encoder_outputs", "past_key_values", "cache", "use_cache", "tokenizer"}
# what the search of transformers calls at each step, and this one does not
_STEP_METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
_CACHE_NAMES: dict[Callable, str] = {}  # function of transformers that makes a cache → what it calls it
DONE_SHARE = 1 / 8  # sentences leave the batch when so many of it are done: what stays has to be copied


class SearchMixin(GenerationMixin):
    """Greedy and beam search of encoder–decoder models whose decoder takes several rows for one of the source.

    A class that names this one as its base is written for it; a subclass, a user or PEFT may replace its methods.
    """

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        if SearchMixin in cls.__bases__:
            cls._step_methods = {name: getattr(cls, name) for name in _STEP_METHODS}

    def _is_replaced(self) -> bool:
        """Whether a method that only the search of transformers calls is another than this search was written for."""
        return any(
            name in vars(self) or getattr(type(self), name) is not method
            for name, method in self._step_methods.items()
        )

    def generate(
        self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, *args, **kwargs
    ):
        """Generate as transformers does, and prepare nothing that the last call has prepared."""
        if args or self._is_replaced():
            return super().generate(inputs, generation_config, *args, **kwargs)
        known = KnownSearch(self, inputs, generation_config, kwargs)
        found = known.run()
        if found is None:
            found = super().generate(inputs, generation_config, **kwargs)
            known.remember()
        return found

    def _prepare_cache_for_generation(self, generation_config, model_kwargs: dict, *args, **kwargs) -> None:
        """The cache that transformers makes, but for the source one that beam search need not reorder."""
        is_dynamic = generation_config.cache_implementation in (None, "dynamic")
        is_ours = _cache_of(model_kwargs) is None and is_dynamic and generation_config.use_cache
        maker = GenerationMixin._prepare_cache_for_generation
        if is_ours and maker in _CACHE_NAMES:
            # it copies the whole configuration three times for the same: a tenth of the time of a short translation
            model_kwargs[_CACHE_NAMES[maker]] = EncoderDecoderCache(DynamicCache(), SourceCache())
            return
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = _cache_of(model_kwargs)
        if is_ours and isinstance(cache, EncoderDecoderCache):
            cache.cross_attention_cache = SourceCache()
            _CACHE_NAMES[maker] = next(name for name, value in model_kwargs.items() if value is cache)

    def next_logits(self, tokens: Tensor, source: Tensor, mask: Tensor | None, cache: EncoderDecoderCache) -> Tensor:
        """Logits [rows, length, vocabulary] of the tokens that follow `tokens` [rows, length], which the cache takes.

        Args:
            source: states of the encoder, of one row for several of `tokens`.
            mask: of the source.
            cache: of the tokens before.
        """
        return self(
            attention_mask=mask,
            decoder_input_ids=tokens,
            encoder_outputs=BaseModelOutput(last_hidden_state=source),
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        ).logits

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer=None,
        **model_kwargs,
    ):
        """Greedy search here; sampling, and what `knows_search` does not know, by transformers."""
        search = (logits_processor, stopping_criteria, generation_config)
        if synced_gpus or streamer is not None or self._is_replaced() or not knows_search(*search, model_kwargs):
            options = {"synced_gpus": synced_gpus, "streamer": streamer, **model_kwargs}
            return super()._sample(input_ids, *search, **options)
        found = search_compiled(self, input_ids, *search, model_kwargs)
        if found is not None:
            return found
        with _one_output_weight(self):
            return _greedy_search(self, input_ids, *search, model_kwargs)

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ):
        """Beam search here; what `knows_search` does not know by transformers."""
        search = (logits_processor, stopping_criteria, generation_config)
        if synced_gpus or self._is_replaced() or not knows_search(*search, model_kwargs):
            return super()._beam_search(input_ids, *search, synced_gpus=synced_gpus, **model_kwargs)
        found = search_compiled(self, input_ids, *search, model_kwargs)
        if found is not None:
            return found
        with _one_output_weight(self):
            return _beam_search(self, input_ids, *search, model_kwargs)


@contextmanager
def _one_output_weight(model: GenerationMixin) -> Iterator[None]:
    """Make the unit rows of FixNorm's output layer once for a search, whose steps all use them and train none."""
    output = model.get_output_embeddings()
    if hasattr(output, "unit_weight"):
        output.unit_weight = functools.cache(output.unit_weight)
    try:
        yield
    finally:
        output.__dict__.pop("unit_weight", None)


def knows_search(
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    model_kwargs: dict,
) -> bool:
    """Whether the searches here give what is asked for: tokens alone, by rules that look at each row by itself."""
    cache = _cache_of(model_kwargs)
    is_ours = isinstance(cache, EncoderDecoderCache) and isinstance(cache.cross_attention_cache, SourceCache)
    return (
        not (generation_config.do_sample or generation_config.return_dict_in_generate)
        and generation_config.use_cache
        and is_ours
        and cache.get_seq_length() == 0
        and {name for name, value in model_kwargs.items() if value is not None} <= KNOWN_INPUTS
        and all(type(processor) in ROW_PROCESSORS for processor in logits_processor)
        and all(type(criterion) in ROW_CRITERIA for criterion in stopping_criteria)
    )


def _cache_of(model_kwargs: dict) -> Cache | None:
    """Find the cache of a search, which transformers calls `cache` from 5.24 on."""
    return model_kwargs.get("cache", model_kwargs.get("past_key_values"))


class _Decoder:
    """The model behind one source batch, a step at a time.

    Args:
        model: makes logits of the tokens that follow those in its cache.
        beams: rows of the target for each of the source.
        max_length: most tokens of a row.
        model_kwargs: of the search; source rows are repeated for the beams in it.
    """

    def __init__(self, model: SearchMixin, beams: int, max_length: int, model_kwargs: dict):
        self.model = model
        # transformers repeats the source for each beam; here one row serves all beams of a sentence
        self.source = model_kwargs["encoder_outputs"][0][::beams]
        mask = model_kwargs.get("attention_mask")
        self.mask = None if mask is None else mask[::beams]
        self.cache = EncoderDecoderCache(TargetCache(max_length), SourceCache())

    def step(self, tokens: Tensor) -> Tensor:
        """Logits of the token after `tokens` [rows, length], in float32 [rows, vocabulary]."""
        return self.model.next_logits(tokens, self.source, self.mask, self.cache)[:, -1].float()

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Go on with these rows of the target, and with these sentences alone."""
        self.cache.self_attention_cache.reorder_cache(rows)
        if sentences is not None:
            self.source = self.source[sentences]
            self.mask = None if self.mask is None else self.mask[sentences]
            self.cache.cross_attention_cache.batch_select_indices(sentences)


def _most_tokens(model: SearchMixin, generation_config: GenerationConfig, prompt_len: int) -> int:
    """Bound the tokens of a row: by `max_length`, and by the positions that the decoder has."""
    return min(generation_config.max_length, max(prompt_len, model.config.max_position_embeddings + 1))


def _greedy_search(
    model: SearchMixin,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    model_kwargs: dict,
) -> Tensor:
    """Tokens [batch, length]: at each step the most likely one, padding behind the end."""
    length = input_ids.shape[1]
    width = _most_tokens(model, generation_config, length)
    decoder = _Decoder(model, 1, width, model_kwargs)
    padding = generation_config._pad_token_tensor
    sequences = input_ids.new_zeros(len(input_ids), width)
    if padding is not None:  # it is where there is an end
        sequences[:] = padding
    sequences[:, :length] = input_ids
    tokens, running = input_ids, input_ids
    rows = torch.arange(len(input_ids), device=input_ids.device)  # of the batch, that are still in it
    is_done = torch.zeros_like(rows, dtype=torch.bool)
    while True:
        scores = logits_processor(running, decoder.step(tokens))
        tokens = scores.argmax(-1, keepdim=True)
        if padding is not None:
            tokens = tokens.masked_fill(is_done[:, None], padding)
        running = torch.cat([running, tokens], dim=1)
        sequences[rows, length] = tokens[:, 0]
        length += 1
        # `int` makes Python wait for a GPU, so there is one a step
        is_done = is_done | stopping_criteria(running, None)
        done = int(is_done.sum())
        if done == len(rows):
            return sequences[:, :length]
        if done >= DONE_SHARE * len(rows) and padding is not None:
            kept = (~is_done).nonzero()[:, 0]
            decoder.select(kept, kept)
            tokens, running, rows, is_done = tokens[kept], running[kept], rows[kept], is_done[kept]


def _beam_search(
    model: SearchMixin,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    model_kwargs: dict,
) -> Tensor:
    """Tokens [batch · num_return_sequences, length] of the best hypotheses, by the rules of transformers."""
    config, device = generation_config, input_ids.device
    beams, returned = config.num_beams, config.num_return_sequences
    prompt_len = length = input_ids.shape[1]
    width = _most_tokens(model, config, length)
    ends = config._eos_token_tensor
    # so many that `beams` go on even if all others end
    number = max(2, 1 + (0 if ends is None else len(ends))) * beams
    # only a hypothesis among the best `beams` may finish, as in transformers
    is_top = torch.arange(number, device=device) < beams
    decoder = _Decoder(model, beams, width, model_kwargs)
    batch = len(input_ids) // beams
    padding = config._pad_token_tensor or ends[0] if ends is not None else -1  # as there: 0 is no padding
    running = input_ids.new_full((batch, beams, width), int(padding))
    running[:, :, :length] = input_ids.view(batch, beams, length)
    running_scores = torch.zeros(batch, beams, device=device)
    running_scores[:, 1:] = -1e9  # at first all beams are the same
    finished, scores = running.clone(), torch.full_like(running_scores, -1e9)
    origins = torch.zeros(batch, beams, 2, dtype=torch.long, device=device)  # length and parent of each hypothesis
    is_finished = torch.zeros_like(scores, dtype=torch.bool)
    may_improve = torch.ones(batch, 1, dtype=torch.bool, device=device)
    results = finished[:, :returned].clone()
    lengths = running.new_zeros(batch, returned)
    sentences = torch.arange(batch, device=device)  # of the batch, that are still in it
    tokens = input_ids
    while True:
        logits = decoder.step(tokens)
        step_scores, parents, tokens = _best_continuations(
            logits, running_scores, number, logits_processor, running[:, :, :length].flatten(0, 1)
        )
        continued = running.gather(1, parents[:, :, None].expand(-1, -1, width))
        continued[:, :, length] = tokens
        hits = stopping_criteria(continued[:, :, : length + 1].flatten(0, 1), None).view(-1, number)
        new_origins = torch.stack([torch.full_like(parents, length + 1), parents], dim=-1)
        running, running_scores, running_origins = model._get_running_beams_for_next_iteration(
            topk_log_probs=step_scores,
            topk_running_sequences=continued,
            topk_running_beam_indices=new_origins,
            next_token_hits_stopping_criteria=hits,
            num_beams=beams,
        )
        finished, scores, origins, is_finished = model._update_finished_beams(
            sequences=finished,
            topk_running_sequences=continued,
            beam_scores=scores,
            topk_log_probs=step_scores,
            beam_indices=origins,
            topk_running_beam_indices=new_origins,
            is_early_stop_heuristic_unsatisfied=may_improve,
            is_sent_finished=is_finished,
            next_token_hits_stopping_criteria=hits,
            top_num_beam_mask=is_top,
            num_beams=beams,
            cur_len=length,
            decoder_prompt_len=prompt_len,
            length_penalty=config.length_penalty,
            early_stopping=config.early_stopping,
        )
        length += 1
        may_improve = model._check_early_stop_heuristic(
            is_early_stop_heuristic_unsatisfied=may_improve,
            running_beam_scores=running_scores,
            beam_scores=scores,
            is_sent_finished=is_finished,
            cur_len=length,
            max_length=config.max_length,
            decoder_prompt_len=prompt_len,
            early_stopping=config.early_stopping,
            length_penalty=config.length_penalty,
        )
        # from here on nothing changes a sentence that is done
        is_done = ~may_improve[:, 0] | hits.all()
        if config.early_stopping is True:
            is_done = is_done | is_finished.all(-1)
        done = int(is_done.sum())
        if done == len(is_done):
            results[sentences], lengths[sentences] = finished[:, :returned], origins[:, :returned, 0]
            return results.flatten(0, 1)[:, : max(prompt_len, int(lengths.max()))]
        parents, kept = running_origins[..., 1], None
        offsets = torch.arange(len(parents), device=device)[:, None] * beams
        rows = parents + offsets
        if done >= DONE_SHARE * len(is_done):
            gone, kept = is_done.nonzero()[:, 0], (~is_done).nonzero()[:, 0]
            results[sentences[gone]] = finished[gone, :returned]
            lengths[sentences[gone]] = origins[gone, :returned, 0]
            state = (running, running_scores, finished, scores, origins, is_finished, may_improve, sentences, rows)
            state = [part[kept] for part in state]
            running, running_scores, finished, scores, origins, is_finished, may_improve, sentences, rows = state
        decoder.select(rows.flatten(), kept)
        tokens = running[:, :, length - 1 : length].flatten(0, 1)


def _best_continuations(
    logits: Tensor, running_scores: Tensor, number: int, logits_processor: LogitsProcessorList, running: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The best `number` continuations of each sentence.

    Args:
        logits: float32 [batch · beams, vocabulary].
        running_scores: log P of the beams so far [batch, beams].
        number: at most as many as there are.
        logits_processor: changes log P of the next tokens.
        running: tokens so far [batch · beams, length].

    Returns:
        log P, falling, beam and token, each [batch, number].
    """
    batch, beams = running_scores.shape
    if logits_processor:
        logits = logits_processor(running, logits.log_softmax(-1))
        constants = running_scores
    else:
        # log-softmax moves all tokens of a row by one number, so the best tokens are found without it
        constants = running_scores - logits.logsumexp(-1).view(batch, beams)
    values, tokens = top_k(logits, min(number, logits.shape[-1]))
    values = values.view(batch, beams, -1) + constants[:, :, None]
    scores, places = values.flatten(1).topk(number)
    return scores, places // values.shape[-1], tokens.view(batch, -1).gather(1, places)


def top_k(values: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` of rows [rows, length], faster if they are long: the best lie in the parts with the best firsts.

    Returns:
        values, falling, and places, each [rows, number].
    """
    rows, length = values.shape
    width = max(1, int((length / number) ** 0.5))  # fewest values to order: one of each part, and `number` parts
    parts = length // width
    if parts <= 2 * number:
        return values.topk(number)
    # a part is every so-manieth value: the best of all parts are then found side by side
    best = values[:, : parts * width].unflatten(1, (width, parts)).amax(1).topk(number, sorted=False).indices
    places = (best[:, None, :] + torch.arange(0, parts * width, parts, device=values.device)[:, None]).flatten(1)
    rest = torch.arange(parts * width, length, device=values.device).expand(rows, -1)
    places = torch.cat([places, rest], dim=1)
    top = values.gather(1, places).topk(number)
    return top.values, places.gather(1, top.indices)
