"""Models that training starts from: the weights of another, with another attention that is fitted to it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from .calibration import calibrate
from .convert import build_model, open_source


def start_model(
    start: str,
    preset: str | None,
    sites: Sequence[str] | None,
    batches: Iterable[Mapping[str, Tensor]] = (),
    *,
    new_head: bool = False,
    report: Callable[[str], None] = lambda line: None,
    **config_fields: Any,
) -> PreTrainedModel:
    """Make a model with the weights of another, in its own memory and float32, whose attention is fitted to batches.

    Args:
        start, preset, sites, new_head: as in `open_source` and `build_model`.
        batches: of the training set; without any, an exchanged attention starts as it comes.
        report: takes a line on how near the attention is.
        config_fields: of our configuration, over those of the source.
    """
    opened = open_source(start)
    batches = list(batches)
    model = build_model(opened, preset, sites, new_head=new_head, config_fields=config_fields)
    model = _own(model)
    if preset is not None and batches:
        original = _own(build_model(opened, new_head=new_head, config_fields=config_fields))
        before, after = calibrate(model, original, batches)
        if after:
            report(
                f"attention of {len(after)} modules exchanged; squared error of their outputs on {len(batches)} "
                f"batches: {fmean(before.values()):.3f} of the original's, {fmean(after.values()):.3f} when fitted"
            )
    return model


def spread_batches(
    dataset: Dataset, count: int, collate: Callable[[list[dict[str, Any]]], Mapping[str, Tensor]], size: int
) -> list[Mapping[str, Tensor]]:
    """Batches of `count` rows at equal distances over a data set, or of all rows if it has fewer, `size` rows each."""
    rows = np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int).tolist()
    return [collate(dataset.select(rows[i : i + size]).to_list()) for i in range(0, len(rows), size)]


@torch.no_grad()
def _own(model: PreTrainedModel) -> PreTrainedModel:
    """The model with weights that no file and no other model holds, as training writes into them."""
    for parameter in model.parameters():  # Tied parameters come once.
        parameter.data = parameter.data.to(torch.float32, copy=True)
    return model.float()  # float() casts the buffers.
