"""Recipes: one YAML file with everything that defines a training run.

Each task has a recipe class of its own, which says what its sections are; reading and checking them is the same.
"""

import dataclasses
import sys
import typing
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers import PreTrainedConfig, TrainingArguments
from transformers.utils import is_in_notebook

from reluformers.configuration.field_checks import check_number
from reluformers.conversion.convert import exchanged_config, open_source
from reluformers.data.checked_fields import check_fields, check_mapping, check_name, read_as
from reluformers.data.names import marked_as_local
from reluformers.data.sources import name_in_errors
from reluformers.files import write_text

from .yaml_files import to_yaml


@dataclass(frozen=True)
class TransferOptions:
    """Keys of a recipe's `model` section that say what model training starts from, and what it does in training.

    Args:
        start: folder or Hub id of the model, the original; None for a fresh one.
        sites: where its attention is exchanged for that of `preset`; None for everywhere.
        calibration_rows: of the training set, that the new attention is fitted on.
        distillation: w of `Transfer`, in [0, 1].
        attention_distillation: its a, 0 or more.
    """

    start: str | None = None
    sites: list[str] | None = None
    calibration_rows: int = 128
    distillation: float = 0.0
    attention_distillation: float = 0.0

    def __post_init__(self):
        check_number("model", "distillation", self.distillation, "[0, 1]")
        check_number("model", "attention_distillation", self.attention_distillation, "[0, inf)")


