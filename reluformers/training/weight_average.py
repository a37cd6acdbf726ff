"""Exponential moving average of the weights, in step with training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import TrainerCallback

WEIGHT_AVERAGE_FILE = "weight_average.pt"


class WeightAverage(TrainerCallback):
    """Keeps a moving average of a model's weights: a ← decay · a + (1 − decay) · w after each update.

    It starts as the weights after the first update. Buffers are those of the model.

    Args:
        model: what is trained; on its device.
        decay: in (0, 1).
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model = model
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).requires_grad_(False)

    def on_step_end(self, args, state, control, **kwargs):
        self.average.update_parameters(self.model)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average for the time of a block; its own weights come back untouched."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        if self.average.n_averaged:
            for weight, average in zip(self.model.parameters(), self.average.module.parameters(), strict=True):
                weight.data, average.data = average.data, weight.data

    def replace_weights(self) -> None:
        """Give the model the average for good."""
        if self.average.n_averaged:
            self.model.load_state_dict(self.average.module.state_dict())

    def save(self, folder: str | Path) -> None:
        """Write the average beside a checkpoint's other files."""
        torch.save(self.average.state_dict(), Path(folder, WEIGHT_AVERAGE_FILE))

    def load(self, folder: str | Path) -> None:
        """Go on from the average of a checkpoint."""
        path = Path(folder, WEIGHT_AVERAGE_FILE)
        self.average.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
