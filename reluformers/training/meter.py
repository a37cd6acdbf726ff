"""What the training log says beside the loss: speed, regulariser and null rate."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

_STATISTICS = ("regularization_loss", "null_rate")


class TrainingMeter:
    """Adds up tokens, seconds and model statistics between two logs, without waiting for the device at each step.

    `start` and `stop` bracket an update with its data loading; evaluation and saving stay outside.
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forget everything that was added."""
        self._seconds = 0.0
        self._started: float | None = None
        self._batches = 0
        self._sums: dict[str, Tensor | float] = {}

    def start(self) -> None:
        """An update begins."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """An update is over."""
        if self._started is not None:
            self._seconds += time.perf_counter() - self._started
            self._started = None

    def add(self, inputs: dict[str, Tensor], outputs: dict) -> None:
        """Count one batch.

        Args:
            inputs: of the model; `attention_mask` and `labels`, padded with 0 and a negative number.
            outputs: of the model; `regularization_loss` and `null_rate` are scalars, and may be missing.
        """
        self._batches += 1
        self._sum("source_tokens", inputs["attention_mask"].sum())
        self._sum("target_tokens", (inputs["labels"] >= 0).sum())
        for name in _STATISTICS:
            value = outputs.get(name)
            if value is not None:
                self._sum(name, value.detach().float())

    def _sum(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0) + value

    def summary(self, reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Log entries since the last summary, then start anew.

        Args:
            reduce: adds a float32 tensor [n] over the processes; None for one process. Every process must call it.

        Returns:
            `regularization_loss` and `null_rate` (means over batches), `source_tokens_per_second` and
            `target_tokens_per_second` (without padding, all processes together).
        """
        if not self._batches:
            return {}
        names = list(self._sums)
        totals = torch.stack([torch.as_tensor(value, dtype=torch.float32) for value in self._sums.values()])
        totals = torch.cat([totals, totals.new_tensor([self._batches])])
        *sums, batches = (reduce(totals) if reduce else totals).tolist()
        logs = {}
        for name, value in zip(names, sums, strict=True):
            if name in _STATISTICS:
                logs[name] = value / batches
            elif self._seconds:
                logs[f"{name}_per_second"] = round(value / self._seconds, 1)
        self.reset()
        return logs
