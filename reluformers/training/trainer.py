"""What the trainers of all tasks share: more in the log, averaged weights, evaluations that gather no outputs."""

import logging
import math
import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    IntervalStrategy,
    TrainOutput,
    get_last_checkpoint,
    speed_metrics,
)
from transformers.utils import SAFE_WEIGHTS_NAME

from reluformers.data.streaming import BatchStream, load_position, save_position
from reluformers.errors import DivergenceError, describe_error
from reluformers.modeling.attention import AttentionVariant
from reluformers.modeling.feed_forward import FeedForward

from .arguments import TaskTrainingArguments
from .checkpoints import UNFINISHED_FOLDER, complete_checkpoint, rotate_checkpoints
from .meter import TrainingMeter
from .sharding import check_sharding, shard_tied_weights
from .weight_average import WeightAverage

logger = logging.getLogger(__name__)


class TaskTrainer(Trainer):
    """`Trainer` whose log also holds speed, time left, and the regulariser and null rate of models that report them.

    A checkpoint appears whole or not at all, with `run_record` in its manifest (see `checkpoints`); old ones are
    deleted by their steps, not by their dates. With `args.ema_decay` it keeps a moving average of the weights, which
    evaluations use and checkpoints hold beside the weights themselves. A task says what a batch holds (`count`) and
    what an evaluation measures (`measure`).

    Args:
        options: of `Trainer`.

    Raises:
        ValueError: `compute_metrics` is given: evaluations gather no outputs that it could be called with.
    """

    args: TaskTrainingArguments

    def __init__(self, *arguments: Any, **options: Any):
        self.meter = TrainingMeter(self.count)
        self.run_record: dict[str, Any] = {}
        # of the last batch, for the log, beside those of the model's outputs
        self.statistics: dict[str, Tensor] = {}
        self._is_saving = False
        # of a training set that is streamed
        self._stream: BatchStream | None = None
        self._resumed_from: str | None = None
        # whether there was nothing left to train, so that the log is no longer than its checkpoint
        self.is_resumed_at_end = False
        super().__init__(*arguments, **options)
        if self.compute_metrics is not None:
            raise ValueError(
                f"{type(self).__name__} gathers no outputs, so compute_metrics would never be called: override measure"
            )
        check_sharding(self.accelerator, self.args)
        self.add_callback(self.meter)
        self._clock = _Clock()
        self.add_callback(self._clock)
        self.add_callback(_EndOfEpoch())
        if self.pop_callback(PrinterCallback):
            self.add_callback(LogLines())
        self.early_stopping = None
        if self.args.early_stopping_patience is not None:
            self.early_stopping = EarlyStopping(self.args.early_stopping_patience)
            self.add_callback(self.early_stopping)
        self.weight_average = None
        if self.args.ema_decay is not None:
            self.weight_average = WeightAverage(self.model, self.args.ema_decay)
            self.add_callback(self.weight_average)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Leave the learned scalars of attentions and feed-forward networks out, which `Trainer` takes for weights."""
        scalars = {
            f"{place}.{name}"
            for place, part in model.named_modules()
            if isinstance(part, AttentionVariant | FeedForward)
            for name, _ in part.named_parameters(recurse=False)
        }
        return [name for name in super().get_decay_parameter_names(model) if name not in scalars]

    @staticmethod
    @abstractmethod
    def count(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the log gives per second: name → number in a batch, a scalar on the device of the batch."""

    @abstractmethod
    def measure(self, dataset: Dataset, **options: Any) -> dict[str, float]:
        """Metrics of a data set, without prefix; every process gets those of the whole set.

        Args:
            dataset: what to evaluate on.
            options: what `evaluate` was given beside its own arguments.
        """

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Make the schedule; a warm-up that training never leaves is a warning.

        Raises:
            ValueError: the options do not go with the schedule.
        """
        warmup_steps = self.args.get_warmup_steps(num_training_steps)
        if self.lr_scheduler is None and warmup_steps > num_training_steps:
            logger.warning(
                "training.warmup_steps is %d, but there are only %d updates: the learning rate never reaches its peak",
                warmup_steps,
                num_training_steps,
            )
        try:
            return self.make_scheduler(num_training_steps, optimizer)
        except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
            raise ValueError(
                f"training.lr_scheduler_type or its lr_scheduler_kwargs: {describe_error(error)}"
            ) from error

    def make_scheduler(self, num_training_steps: int, optimizer: Optimizer | None) -> LRScheduler:
        """The schedule that the arguments name; a task may know more of them than `Trainer`."""
        return super().create_scheduler(num_training_steps, optimizer)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """Collect the batches of one update; the meter's clock starts here."""
        self.meter.start()
        return super().get_batch_samples(*args, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The model's own loss; in training its statistics go to the meter."""
        if model.training and self._is_logged and hasattr(self.model, "regularize"):  # a model of ours, or a copy
            inputs = {**inputs, "output_null_rate": True}
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if model.training:
            self.meter.add(inputs, {**outputs, **self.statistics})
        return (loss, outputs) if return_outputs else loss

    @property
    def _is_logged(self) -> bool:
        """Whether the log speaks of the update that is being computed; null rates cost time, so others report none."""
        if self.args.logging_strategy != IntervalStrategy.STEPS:
            return self.args.logging_strategy == IntervalStrategy.EPOCH
        step = self.state.global_step + 1
        return step % self.state.logging_steps == 0 or (step == 1 and self.args.logging_first_step)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with what the meter has seen if these are training logs."""
        self._note_epoch()
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise self._divergence(f"the loss is {logs['loss']}")
            logs.update(self.meter_summary())
            logs["seconds_left"] = self._clock.seconds_left(self.state)
        super().log(logs, start_time)

    def meter_summary(self) -> dict[str, float]:
        """What the meter has seen since the last one, on all processes, each of which must call it."""
        is_distributed = self.args.world_size > 1
        return self.meter.summary(partial(self.accelerator.reduce, reduction="sum") if is_distributed else None)

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
        """Train as `Trainer` does; a resumed average of the weights and a stream go on from the checkpoint's."""
        self._resumed_from = resume_from_checkpoint or None
        if resume_from_checkpoint is True:
            self._resumed_from = get_last_checkpoint(self.args.output_dir)
        if self.weight_average and self._resumed_from:
            self.weight_average.load(self._resumed_from)
        self.args.eval_on_start &= self._resumed_from is None  # transformers would evaluate again at each resume
        output = super().train(resume_from_checkpoint, *args, **options)
        self._check_finite()
        return output

    def resumed(self, stream: BatchStream) -> BatchStream:
        """The stream, for a task to train on, where the checkpoint left it; checkpoints will note its place."""
        if self._resumed_from:
            load_position(stream, self._resumed_from, self.args.process_index)
        self._stream = stream
        return stream

    def _note_epoch(self) -> None:
        """How often this process has come through the stream, which `Trainer` cannot know."""
        if self._stream is not None:
            self.state.epoch = float(self._stream.state_dict()["block"]["epoch"])

    def _check_finite(self) -> None:
        """Make sure of loss and weights before they are kept.

        Raises:
            DivergenceError: on every process, if they are not finite on one.
        """
        weights = (weight.to_local() if hasattr(weight, "to_local") else weight for weight in self.model.parameters())
        faults = torch.stack([~self._tr_loss.isfinite().all(), *(~weight.isfinite().all() for weight in weights)])
        if self.accelerator.reduce(faults.any().float(), reduction="sum"):
            raise self._divergence("loss or weights are not finite")

    def _divergence(self, what: str) -> DivergenceError:
        last = get_last_checkpoint(self.args.output_dir)
        kept = f"{last} is the last checkpoint with finite weights" if last else "there is no checkpoint yet"
        return DivergenceError(
            f"training diverged: {what} at update {self.state.global_step}; {kept}; train in another output folder "
            "with a lower training.learning_rate, more training.warmup_steps or a lower training.max_grad_norm"
        )

    def _prepare_for_training(self, *arguments: Any, **options: Any) -> tuple[nn.Module, Any]:
        if self.accelerator.is_fsdp2:
            shard_tied_weights(self.model, self.accelerator)
        return super()._prepare_for_training(*arguments, **options)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As in transformers, but for weights that a checkpoint has once, under the name of those they are tied to."""
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; a checkpoint also holds the average of the weights, and of FSDP the weights in pieces."""
        if self.accelerator.is_fsdp2:
            weights = {} if _internal_call else self.accelerator.get_state_dict(self.model)
            if self.args.should_save:
                self._save(output_dir, state_dict=weights)
            if self.args.should_save and _internal_call:
                Path(output_dir, SAFE_WEIGHTS_NAME).unlink(missing_ok=True)
        else:
            super().save_model(output_dir, _internal_call)
        # the Trainer's own calls name a folder for checkpoints alone
        if self.weight_average and _internal_call and output_dir is not None and self.args.should_save:
            self.weight_average.save(output_dir)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save into a folder beside, which takes its place when everything is in it."""
        self._check_finite()
        self._note_epoch()
        run_dir = self._get_output_dir(trial)
        unfinished, target = (
            Path(folder, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            for folder in (os.path.join(run_dir, UNFINISHED_FOLDER), run_dir)
        )
        with self._saving(unfinished):
            super()._save_checkpoint(model, trial)
            if self._stream is not None:
                save_position(self._stream, unfinished, self.args.process_index)
            self._note_best(Path(run_dir))
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))
                complete_checkpoint(unfinished, target, self.run_record)
        if self.args.should_save:
            rotate_checkpoints(Path(run_dir), self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(target))

    @contextmanager
    def _saving(self, unfinished: Path) -> Iterator[None]:
        self._is_saving = True
        try:
            yield
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        finally:
            self._is_saving = False

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, UNFINISHED_FOLDER) if self._is_saving else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._is_saving:
            super()._push_from_checkpoint(checkpoint_folder)

    def _note_best(self, run_dir: Path) -> None:
        """Name the best checkpoint by the place that it has or is about to take."""
        if self.state.best_global_step is None:
            return
        best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if self.state.best_global_step == self.state.global_step or best.is_dir():
            self.state.best_model_checkpoint = str(best)

    def sampler_options(self) -> dict[str, int]:
        """Seed and share of this process, for samplers and streams."""
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        return {"seed": seed, "rank": args.process_index, "world_size": args.world_size}

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
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }


class _Clock(TrainerCallback):
    """Says how long training will take, from the updates since it began or was resumed."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.started, self.first = time.perf_counter(), state.global_step

    def seconds_left(self, state: TrainerState) -> int:
        """Time to the last update at the mean speed so far, with evaluations and checkpoints, in seconds."""
        done, left = state.global_step - self.first, state.max_steps - state.global_step
        return round((time.perf_counter() - self.started) / max(done, 1) * left)


class EarlyStopping(EarlyStoppingCallback):
    """Stops as the callback of transformers does, and goes on counting where a checkpoint left off.

    Any final weights go with it, and evaluations behind training do not matter to it.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        self.early_stopping_patience_counter = self.counted(state)
        # the state of a checkpoint from before there was a patience; `Trainer` writes into it
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if f"eval_{args.metric_for_best_model.removeprefix('eval_')}" in metrics:
            super().on_evaluate(args, state, control, metrics, **kwargs)

    @staticmethod
    def counted(state: TrainerState) -> int:
        """Evaluations without a better one at the end of a checkpoint, by its state."""
        known = state.stateful_callbacks.get(EarlyStopping.__name__) or {}
        return known.get("attributes", {}).get("early_stopping_patience_counter", 0)

    def has_ended(self, state: TrainerState) -> bool:
        """Whether training ended at a checkpoint for its sake."""
        return self.counted(state) >= self.early_stopping_patience


class LogLines(PrinterCallback):
    """Prints a line for each entry of the log at once, also where a file or a pipe takes them."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_local_process_zero and logs is not None:
            shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}
            shown.pop("total_flos", None)
            print({"step": f"{state.global_step}/{state.max_steps}", **shown}, flush=True)


class _EndOfEpoch(TrainerCallback):
    """Evaluates and logs for an epoch at its last update, before a checkpoint of that update is saved.

    `Trainer` does so after it, and a run that goes on from there would never see that score. The intervals in steps
    are those of the arguments, also where `Trainer` took those of a checkpoint.
    """

    evaluated = 0

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)

    def on_step_end(self, args, state, control, **kwargs):
        if not state.epoch.is_integer() and state.global_step < state.max_steps:
            return
        control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluated = state.global_step

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_evaluate &= self.evaluated != state.global_step
