# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Whether `generate` of the installed transformers still gives what the model itself computes.

`generate` and a model agree on names and on the order of calls, and a saved folder keeps its code while transformers
goes on. Cached steps are therefore compared with one pass over the same tokens without a cache.
"""

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.utils import logging

logger = logging.get_logger(__name__)

# the newest release of transformers that this code was tested with
NEWEST_TESTED = "5.24"
STEPS = 4
SOURCE_LENGTH = 5


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


class CheckedGenerationMixin(GenerationMixin):
    """`generate` that is compared with the model once, before its first use on a transformers newer than tested."""

    _is_generation_checked = _release(transformers.__version__) <= _release(NEWEST_TESTED)
    _generates_with_cache = True

    def generate(self, *args, **kwargs):
        """As in transformers; without a cache where cached steps were found to differ from the model's own logits.

        Raises:
            RuntimeError: `generate` differs from the model without a cache too.
        """
        if not self._is_generation_checked:
            self._is_generation_checked = True  # before the check, which generates
            self._check_generation()
        if not self._generates_with_cache:
            kwargs["use_cache"] = False
        return super().generate(*args, **kwargs)

    def _check_generation(self) -> None:
        problem = find_generation_fault(self)
        if problem is None:
            return
        advice = (
            f"transformers {transformers.__version__} is newer than {NEWEST_TESTED}, with which this model's code was "
            f"tested, and {problem}. Install transformers {NEWEST_TESTED}, or save the model again with a newer "
            "version of its code"
        )
        if find_generation_fault(self, use_cache=False) is not None:
            raise RuntimeError(f"generate does not fit this model: {advice}.")
        self._generates_with_cache = False
        logger.warning(f"{advice}. Until then it generates without a cache: the tokens are right, but slow.")


@torch.no_grad()
def find_generation_fault(model: CheckedGenerationMixin, use_cache: bool = True) -> str | None:
    """Compare a few steps of `generate` with one pass of the model over the same tokens.

    Greedy and beam search are tried, with a padded source, and with a cache also a static one behind a padded target.

    Args:
        model: encoder–decoder model; it is in evaluation mode meanwhile.
        use_cache: of `generate`.

    Returns:
        What differs, or raises, in words; None if nothing does.
    """
    was_training = model.training
    model.eval()
    try:
        return next(filter(None, _differences(model, use_cache)), None)
    except Exception as error:
        return f"generate ends with {type(error).__name__}: {error}"
    finally:
        model.train(was_training)


def _differences(model: CheckedGenerationMixin, use_cache: bool):
    """What differs, or None, for each search."""
    config, device = model.config, model.device
    length, steps = (min(number, config.max_position_embeddings) for number in (SOURCE_LENGTH, STEPS))
    inputs = {"input_ids": (torch.arange(2 * length, device=device).view(2, length) * 7 + 3) % config.vocab_size}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, length - 1 :] = int(length == 1)
    ids = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    options = {name: getattr(model.generation_config, name) for name in ids} | {"max_new_tokens": steps}
    if options["eos_token_id"] is not None:
        options["min_new_tokens"] = steps
    options |= {"do_sample": False, "use_cache": use_cache, "max_length": None}

    def generate(num_beams: int = 1, is_whole: bool = True, prompt: dict[str, Tensor] | None = None, **others):
        settings = GenerationConfig(
            num_beams=num_beams, output_logits=is_whole, return_dict_in_generate=is_whole, **options, **others
        )
        return model.generate(**inputs, **(prompt or {}), generation_config=settings)

    def difference(name: str, logits: tuple[Tensor, ...], tokens: Tensor, mask: Tensor | None = None) -> str | None:
        expected = model(
            **inputs, decoder_input_ids=tokens[:, :-1], decoder_attention_mask=mask, use_cache=False
        ).logits.float()[:, -len(logits) :]
        error = (torch.stack(logits, dim=1).float() - expected).abs().max() / expected.abs().max()
        if error <= torch.finfo(model.dtype).eps ** 0.5:  # a NaN is not
            return None
        return f"{name}, its logits differ from the model's by {error:.1e} of the largest"

    greedy = generate()
    yield difference("in greedy search", greedy.logits, greedy.sequences)
    if not torch.equal(generate(is_whole=False), greedy.sequences):
        yield "greedy search gives two answers, with logits and without"
    beams = generate(num_beams=2).sequences
    if not torch.equal(generate(num_beams=2, is_whole=False), beams):
        yield "beam search gives two answers, with logits and without"
    if not use_cache:
        return
    without_cache = GenerationConfig(num_beams=2, **{**options, "use_cache": False})
    if not torch.equal(model.generate(**inputs, generation_config=without_cache), beams):
        yield "beam search gives other tokens than without a cache"
    if config.max_position_embeddings > 2:
        target = greedy.sequences[:, :2].clone()
        mask = torch.ones_like(target)
        mask[1, 0] = 0
        options["max_new_tokens"] = options["min_new_tokens"] = min(steps, config.max_position_embeddings - 2)
        prompt = {"decoder_input_ids": target, "decoder_attention_mask": mask}
        static = generate(prompt=prompt, cache_implementation="static", disable_compile=True)
        ones = mask.new_ones(2, static.sequences.shape[1] - 3)
        yield difference("with a static cache", static.logits, static.sequences, torch.cat([mask, ones], dim=1))
