"""What the trainers of all tasks share: more in the log, checkpoints that are complete, averaged weights."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    IntervalStrategy,
    TrainOutput,
    get_last_checkpoint,
)
from transformers.utils import SAFE_WEIGHTS_NAME

from reluformers.data.streaming import BatchStream
from reluformers.errors import DivergenceError
from reluformers.files import read_json, write_json
from reluformers.modeling.attention import AttentionVariant
from reluformers.modeling.feed_forward import FeedForward

from .averaging import WeightAverage
from .callbacks import EarlyStopping, EndOfEpoch, LogLines, TrainingMeter
from .checkpoints import begin_checkpoint, check_model, complete_checkpoint, rotate_checkpoints
from .recipe import TaskTrainingArguments


class TaskTrainer(Trainer):
    """`Trainer` whose log also holds speed, time left, and the regulariser and null rate of models that report them.

    A checkpoint counts only when it is complete, and has `run_record` in its manifest (see `checkpoints`); old ones
    are deleted by their steps, not by their dates. With `args.ema_decay` it keeps a moving average of the weights,
    which evaluations use and checkpoints hold beside the weights themselves.

    Args:
        count: what the log gives per second: of a batch, name → number, a scalar on the device of the batch.
        options: of `Trainer`.
    """

    args: TaskTrainingArguments
    # Each task defines it: it gives scores by name, equal on every process, and the number of rows.
    measure: Callable[[DataLoader], tuple[dict[str, float], int]]

    def __init__(self, *arguments: Any, count: Callable[[Mapping[str, Tensor]], dict[str, Tensor]], **options: Any):
        self.meter = TrainingMeter(count)
        self.run_record: dict[str, Any] = {}
        # The log shows these values of the last batch beside those in the model's outputs.
        self.statistics: dict[str, Tensor] = {}
        # The batches of a training set that is a stream; None for one that is held whole.
        self._stream: BatchStream | None = None
        self._resumed_from: str | None = None
        super().__init__(*arguments, **options)
        check_sharding(self.accelerator, self.args)
        self.add_callback(self.meter)
        self.add_callback(EndOfEpoch())
        if self.pop_callback(PrinterCallback):
            self.add_callback(LogLines())
        if self.args.early_stopping_patience is not None:
            self.add_callback(EarlyStopping(self.args.early_stopping_patience))
        self.weight_average = None
        if self.args.ema_decay is not None:
            self.weight_average = WeightAverage(self.model, self.args.ema_decay)
            self.add_callback(self.weight_average)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Leave the learned scalars of attentions and feed-forward networks out, which `Trainer` takes for weights."""
        scalars = {
            f"{module_name}.{name}"
            for module_name, part in model.named_modules()
            if isinstance(part, AttentionVariant | FeedForward)
            for name, _ in part.named_parameters(recurse=False)
        }
        return [name for name in super().get_decay_parameter_names(model) if name not in scalars]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """Collect the batches of one update; the meter's clock starts here."""
        self.meter.start()
        return super().get_batch_samples(*args, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The model's own loss; in training its statistics go to the meter."""
        # Only models of ours, or their copies from the Hub, have this method.
        if model.training and self._is_logged and hasattr(self.model, "regularize"):
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
        """Log, with what the meter has seen on all processes if these are training logs."""
        if "train_loss" in logs and self.state.global_step == self.meter.first:
            return  # The checkpoint was the end of training, so this would be a mean over no update.
        self._note_epoch()
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                self._diverge(f"the loss is {logs['loss']}")
            logs |= self.meter.summary(self.accelerator.reduce)
            logs["seconds_left"] = self.meter.seconds_left(self.state)
        super().log(logs, start_time)

    def evaluation_loop(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> EvalLoopOutput:
        """What `measure` says in evaluation mode, with the average of the weights if there is one."""
        self.model.eval()
        with torch.no_grad(), self.weight_average.applied() if self.weight_average else nullcontext():
            scores, rows = self.measure(dataloader)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=rows)

    def train(self, resume_from_checkpoint: str | None = None, *args: Any, **options: Any) -> TrainOutput:
        """Train as `Trainer` does; a resumed average of the weights and a stream go on from the checkpoint's."""
        self._resumed_from = resume_from_checkpoint
        if self.weight_average and self._resumed_from:
            self.weight_average.load(self._resumed_from)
        self.args.eval_on_start &= self._resumed_from is None  # transformers would evaluate again at each resume.
        output = super().train(resume_from_checkpoint, *args, **options)
        self._check_finite()
        return output

    def resumed(self, stream: BatchStream) -> BatchStream:
        """The stream, for a task to train on, where the checkpoint left it; checkpoints will note its position."""
        if self._resumed_from:
            stream.state = read_json(self._position(self._resumed_from))
        self._stream = stream
        return stream

    def _position(self, checkpoint: str | Path) -> Path:
        """File of a checkpoint that says where the stream of this process stands."""
        return Path(checkpoint, f"stream_{self.args.process_index}.json")

    def _note_epoch(self) -> None:
        """How often this process has come through the stream, which `Trainer` cannot know."""
        if self._stream is not None:
            self.state.epoch = float(self._stream.state["epoch"])

    def _check_finite(self) -> None:
        """Make sure of loss and weights before they are kept; diverge on every process where they are not finite."""
        weights = (weight.to_local() if hasattr(weight, "to_local") else weight for weight in self.model.parameters())
        faults = torch.stack([~self._tr_loss.isfinite().all(), *(~weight.isfinite().all() for weight in weights)])
        if self.accelerator.reduce(faults.any().float(), reduction="sum"):
            self._diverge("loss or weights are not finite")

    def _diverge(self, what: str) -> NoReturn:
        last = get_last_checkpoint(self.args.output_dir)
        kept = f"{last} is the last checkpoint with finite weights" if last else "there is no checkpoint yet"
        raise DivergenceError(f"training diverged: {what} at update {self.state.global_step}; {kept}")

    def _prepare_for_training(self, *arguments: Any, **options: Any) -> tuple[nn.Module, Any]:
        if self.accelerator.is_fsdp2:
            shard_tied_weights(self.model, self.accelerator)
        return super()._prepare_for_training(*arguments, **options)

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
        # Only for checkpoints does Trainer itself call this with a folder.
        if self.weight_average and _internal_call and output_dir is not None and self.args.should_save:
            self.weight_average.save(output_dir)

    def _run_epoch(self, *arguments: Any, **options: Any) -> None:
        """Train for an epoch, unless callbacks say that training was at its end at the checkpoint."""
        if self.control.should_training_stop:
            return
        if self._resumed_from and self.args.save_only_model:
            raise ValueError(f"{self._resumed_from}: was saved without what the optimizer knows (save_only_model)")
        super()._run_epoch(*arguments, **options)

    def _load_best_model(self) -> None:
        check_model(self.state.best_model_checkpoint)
        super()._load_best_model()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save, seal the checkpoint when everything is in it, and only then delete older ones."""
        self._check_finite()
        self._note_epoch()
        run_folder = Path(self._get_output_dir(trial))
        limit = self.args.save_total_limit
        folder = run_folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            begin_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        try:
            self.args.save_total_limit = None
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        if self._stream is not None:
            write_json(self._position(folder), self._stream.state)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            complete_checkpoint(folder, self.run_record)
            rotate_checkpoints(run_folder, limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def sampler_options(self) -> dict[str, int]:
        """Seed and share of this process, for samplers and streams."""
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        return {"seed": seed, "rank": args.process_index, "world_size": args.world_size}

    def loader_options(self) -> dict[str, Any]:
        """What the arguments say of data loaders, for loaders of one process's batches."""
        args = self.args
        return {
            # A generator of its own leaves the global random state alone, so a resumed run draws the same dropout.
            "generator": torch.Generator(),
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and args.device.type != "cpu",
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }


def check_sharding(accelerator: Accelerator, args: TaskTrainingArguments) -> None:
    """Refuse what does not go with weights in pieces, and attention in pieces altogether."""
    parallelism = accelerator.parallelism_config
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    faults = [
        f"parallelism_config_{name}_size divides softmax attention, and ours may be another"
        for name in ("cp", "sp", "tp")
        if getattr(parallelism, f"{name}_size", 1) > 1
    ]
    if plugin is not None:
        if plugin.fsdp_version != 2 or plugin.cpu_ram_efficient_loading:
            faults.append("fsdp_version must be 2, to share embeddings, and fsdp_cpu_ram_efficient_loading false")
        faults += [f"training.{name} needs whole weights, but FSDP has them in pieces" for name in args.final_weights]
    if faults:
        raise ValueError("; ".join(faults))


def shard_tied_weights(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard (FSDP2) every weight that several modules hold with all of these, as Accelerate will shard the others.

    It shards layer by layer, and torch refuses a weight that two groups see. Encoder–decoders have three such modules:
    both embeddings and the output layer.

    Args:
        model: on any device; `Accelerator.prepare` skips what is sharded already.
        accelerator: of FSDP2; its checkpoints are written in pieces from now on.
    """
    plugin = accelerator.state.fsdp_plugin
    mesh = accelerator.torch_device_mesh
    plugin.set_state_dict_type("SHARDED_STATE_DICT")
    holders = defaultdict(list)
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders[weight].append(module)
    for weight, modules in holders.items():
        if len(modules) == 1:
            continue
        # Accelerate makes all other weights float32 too.
        if accelerator.mixed_precision != "no":
            weight.data = weight.data.float()
        fully_shard(
            modules,
            mesh=None if mesh is None else mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)],
            reshard_after_forward=plugin.reshard_after_forward,
            mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy(),
            offload_policy=plugin.cpu_offload,
        )
