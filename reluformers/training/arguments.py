"""Training arguments: transformers' own and a few more."""

import sys
from dataclasses import dataclass, field

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments
from transformers.utils import is_in_notebook


@dataclass
class TaskTrainingArguments(TrainingArguments):
    """`TrainingArguments` with what every task adds: averaged weights and defaults that suit our models.

    Args:
        average_last: average the weights of this many last checkpoints at the end; 0 or 1 averages nothing.
        ema_decay: keep a moving average of the weights with this decay per update, in (0, 1), for evaluations and the
            finished model; None keeps none.
        early_stopping_patience: stop after this many evaluations without a better `metric_for_best_model` ("loss" if
            missing); None never stops early.
        disable_tqdm: print lines of the log instead of a progress bar; without a terminal there are always lines.

    Raises:
        ValueError: fields ask for what training would not do.
    """

    average_last: int = field(default=0, metadata={"help": "Checkpoints to average at the end."})
    ema_decay: float | None = field(default=None, metadata={"help": "Decay of a moving average of the weights."})
    early_stopping_patience: int | None = field(default=None, metadata={"help": "Evaluations without a better one."})
    # a loss that is not finite belongs in the log, and looking for it would make the host wait for every step
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Leave such losses out of the log."})
    # every parameter of our models takes part in every step
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Look for idle parameters."})

    def __post_init__(self):
        # transformers takes bf16 for a mistake where there is no accelerator, unless the CPU is asked for
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True
        # transformers gives ddp_timeout to no process group of CPUs; the one that is made first stays
        if self.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU"):
            PartialState(cpu=True, backend=self.ddp_backend, timeout=self.ddp_timeout_delta)
        if self.early_stopping_patience is not None:
            self.metric_for_best_model = self.metric_for_best_model or "loss"
        if not (is_in_notebook() or sys.stderr.isatty()):
            self.disable_tqdm = True
        super().__post_init__()
        self._check()

    def _check(self) -> None:
        """Refuse what would be left out, or done to a loss or to weights, without a word."""
        if self.label_smoothing_factor:
            raise ValueError(
                "label_smoothing_factor hides the labels, and with them the regulariser, from the model: set "
                "label_smoothing of the model"
            )
        if self.early_stopping_patience is not None and self.eval_strategy == "no":
            raise ValueError("early_stopping_patience counts evaluations: it needs an eval_strategy")
        if len(self.final_weights) > 1:
            raise ValueError(f"{' and '.join(self.final_weights)} choose the final weights: set only one")

    @property
    def final_weights(self) -> list[str]:
        """Names of the fields that ask for other final weights than those of the last update."""
        choices = {
            "average_last": self.average_last > 1,
            "ema_decay": self.ema_decay is not None,
            "load_best_model_at_end": self.load_best_model_at_end,
        }
        return [name for name, is_set in choices.items() if is_set]
