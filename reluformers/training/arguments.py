"""Training arguments: transformers' own and a few more."""

import math
import sys
from dataclasses import dataclass, field, fields

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments
from transformers.utils import is_in_notebook, logging


@dataclass
class TaskTrainingArguments(TrainingArguments):
    """`TrainingArguments` with what every task adds: averaged weights and defaults that suit our models.

    Args:
        average_last: number of last checkpoints whose weights are averaged at the end; 0 or 1 for no averaging.
        ema_decay: keep a moving average of the weights with this decay per update, in (0, 1); evaluations and the
            finished model have the average; None for none.
        early_stopping_patience: stop after so many evaluations that are no better than the best one before them, by
            `metric_for_best_model` ("loss" if missing); None to go on to the end.
        disable_tqdm: lines of the log instead of a progress bar; without a terminal there are lines anyway.

    Raises:
        ValueError: a field has a value that is not allowed, alone or beside the others.
    """

    average_last: int = field(default=0, metadata={"help": "Checkpoints to average at the end."})
    ema_decay: float | None = field(default=None, metadata={"help": "Decay of a moving average of the weights."})
    early_stopping_patience: int | None = field(default=None, metadata={"help": "Evaluations without a better one."})
    # a loss that is not finite belongs in the log, and looking for it would make the host wait for every step
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Leave such losses out of the log."})
    # every parameter of our models takes part in every step
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Look for idle parameters."})

    def __post_init__(self):
        self._check_finite()
        # transformers takes bf16 for a mistake where there is no accelerator, unless the CPU is asked for
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True
        # transformers gives ddp_timeout to no process group of CPUs; the one that is made first stays
        if self.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU"):
            PartialState(cpu=True, backend=self.ddp_backend, timeout=self.ddp_timeout_delta)
        self._check_early_stopping()
        self._check_choices()
        if not (is_in_notebook() or sys.stderr.isatty()):
            self.disable_tqdm = True
        super().__post_init__()
        if self.label_smoothing_factor:
            raise ValueError(
                "label_smoothing_factor would hide the labels, and with them the regulariser, from the model: "
                "set label_smoothing of the model instead"
            )
        self._check_ranges()
        if len(self.final_weights) > 1:
            raise ValueError(f"{' and '.join(self.final_weights[:2])} both choose the final weights: set only one")
        self._check_checkpoint_averaging()
        self._check_moving_average()

    def _check_early_stopping(self) -> None:
        if self.early_stopping_patience is None:
            return
        if self.early_stopping_patience < 1:
            raise ValueError(
                f"early_stopping_patience is {self.early_stopping_patience}, but must be 1 or more, or null"
            )
        if self.eval_strategy == "no":
            raise ValueError("early_stopping_patience counts evaluations: set eval_strategy to epoch or steps")
        self.metric_for_best_model = self.metric_for_best_model or "loss"

    def _check_choices(self) -> None:
        """What transformers would make something else of, or nothing."""
        levels = [*logging.get_log_levels_dict(), "passive"]
        for name in ("log_level", "log_level_replica"):
            if getattr(self, name) not in levels:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(levels)}")
        for name in ("save", "eval"):
            steps = getattr(self, f"{name}_steps")
            if getattr(self, f"{name}_strategy") == "steps" and steps is not None and steps <= 0:
                raise ValueError(f"{name}_steps is {steps}, but must be above 0")
        if self.save_total_limit is not None and self.save_total_limit < 1:
            raise ValueError(f"save_total_limit is {self.save_total_limit}, but must be 1 or more, or null for all")
        if self.fp16 and (self.use_cpu or not torch.accelerator.is_available()):
            raise ValueError("fp16 is True, but a CPU does not train in it: set bf16")
        if self.hub_model_id is not None and not self.push_to_hub:
            raise ValueError(f"hub_model_id is {self.hub_model_id!r}, but push_to_hub is False: set both")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be in [0, 1)")
        for name in ("adam_epsilon", "dataloader_num_workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 0 or more")
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            raise ValueError("dataloader_persistent_workers is True, but dataloader_num_workers is 0: set both")

    def _check_ranges(self) -> None:
        if self.gradient_accumulation_steps < 1:
            raise ValueError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}, but must be 1 or more"
            )
        if self.max_steps < 1 and self.max_steps != -1:
            raise ValueError(f"max_steps is {self.max_steps}, but must be 1 or more, or -1 for num_train_epochs")
        if self.max_steps == -1 and self.num_train_epochs <= 0:
            raise ValueError(f"num_train_epochs is {self.num_train_epochs}, but must be above 0")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 1 or more")
        for name in ("seed", "data_seed"):
            seed = getattr(self, name)
            if seed is not None and not 0 <= seed < 2**32:
                raise ValueError(f"{name} is {seed}, but must be from 0 to {2**32 - 1}")

    def _check_finite(self) -> None:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if isinstance(self.lr_scheduler_kwargs, dict):
            values |= {f"lr_scheduler_kwargs.{name}": value for name, value in self.lr_scheduler_kwargs.items()}
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}, but must be finite")
        for name in ("learning_rate", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 0 or more")

    @property
    def final_weights(self) -> list[str]:
        """Names of the fields that ask for other final weights than those of the last update."""
        choices = {
            "average_last": self.average_last > 1,
            "ema_decay": self.ema_decay is not None,
            "load_best_model_at_end": self.load_best_model_at_end,
        }
        return [name for name, is_set in choices.items() if is_set]

    def _check_moving_average(self) -> None:
        if self.ema_decay is None:
            return
        if not 0 < self.ema_decay < 1:
            raise ValueError(f"ema_decay is {self.ema_decay}, but must be in (0, 1), or null for no average")
        if self.fsdp or self.deepspeed:
            raise ValueError("ema_decay needs whole weights on each device: leave it out, or fsdp and deepspeed")

    def _check_checkpoint_averaging(self) -> None:
        if self.average_last < 0:
            raise ValueError(f"average_last is {self.average_last}, but must be 0 or more")
        if self.average_last < 2:
            return
        if self.save_strategy == "no":
            raise ValueError(f"average_last is {self.average_last}, but save_strategy 'no' leaves no checkpoints")
        if self.save_total_limit is not None and self.save_total_limit < self.average_last:
            raise ValueError(
                f"save_total_limit is {self.save_total_limit}, but average_last needs {self.average_last} checkpoints"
            )