# A recipe must not set these fields, which are options of `train`.
_IDLE = ("output_dir", "resume_from_checkpoint")
_START = tuple(item.name for item in dataclasses.fields(TransferOptions))


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
    """

    average_last: int = 0
    ema_decay: float | None = None
    early_stopping_patience: int | None = None
    # A loss that is not finite belongs in the log, and filtering would make the host wait for every step.
    logging_nan_inf_filter: bool = False
    # Every parameter of our models takes part in every step, so DDP need not search for idle ones.
    ddp_find_unused_parameters: bool | None = False

    def __post_init__(self):
        # Without an accelerator transformers refuses bf16 unless use_cpu is set.
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True
        # transformers ignores ddp_timeout for process groups of CPUs, so we make the group first.
        if self.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU"):
            PartialState(cpu=True, backend=self.ddp_backend, timeout=self.ddp_timeout_delta)
        if self.early_stopping_patience is not None:
            self.metric_for_best_model = self.metric_for_best_model or "loss"
        if not (is_in_notebook() or sys.stderr.isatty()):
            self.disable_tqdm = True
        super().__post_init__()
        # These settings would otherwise change or drop a loss or weights in silence.
        if self.label_smoothing_factor:
            raise ValueError(
                "label_smoothing_factor hides the labels, and with them the regulariser, from the model: set "
                "label_smoothing of the model"
            )
        if self.ema_decay is not None:  # A decay of 1 would keep the first weights.
            check_number("training", "ema_decay", self.ema_decay, "(0, 1)")
        if self.early_stopping_patience is not None:  # A patience of 0 would stop at the first evaluation.
            check_number("training", "early_stopping_patience", self.early_stopping_patience, "[1, inf)")
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


class Recipe:
    """What defines a training run; a task's recipe is a dataclass whose fields are the sections.

    Every recipe has the sections `model` (`preset`, "softmax" if missing, and fields of its configuration class) and
    `training` (fields of `arguments_class`, all but those that `train` has as options), both dicts; the other sections
    are dataclasses.

    With `model.start`, a folder or Hub id, the model is that one: `preset` is then the attention that its own is
    exchanged for, none if missing, `sites` is where (everywhere if missing), and `calibration_rows` of the training
    set (128 if missing) are what the new attention is fitted on; 0 leaves it as it comes. All fields of
    `TransferOptions` are keys of this section.

    A task gives `make_config(preset, **fields)`, the configuration of a preset with some fields.
    """

    # The head of a recipe file names the task by this word.
    task: ClassVar[str]
    arguments_class: ClassVar[type[TaskTrainingArguments]] = TaskTrainingArguments
    # These keys of the model section are no fields of the configuration.
    model_options: ClassVar[tuple[str, ...]] = ("preset", *_START)
    # These fields of the configuration follow from the data.
    decided_fields: ClassVar[Collection[str]] = ()

    model: dict[str, Any]
    training: dict[str, Any]

    def model_config(self, **fields: Any) -> PreTrainedConfig:
        """Configuration of the model, with further fields (those that the data decide on)."""
        values = {**self.model, **fields}
        if self.start is None:
            try:
                return self.make_config(values.pop("preset", "softmax"), **values)
            # A wrong dtype is an AttributeError, as transformers looks it up in torch.
            except (AttributeError, TypeError) as error:
                raise ValueError(f"model: {error}") from error
        config_fields = {name: value for name, value in values.items() if name not in self.model_options}
        return exchanged_config(open_source(self.start), values.get("preset"), values.get("sites"), **config_fields)

    @property
    def start(self) -> str | None:
        """Folder or Hub id of the model that training starts from; None for a fresh one."""
        return self.model.get("start")

    @property
    def start_options(self) -> dict[str, Any]:
        """What `start_model` takes of the model section, beside batches."""
        options = {name: self.model.get(name) for name in ("start", "preset", "sites")}
        return options | {name: value for name, value in self.model.items() if name not in self.model_options}

    @property
    def calibration_rows(self) -> int:
        """How many rows of the training set an exchanged attention is fitted on."""
        if self.model.get("preset"):
            return self.transfer.calibration_rows
        return 0

    @property
    def transfer(self) -> TransferOptions:
        """What the model that training starts from does in training."""
        return TransferOptions(**{name: self.model[name] for name in _START if name in self.model})

    def training_arguments(self, output_dir: str | Path) -> TaskTrainingArguments:
        """Arguments of the trainer, for an output folder."""
        return self.arguments_class(output_dir=str(output_dir), **self.training)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as it is written in YAML, without access tokens."""
        sections = {"task": self.task, **dataclasses.asdict(self)}
        sections["training"] = {name: value for name, value in self.training.items() if not name.endswith("_token")}
        return sections

    def save(self, path: str | Path) -> None:
        """Write the recipe so that `load_recipe` reads the same, without access tokens."""
        sections = self.to_dict()
        sections["data"]["path"] = marked_as_local(sections["data"]["path"])
        write_text(path, to_yaml(sections))

    @classmethod
    def from_sections(cls, sections: dict[str, Any], path: str | Path) -> "Recipe":
        """The recipe of sections that were read from a file, which errors name; see `from_dict`."""
        with name_in_errors(str(path)):
            return cls.from_dict(sections)

    @classmethod
    def from_dict(cls, sections: dict[str, Any]) -> "Recipe":
        """Check names and types of every key and build the recipe."""
        owners = typing.get_type_hints(cls)
        checked = {}
        for name, values in sections.items():
            if name == "task":  # `load_recipe` has chosen the class by it.
                continue
            check_name(name, [item.name for item in dataclasses.fields(cls)], "section")
            values = {} if values is None else values
            if name == "model":
                checked[name] = cls._check_model(check_mapping(name, values))
            elif name == "training":
                checked[name] = check_fields(name, values, cls.arguments_class, excluded=_IDLE)
            else:
                with name_in_errors(name):
                    checked[name] = owners[name](**check_fields(name, values, owners[name]))
        recipe = cls(**checked)
        recipe.model_config()
        return recipe

    @classmethod
    def _check_model(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The model section; the values themselves are checked by the configuration class."""
        config_class = type(cls.make_config(values.get("preset", "softmax")))
        given = read_as(TransferOptions, {name: values[name] for name in _START if name in values})
        values = {**read_as(config_class, values), **given}
        with name_in_errors("model"):
            options = TransferOptions(**check_fields("model", given, TransferOptions))
        missing = "start"
        idle = {*_START} - {"start"} & values.keys()
        if options.start is not None:
            missing = "preset"
            idle = {name for name in ("sites", "attention_distillation") if getattr(options, name)}
        if idle and values.get(missing) is None:
            raise ValueError(f"model.{min(idle)} is given, but no model.{missing}")
        decided = {"architectures", "is_encoder_decoder", *cls.decided_fields}
        decided |= {"size"} if values.get("start") else set()
        if given := decided & values.keys():
            raise ValueError(f"model.{min(given)} follows from the data, the task or model.start: leave it out")
        fields = [item.name for item in dataclasses.fields(config_class)]
        for name in values:
            check_name(f"model.{name}", [f"model.{key}" for key in (*fields, *cls.model_options)], "key")
        return values
