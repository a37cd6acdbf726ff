"""What the trainers of all tasks share: more in the log, averaged weights, evaluations that gather no outputs."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput, get_last_checkpoint, speed_metrics

from .arguments import TaskTrainingArguments
from .meter import TrainingMeter
from .weight_average import WeightAverage


class TaskTrainer(Trainer):
    """`Trainer` whose log also holds the speed, and the regulariser and null rate of models that report them.

    With `args.ema_decay` it keeps a moving average of the weights, which evaluations use and checkpoints hold beside
    the weights themselves. A task says what a batch holds (`count`, `count_tokens`) and what an evaluation measures
    (`measure`).

    Args:
        options: of `Trainer`.

    Raises:
        ValueError: `compute_metrics` is given: evaluations gather no outputs that it could be called with.
    """

    args: TaskTrainingArguments

    def __init__(self, *arguments: Any, **options: Any):
        self.meter = TrainingMeter(self.count)
        super().__init__(*arguments, **options)
        if self.compute_metrics is not None:
            raise ValueError(
                f"{type(self).__name__} gathers no outputs, so compute_metrics would never be called: override measure"
            )
        self.add_callback(_StopMeter(self.meter))
        self.weight_average = None
        if self.args.ema_decay is not None:
            self.weight_average = WeightAverage(self.model, self.args.ema_decay)
            self.add_callback(self.weight_average)

    @staticmethod
    @abstractmethod
    def count(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the log gives per second: name → number in a batch, a scalar on the device of the batch."""

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
        with self.weight_average.applied() if self.weight_average else nullcontext():
            measured = self.measure(dataset, **options)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        metrics.update(speed_metrics(metric_key_prefix, start, num_samples=len(dataset)))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> TrainOutput:
        """Train as `Trainer` does; a resumed average of the weights goes on from the checkpoint's."""
        if self.weight_average and resume_from_checkpoint:
            is_path = not isinstance(resume_from_checkpoint, bool)
            folder = resume_from_checkpoint if is_path else get_last_checkpoint(self.args.output_dir)
            if folder is not None:
                self.weight_average.load(folder)
        return super().train(resume_from_checkpoint, *args, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; a checkpoint also holds the average of the weights."""
        super().save_model(output_dir, _internal_call)
        # the Trainer's own calls name a folder for checkpoints alone
        if self.weight_average and _internal_call and output_dir is not None and self.args.should_save:
            self.weight_average.save(output_dir)

    def loader_options(self) -> dict[str, Any]:
        """What the arguments say of data loaders, for loaders of one process's batches."""
        args = self.args
        return {
            # the global random state stays as it is, so that dropout is the same in a resumed run
            "generator": torch.Generator(),
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and args.device.type != "cpu",
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
        }


class _StopMeter(TrainerCallback):
    """Stops the meter's clock at the end of an update, before evaluation and saving."""

    def __init__(self, meter: TrainingMeter):
        self.meter = meter

    def on_step_end(self, args, state, control, **kwargs):
        self.meter.stop()
