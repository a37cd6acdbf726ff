# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Check that `generate` of the installed transformers still gives what the model itself computes.

A saved folder keeps its code while transformers goes on.
"""

import copy
import threading

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin
from transformers.utils import logging

logger = logging.get_logger(__name__)

# `NEWEST_TESTED` is the newest release of transformers that the code was tested with.
NEWEST_TESTED = (5, 24)
_CHECKING = threading.Lock()


class CheckedGenerationMixin(GenerationMixin):
    """`generate` that is compared with the model once, before its first use on a transformers newer than tested."""

    _is_generation_checked = tuple(map(int, transformers.__version__.split(".")[:2])) <= NEWEST_TESTED
    _generates_with_cache = True

    def generate(self, *args, **kwargs):
        """Generate as transformers does; without a cache, or not at all, where it differs from the model's logits."""
        if not self._is_generation_checked:
            with _CHECKING:  # Other threads wait until the first one has checked generation.
                self._check_generation()
        if not self._generates_with_cache:
            kwargs["use_cache"] = False
        return super().generate(*args, **kwargs)

    def _check_generation(self) -> None:
        if not self._is_generation_checked and (problem := find_generation_fault(self)):
            newest = "{}.{}".format(*NEWEST_TESTED)
            problem = (
                f"this model's code knows transformers up to {newest}, and with {transformers.__version__} "
                f"{problem}: install transformers {newest}, or save the model with newer code"
            )
            if find_generation_fault(self, use_cache=False) is not None:
                raise RuntimeError(problem)
            # Generation goes on without a cache, because slow and right is better than fast and wrong.
            self._generates_with_cache = False
            logger.warning(f"{problem}. Until then it generates without a cache: the tokens are right, but slow.")
        self._is_generation_checked = True


@torch.no_grad()
def find_generation_fault(model: CheckedGenerationMixin, use_cache: bool = True) -> str | None:
    """Say in words how steps of `generate` differ from one pass of the model over their tokens; None if they agree.

    A new model of at most two layers answers for `model`, in float32: what is asked is whether this code and the
    installed transformers fit together, and in bfloat16 two right ways of computing may choose different tokens.
    """
    model = _build_like(model)
    config = model.config
    length = min(5, config.max_position_embeddings)
    steps = min(4, config.max_position_embeddings)
    # The check may take any tokens, because both ways of generating get the same ones.
    input_ids = (torch.arange(2 * length, device=model.device).view(2, length) * 7 + 3) % config.vocab_size
    mask = torch.ones_like(input_ids)
    # One row of the check is padding except for its first token, so a lost mask changes its result.
    mask[1, 1:] = 0
    inputs = {"input_ids": input_ids, "attention_mask": mask}
    # Apart from these options, generation is checked with the settings that the model was saved with.
    options = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "use_cache": use_cache}
    options |= {"max_new_tokens": steps, "min_new_tokens": steps, "max_length": None}
    tokens = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    options |= {name: getattr(model.generation_config, name) for name in tokens}

    def generate(**others):
        # The parent's `generate` is called, because the checked one would check without end.
        search = super(CheckedGenerationMixin, model).generate
        return search(**inputs, generation_config=GenerationConfig(**{**options, **others}))

    try:
        for cache in ({}, {"cache_implementation": "static", "disable_compile": True})[: 1 + use_cache]:
            greedy = generate(output_logits=True, return_dict_in_generate=True, **cache)
            expected = model(**inputs, decoder_input_ids=greedy.sequences[:, :-1], use_cache=False).logits
            error = (torch.stack(greedy.logits, dim=1) - expected).abs().max() / expected.abs().max()
            # The comparison of logits is written so that a NaN fails it.
            if not error <= torch.finfo(torch.float32).eps ** 0.5:
                return f"logits differ from the model's by {error:.1e} of the largest in greedy search {cache or ''}"
            if not torch.equal(generate(**cache), greedy.sequences):
                return "greedy search gives two answers, with logits and without"
        # Beam search reorders the cache, which greedy search never does.
        if not torch.equal(generate(num_beams=2), generate(num_beams=2, use_cache=False)):
            return "beam search gives other tokens with a cache than without"
    except Exception as error:
        return f"generate ends with {type(error).__name__}: {error}"
    return None


def _build_like(model: CheckedGenerationMixin) -> CheckedGenerationMixin:
    config = copy.deepcopy(model.config)
    config.encoder_layers = min(2, config.encoder_layers)
    config.decoder_layers = min(2, config.decoder_layers)
    # A user's seed gives the same random numbers with the check of generation and without.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        smaller = type(model)(config)
    smaller.generation_config = model.generation_config
    return smaller.to(model.device, torch.float32).eval()
