"""Everything that this folder measures of one model, as `reluformers analyse` writes it down."""

from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedModel

from .observation import Batch, analyse
from .parameters import parameter_statistics
from .statistics import NullRate, all_statistics, head_variance


def analyse_model(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, Any]:
    """Measure all statistics of a model on a data set.

    Args:
        model, batches: as in `observation.analyse`.

    Returns:
        parameters   number of them
        statistics   name → site → layers from the first, each {"overall": number or None, "heads": numbers}; the names
                     are in the docstrings of `statistics`, `parameters`, and "null_rate.variance", `head_variance`

    Raises:
        ValueError: as `observation.analyse`.
    """
    measured = analyse(model, batches, all_statistics(), shuffled=[NullRate()])
    measured["null_rate.variance"] = {
        site: [{"overall": head_variance(layer["heads"]), "heads": []} for layer in layers]
        for site, layers in measured["null_rate"].items()
    }
    return {"parameters": model.num_parameters(), "statistics": {**measured, **parameter_statistics(model)}}
