"""Statistics of one model over a data set, as `reluformers analyse` writes them down."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from reluformers.evaluation.observation import Batch, attention_modules

from .observation import observing
from .statistics import LayerValue, Sums, count_all, count_shuffled

_SCALARS = ("scale", "length_exponent", "threshold")


def analyse_model(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, Any]:
    """Measure all statistics of a model in one pass over a data set, of translation models with teacher forcing.

    Every batch of texts is seen again with the targets moved by one row, so that none belongs to its source (ReLA §5.2
    shuffles them over the whole set; here they are about as long as the true ones). Batches of one row are left out.

    Args:
        model, batches: as in `observing` of the library; of images perhaps with `labels` [batch]. Memory is bounded by
            the largest batch.

    Returns:
        parameters   number of them
        statistics   name → site → layers from the first; the names are in the docstrings of `statistics`,
                     `learned_scalars`, and "null_rate.shuffled"

    Raises:
        ValueError: a batch lacks its inputs, or the model returns no attention weights.
    """
    sums = Sums()
    with observing(model) as observe:
        for batch in batches:
            sums.add(observe(batch), count_all)
            if "pixel_values" not in batch and len(batch["labels"]) > 1:
                sums.add(observe({**batch, "labels": batch["labels"].roll(1, dims=0)}), count_shuffled)
    return {"parameters": model.num_parameters(), "statistics": {**sums.values(), **learned_scalars(model)}}


def learned_scalars(model: nn.Module) -> dict[str, dict[str, list[LayerValue]]]:
    """What an attention learns beside its projections, where a model does, in the form of `Sums.values`.

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
