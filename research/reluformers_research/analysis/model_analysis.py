"""Everything that this folder measures of one model, as `reluformers analyse` writes it down."""

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedModel

from reluformers.evaluation.scorer import Side

from .examples import Examples, with_tokens
from .observation import Batch, analyse
from .parameters import parameter_statistics
from .rollout import Rollout
from .statistics import NullRate, all_statistics, head_variance
from .tokens import CLASSES, frequent_words, token_classes


def analyse_model(model: PreTrainedModel, batches: Iterable[Batch], sides: Sequence[Side] = ()) -> dict[str, Any]:
    """Measure all statistics of a model on a data set.

    Args:
        model, batches: as in `observation.analyse`.
        sides: of sentence pairs, source and target, for classes of tokens and the words of examples.

    Returns:
        parameters   number of them
        statistics   name → site → layers from the first, each {"overall": number or None, "heads": numbers}; the names
                     are in the docstrings of `statistics`, `parameters`, and "null_rate.variance", `head_variance`
        examples     as `Examples`, with the texts of tokens; where there are sides
        rollout      as `Rollout`; of vision models
        stop_words   of each side, by their frequency

    Raises:
        ValueError: as `observation.analyse`.
    """
    stop_words = [frequent_words(side.texts) for side in sides]
    classes = [token_classes(side.tokenizer, words) for side, words in zip(sides, stop_words, strict=True)]
    statistics = [*all_statistics(CLASSES if sides else None), Rollout(), *([Examples()] if sides else [])]
    measured = analyse(model, batches, statistics, shuffled=[NullRate()], token_classes=tuple(classes) or None)
    rollout, examples = measured.pop("rollout", None), measured.pop("examples", None)
    measured["null_rate.variance"] = {
        site: [{"overall": head_variance(layer["heads"]), "heads": []} for layer in layers]
        for site, layers in measured["null_rate"].items()
    }
    results = {"parameters": model.num_parameters(), "statistics": {**measured, **parameter_statistics(model)}}
    if examples is not None:
        results["examples"] = with_tokens(examples, [side.tokenizer for side in sides])
    if rollout is not None:
        results["rollout"] = rollout
    if sides:
        results["stop_words"] = stop_words
    return results
