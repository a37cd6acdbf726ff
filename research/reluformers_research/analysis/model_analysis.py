"""Statistics of one model over a data set, as `reluformers analyse` writes them down."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from reluformers.evaluation.observation import Batch, attention_modules

from .observation import observing
from .statistics import LayerValue, NullRate, Statistic, all_statistics, head_variance

_SCALARS = ("scale", "length_exponent", "threshold")


def analyse_model(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, Any]:
    """Measure all statistics of a model on a data set.

    Args:
        model, batches: as in `analyse`.

    Returns:
        parameters   number of them
        statistics   name → site → layers from the first; the names are in the docstrings of `statistics`,
                     `learned_scalars`, and "null_rate.variance", `head_variance`
    """
    measured = analyse(model, batches, all_statistics(), shuffled=[NullRate()])
    measured["null_rate.variance"] = {
        site: [{"overall": head_variance(layer["heads"]), "heads": []} for layer in layers]
        for site, layers in measured["null_rate"].items()
    }
    return {"parameters": model.num_parameters(), "statistics": {**measured, **learned_scalars(model)}}


def analyse(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    statistics: Sequence[Statistic],
    *,
    shuffled: Sequence[Statistic] = (),
) -> dict[str, dict[str, list[LayerValue]]]:
    """Measure statistics in one pass over a data set, of translation models with teacher forcing.

    Args:
        model, batches: as in `observing` of the library; of images perhaps with `labels` [batch]. Memory is bounded by
            the largest batch.
        statistics: see every batch.
        shuffled: see every batch of texts with the targets moved by one row, so that none belongs to its source (ReLA
            §5.2 shuffles them over the whole set; here they are about as long as the true ones). Batches of one row
            are left out.

    Returns:
        What the statistics have found by name; those of `shuffled` with ".shuffled" behind it.

    Raises:
        ValueError: a batch lacks its inputs, or the model returns no attention weights.
    """
    with observing(model) as observe:
        for batch in batches:
            sites = observe(batch)
            for statistic in statistics:
                statistic.update(sites)
            if shuffled and "pixel_values" not in batch and len(batch["labels"]) > 1:
                sites = observe({**batch, "labels": batch["labels"].roll(1, dims=0)})
                for statistic in shuffled:
                    statistic.update(sites)
    results = {name: value for statistic in statistics for name, value in statistic.result().items()}
    others = [item for statistic in shuffled for item in statistic.result().items()]
    return {**results, **{f"{name}.shuffled": value for name, value in others}}


def learned_scalars(model: nn.Module) -> dict[str, dict[str, list[LayerValue]]]:
    """What an attention learns beside its projections, where a model does, in the form of `analyse`.

    scale            g of QKNorm eq. 4, the factor of the scores
    length_exponent  α of the divisor c·n^α (ReLU-ViT asks whether it could be learned)
    threshold        θ of φ(z − θ) (ReLA §6 asks for it)
    """
    results: dict[str, dict[str, list[LayerValue]]] = {}
    for site, modules in attention_modules(model).items():
        for name in _SCALARS:
            scalars = [getattr(module, name, None) for module in modules]
            if all(isinstance(scalar, nn.Parameter) and scalar.numel() == 1 for scalar in scalars):
                layers = [{"overall": scalar.item(), "heads": []} for scalar in scalars]
                results.setdefault(name, {})[site] = layers
    return results
