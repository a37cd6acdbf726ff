"""Length penalty of Wu et al. 2016 for the beam search of transformers."""

import copy
from typing import Any

# ((_OFFSET + length) / (_OFFSET + 1)) ** alpha, Wu et al. 2016, eq. 14
_OFFSET = 5


def wu_length_penalty(model: Any) -> Any:
    """Copy a model, which shares all its modules, so that beam search divides by ((5 + len)/6)^α instead of len^α.

    score(Y) = log P(Y|X) · 6^α / (5 + |Y|)^α,  α = `length_penalty` of `generate`, |Y| = generated tokens with </s>.

    transformers divides by |Y|^α, so that an α from the papers (0.6) means something else there. The copy replaces
    the two steps of its beam search that divide: which hypothesis wins, when the search stops, and `sequences_scores`
    all follow the formula. Greedy search and sampling have no length penalty and stay as they are. The papers stop
    when no running beam can win any more: `early_stopping="never"`. The model itself, which others may use meanwhile,
    stays as it was.

    Args:
        model: a model with transformers' `generate`; merge an adapter of PEFT into its model first.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", eq. 14, without the coverage term; used by
    ReLA and QKNorm with α = 0.6.
    """
    generator = copy.copy(model)
    # taken from the class: a copy of a copy must not shift the length twice
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

    update_finished_beams.penalty_offset = _OFFSET  # for the compiled search
    generator._update_finished_beams = update_finished_beams
    generator._check_early_stop_heuristic = check_early_stop_heuristic
    return generator
