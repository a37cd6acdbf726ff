"""What the training log says beside the loss: speed, regulariser and null rate."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerState

_STATISTICS = ("regularization_loss", "null_rate", "distillation_loss", "attention_loss")


class TrainingMeter(TrainerCallback):
    """Adds up what was trained on, seconds and model statistics between two logs, without waiting for the device.

    The clock runs from `start` to the end of an update, with its data loading; evaluation and saving stay outside.

    Args:
        count: says what a batch holds, name → number, a scalar on the device of the batch.
    """

    def __init__(self, count: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]):
        self.count = count
        self.reset()

    def reset(self) -> None:
        """Forget everything that was added."""
        self._seconds = 0.0
        self._started: float | None = None
        self._sums: dict[str, Tensor] = {}
        self._reports: Counter[str] = Counter()

    def start(self) -> None:
        """An update begins."""
        self._started = time.perf_counter()

    def on_train_begin(self, args, state, control, **kwargs):
        """Training begins, or goes on."""
        self._begun, self._first = time.perf_counter(), state.global_step

    def seconds_left(self, state: TrainerState) -> int:
        """Time to the last update at the mean speed so far, with evaluations and checkpoints, in seconds."""
        done, left = state.global_step - self._first, state.max_steps - state.global_step
        return round((time.perf_counter() - self._begun) / max(done, 1) * left)

    def on_step_end(self, args, state, control, **kwargs):
        """An update is over, before evaluation and saving."""
        if self._started is not None:
            self._seconds += time.perf_counter() - self._started
            self._started = None

    def add(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Count one batch by inputs and outputs of the model; statistics that it reports are scalars."""
        reported = {name: outputs[name].detach().float() for name in _STATISTICS if outputs.get(name) is not None}
        self._reports.update(list(reported))
        for name, value in (self.count(inputs) | reported).items():
            self._sums[name] = self._sums.get(name, 0) + value

    def summary(self, reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Log entries since the last summary, then start anew.

        Args:
            reduce: adds a float32 tensor [n] over the processes; None for one process. Every process must call it, and
                have seen as many batches with each statistic.

        Returns:
            The statistics, as means over the batches that reported them, and `…_per_second` of all that is counted.
        """
        if not self._sums:
            return {}
        totals = torch.stack([value.float() for value in self._sums.values()])
        totals = torch.cat([totals, totals.new_ones(1)])
        *sums, processes = (reduce(totals) if reduce else totals).tolist()
        logs = {}
        for name, value in zip(self._sums, sums, strict=True):
            if name in _STATISTICS:
                logs[name] = value / (self._reports[name] * processes)
            elif self._seconds:
                logs[f"{name}_per_second"] = round(value / self._seconds, 1)
        self.reset()
        return logs


def median_speed(log: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> float | None:
    """Median over the training log of the sum of `keys`, such as the real tokens of both sides a second."""
    speeds = [sum(entry[key] for key in keys) for entry in log if all(key in entry for key in keys)]
    return statistics.median(speeds) if speeds else None
