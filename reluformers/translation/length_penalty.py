"""Length penalty of Wu et al. 2016 for the beam search of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationMixin

# ((_OFFSET + length) / (_OFFSET + 1)) ** alpha, Wu et al. 2016, eq. 14
_OFFSET = 5


@contextmanager
def wu_length_penalty(model: Any) -> Iterator[None]:
    """Make beam search divide by ((5 + len)/6)^α instead of len^α while the context is open.

    score(Y) = log P(Y|X) · 6^α / (5 + |Y|)^α,  α = `length_penalty` of `generate`, |Y| = generated tokens with </s>.

    transformers divides by |Y|^α, so that an α from the papers (0.6) means something else there. The context replaces
    the two steps of its beam search that divide, on this model only: which hypothesis wins, when the search stops,
    and `sequences_scores` all follow the formula. Greedy search and sampling have no length penalty and stay as they
    are. The papers stop when no running beam can win any more: `early_stopping="never"`.

    Args:
        model: a model with transformers' `generate`, or a PEFT model around one.

    Raises:
        ValueError: the model has no beam search of transformers.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", eq. 14, without the coverage term; used by
    ReLA and QKNorm with α = 0.6.
    """
    generator = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(generator, GenerationMixin):
        raise ValueError(f"wu_length_penalty needs a model that can generate, got {type(model).__name__}.")
    # taken from the class: a context inside another one must not shift the length twice
    finish, may_improve = type(generator)._update_finished_beams, type(generator)._check_early_stop_heuristic

    def update_finished_beams(*, topk_log_probs, decoder_prompt_len, length_penalty, **state):
        return finish(
            generator,
            topk_log_probs=topk_log_probs * (_OFFSET + 1) ** length_penalty,
            decoder_prompt_len=decoder_prompt_len - _OFFSET,
            length_penalty=length_penalty,
            **state,
        )

    def check_early_stop_heuristic(*, running_beam_scores, decoder_prompt_len, length_penalty, **state):
        return may_improve(
            running_beam_scores=running_beam_scores * (_OFFSET + 1) ** length_penalty,
            decoder_prompt_len=decoder_prompt_len - _OFFSET,
            length_penalty=length_penalty,
            **state,
        )

    replaced = {
        "_update_finished_beams": update_finished_beams,
        "_check_early_stop_heuristic": check_early_stop_heuristic,
    }
    before = {name: vars(generator)[name] for name in replaced if name in vars(generator)}
    try:
        for name, function in replaced.items():
            setattr(generator, name, function)
        yield
    finally:
        for name in replaced:
            delattr(generator, name)
        for name, function in before.items():
            setattr(generator, name, function)
