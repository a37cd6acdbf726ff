"""What happens beside training: the log, its speed and its end, and freed memory."""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer_utils import IntervalStrategy

# glibc defines these numbers in <malloc.h>.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
LARGEST = 2**31 - 1
EVERY = 100  # Freed memory is given back after so many updates.
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
        self._sums: dict[str, Tensor] = {}  # It also counts how many batches reported each statistic.

    def start(self) -> None:
        """An update begins."""
        self._started = time.perf_counter()

    def on_train_begin(self, args, state, control, **kwargs):
        """Training begins, or goes on."""
        self._begun = time.perf_counter()
        self.first = state.global_step

    def seconds_left(self, state: TrainerState) -> int:
        """Time to the last update at the mean speed so far, with evaluations and checkpoints, in seconds."""
        done = state.global_step - self.first
        left = state.max_steps - state.global_step
        return round((time.perf_counter() - self._begun) / max(done, 1) * left)

    def on_step_end(self, args, state, control, **kwargs):
        """An update is over, before evaluation and saving."""
        if self._started is not None:
            self._seconds += time.perf_counter() - self._started
            self._started = None

    def add(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Count one batch by inputs and outputs of the model; statistics that it reports are scalars."""
        values = self.count(inputs)
        for name in _STATISTICS:
            if outputs.get(name) is not None:
                value = outputs[name].detach().float()
                values |= {name: value, f"{name} reports": torch.ones_like(value)}
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value

    def summary(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Log entries since the last summary, then start anew: means over the batches that reported a statistic, and
        `…_per_second` of all that is counted.

        Args:
            add_up: adds a float32 tensor [n] over the processes, each of which calls this with the same statistics.
        """
        if not self._sums:
            return {}
        totals = add_up(torch.stack([value.float() for value in self._sums.values()])).tolist()
        sums = dict(zip(self._sums, totals, strict=True))
        seconds = self._seconds
        self.reset()
        reports = {name: sums.pop(f"{name} reports") for name in _STATISTICS if name in sums}
        logs = {name: sums.pop(name) / count for name, count in reports.items()}
        return logs | {f"{name}_per_second": round(value / seconds, 1) for name, value in sums.items() if seconds}


def median_speed(log: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> float | None:
    """Median over the training log of the sum of `keys`, such as the real tokens of both sides a second."""
    speeds = [sum(entry[key] for key in keys) for entry in log if all(key in entry for key in keys)]
    return statistics.median(speeds) if speeds else None


class LogLines(PrinterCallback):
    """Prints a line for each entry of the log at once, also where a file or a pipe takes them."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_local_process_zero and logs is not None:
            shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}
            shown.pop("total_flos", None)
            print({"step": f"{state.global_step}/{state.max_steps}", **shown}, flush=True)


class EndOfEpoch(TrainerCallback):
    """Evaluates and logs for an epoch at its last update, before a checkpoint of that update is saved.

    `Trainer` does so after it, and a run that goes on from there would never see that score. The intervals in steps
    are those of the arguments, also where `Trainer` took those of a checkpoint. Training that was at its end there
    stops before an update.
    """

    evaluated = 0

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        state.compute_steps(args, state.max_steps)
        if state.global_step > state.max_steps:
            raise ValueError(f"the checkpoint has {state.global_step} updates, but {state.max_steps} are asked for")
        is_over = state.global_step == state.max_steps or getattr(lr_scheduler, "is_over", False)
        control.should_training_stop |= is_over

    def on_step_end(self, args, state, control, **kwargs):
        if not state.epoch.is_integer() and state.global_step < state.max_steps:
            return
        control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluated = state.global_step

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_evaluate &= self.evaluated != state.global_step


class EarlyStopping(EarlyStoppingCallback):
    """Stops as the callback of transformers does, and goes on counting where a checkpoint left off.

    Any final weights go with it, and evaluations behind training do not matter to it.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        known = state.stateful_callbacks.get(type(self).__name__) or {}
        counted = known.get("attributes", {}).get("early_stopping_patience_counter", 0)
        self.early_stopping_patience_counter = counted
        control.should_training_stop |= counted >= max(self.early_stopping_patience, 1)
        # `Trainer` writes into this entry, which a checkpoint lacks if its run had no patience.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if f"eval_{args.metric_for_best_model.removeprefix('eval_')}" in metrics:
            super().on_evaluate(args, state, control, metrics, **kwargs)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for this process and for good, if it can (glibc alone).

    Each update frees its logits and their gradients, and makes them again. glibc gives so large pieces back to the
    kernel, which zeroes every page of the next ones: a quarter of the time of a small model.
    """
    if mallopt := _of_c_library("mallopt"):
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, LARGEST)


class GiveBackMemory(TrainerCallback):
    """Give kept memory that lies free back to the kernel now and then: batches of many lengths scatter the heap."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % EVERY == 0 and (trim := _of_c_library("malloc_trim")):
            trim(0)


def _of_c_library(name: str) -> Any:
    """A function of glibc, or None elsewhere."""
    if sys.platform == "linux":
        return getattr(ctypes.CDLL(None), name, None)
    return None
