"""What the trainers of all tasks share: more in the log, and evaluations that gather no outputs."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from datasets import Dataset
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import speed_metrics

from .arguments import TaskTrainingArguments
from .meter import TrainingMeter


class TaskTrainer(Trainer):
    """`Trainer` whose log also holds the speed, and the regulariser and null rate of models that report them.

    A task says what a batch holds (`count`, `count_tokens`) and what an evaluation measures (`measure`).

    Args:
        options: of `Trainer`.
    """

    args: TaskTrainingArguments

    def __init__(self, *arguments: Any, **options: Any):
        self.meter = TrainingMeter(self.count)
        super().__init__(*arguments, **options)
        self.add_callback(_StopMeter(self.meter))

    @staticmethod
    @abstractmethod
    def count(inputs: Mapping[str, Tensor]) -> dict[str, Tensor | int]:
        """What the log gives per second: name → number in a batch."""

    @abstractmethod
    def count_tokens(self, inputs: Mapping[str, Tensor]) -> int:
        """Tokens of a batch, as the count of floating-point operations takes them."""

    @abstractmethod
    def measure(self, dataset: Dataset, **options: Any) -> dict[str, float]:
        """Metrics of a data set, without prefix; every process gets those of the whole set.

        Args:
            dataset: what to evaluate on.
            options: what `evaluate` was given beside its own arguments.
        """

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """Collect the batches of one update; the meter's clock starts here."""
        self.meter.start()
        return super().get_batch_samples(*args, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The model's own loss; in training its statistics go to the meter."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if model.training:
            self.meter.add(inputs, outputs)
        return (loss, outputs) if return_outputs else loss

    @cached_property
    def _parameters_without_embeddings(self) -> int:
        return self.model.num_parameters(exclude_embeddings=True)

    def floating_point_ops(self, inputs: dict[str, Tensor]) -> int:
        """6 · parameters · tokens, as `Trainer` counts, without counting the parameters at each step."""
        return 6 * self.count_tokens(inputs) * self._parameters_without_embeddings

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with what the meter has seen if these are training logs."""
        if "loss" in logs:
            is_distributed = self.args.world_size > 1
            logs.update(
                self.meter.summary(partial(self.accelerator.reduce, reduction="sum") if is_distributed else None)
            )
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **options: Any,
    ) -> dict[str, float]:
        """What `measure` says of data sets.

        Args:
            eval_dataset: data set or sets; None for those of the trainer.
            ignore_keys: has no effect, as no outputs are gathered.
            metric_key_prefix: goes in front of every name.
            options: of `measure`.

        Returns:
            The metrics and runtimes, each as `<prefix>_<name>`.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, dict):
            results = [
                self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}", **options)
                for name, part in dataset.items()
            ]
            return {name: value for result in results for name, value in result.items()}
        start = time.time()
        self.model.eval()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.measure(dataset, **options).items()}
        metrics.update(speed_metrics(metric_key_prefix, start, num_samples=len(dataset)))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _StopMeter(TrainerCallback):
    """Stops the meter's clock at the end of an update, before evaluation and saving."""

    def __init__(self, meter: TrainingMeter):
        self.meter = meter

    def on_step_end(self, args, state, control, **kwargs):
        self.meter.stop()
