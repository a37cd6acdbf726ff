"""Recipes: one YAML file with everything that defines a training run.

Each task has a recipe class of its own, which says what its sections are; reading and checking them is the same.
"""

import dataclasses
import re
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from transformers import PreTrainedConfig

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS
from reluformers.conversion.convert import PIPELINE_TAGS, exchanged_config
from reluformers.conversion.start import open_start
from reluformers.data.checked_fields import check_fields, check_name
from reluformers.data.names import marked_as_local
from reluformers.files import write_text

from .arguments import TaskTrainingArguments
from .transfer import TransferOptions

CALIBRATION_ROWS = 128
_TRANSFER = tuple(item.name for item in dataclasses.fields(TransferOptions))
# arguments of transformers that our trainers do not ask for
_IDLE_ARGUMENTS = (
    *("generation_max_length", "predict_with_generate", "resume_from_checkpoint", "do_train", "do_eval", "do_predict"),
    *("label_names", "auto_find_batch_size", "bf16_full_eval", "fp16_full_eval", "prediction_loss_only"),
    *("eval_accumulation_steps", "batch_eval_metrics", "include_for_metrics", "eval_do_concat_batches"),
    *("eval_use_gather_object", "train_sampling_strategy", "length_column_name", "remove_unused_columns"),
    "dataloader_in_order",
)


def check_least(owner: Any, section: str, least: dict[str, int]) -> None:
    """Numbers of a section must be at least so much, or None.

    Raises:
        ValueError: one is less.
    """
    for name, minimum in least.items():
        value = getattr(owner, name)
        if value is not None and not value >= minimum:  # .nan is not
            raise ValueError(f"{section}.{name} is {value!r}, but must be {minimum} or more")


@dataclasses.dataclass
class _StartSection:
    """Keys of the model section that say from what model training starts."""

    start: str | None = None
    sites: list[str] | None = None
    calibration_rows: int = CALIBRATION_ROWS
    dtype: str | None = None

    def __post_init__(self):
        check_least(self, "model", {"calibration_rows": 0})


class Recipe:
    """What defines a training run; a task's recipe is a dataclass whose fields are the sections.

    Every recipe has the sections `model` (`preset`, "softmax" if missing, and fields of its configuration class) and
    `training` (fields of `arguments_class`, all but `output_dir`), both dicts; the other sections are dataclasses.
    With `model.start`, a folder or Hub id, the model is that one: `preset` is then the attention that its own is
    exchanged for, none if missing, `sites` is where (everywhere if missing), and `calibration_rows` of the training
    set (128 if missing) are what the new attention is fitted on; 0 leaves it as it comes. `TransferOptions` are fields
    of this section too.

    A task gives `make_config(preset, **fields)`, the configuration of a preset with some fields, and `metrics(args)`,
    the names of what evaluations measure.
    """

    # what `task:` at the head of the file says
    task: ClassVar[str]
    arguments_class: ClassVar[type[TaskTrainingArguments]]
    # keys of the model section that are no fields of the configuration
    model_options: ClassVar[tuple[str, ...]] = ("preset", "start", "sites", "calibration_rows", *_TRANSFER)
    # further arguments of transformers that the trainer of this task does not ask for
    idle_arguments: ClassVar[Collection[str]] = ()
    # fields of the configuration that follow from the data
    decided_fields: ClassVar[Collection[str]] = ()

    model: dict[str, Any]
    training: dict[str, Any]

    def model_config(self, **fields: Any) -> PreTrainedConfig:
        """Configuration of the model, with further fields (those that the data decide on).

        Raises:
            ValueError: a field has a value that is not allowed.
        """
        values = {**self.model, **fields}
        if values.get("return_dict") is False:
            raise ValueError("model.return_dict is False, but training reads outputs by their names")
        if self.start is None:
            try:
                return self.make_config(values.pop("preset", "softmax"), **values)
            except (AttributeError, TypeError, ValueError) as error:
                raise ValueError(f"model: {error}") from error
        config_fields = {name: value for name, value in values.items() if name not in self.model_options}
        opened = open_start(self.start)
        if (found := PIPELINE_TAGS[opened.auto_class]) != self.task:
            raise ValueError(f"model.start is {self.start}, a model of {found}, but this is a recipe of {self.task}")
        return exchanged_config(opened, values.get("preset"), values.get("sites"), **config_fields)

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
        return self.model.get("calibration_rows", CALIBRATION_ROWS) if self.model.get("preset") else 0

    @property
    def transfer(self) -> TransferOptions:
        """What the model that training starts from does in training."""
        return TransferOptions(**{name: self.model[name] for name in _TRANSFER if name in self.model})

    def training_arguments(self, output_dir: str | Path) -> TaskTrainingArguments:
        """Arguments of the trainer, for an output folder.

        Raises:
            ValueError: a field has a value that is not allowed.
        """
        try:
            args = self.arguments_class(output_dir=str(output_dir), **self.training)
        except (TypeError, ValueError, ImportError) as error:
            raise ValueError(f"training: {error}") from error
        metrics = self.metrics(args)
        if (args.metric_for_best_model or "loss").removeprefix("eval_") not in metrics:
            raise ValueError(f"training.metric_for_best_model is {args.metric_for_best_model}, none of {metrics}")
        if self.transfer.is_gradual:  # an attention whose turn has not come has no gradient
            args.ddp_find_unused_parameters = True
        return args

    def to_dict(self) -> dict[str, Any]:
        """The recipe as it is written in YAML, without access tokens."""
        sections = {"task": self.task, **dataclasses.asdict(self)}
        sections["training"] = {name: value for name, value in self.training.items() if not name.endswith("_token")}
        return sections

    def save(self, path: str | Path) -> None:
        """Write the recipe so that `load` reads the same, without access tokens."""
        sections = self.to_dict()
        sections["data"]["path"] = marked_as_local(sections["data"]["path"])
        write_text(path, to_yaml(sections))

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> "Recipe":
        """Read a recipe.

        Args:
            path: YAML file with the sections of this task, and `base`, the name of a recipe beside it whose values
                hold where this one says nothing.
            overrides: `"section.key=value"` each, later ones win; the value is read as YAML, and
                `section.key.inner=value` sets one entry of a mapping.

        Raises:
            ValueError: the file is not a recipe, a section or key is not known, or a value is not allowed.
        """
        return cls.from_sections(read_sections(path, overrides), path)

    @classmethod
    def from_sections(cls, sections: dict[str, Any], path: str | Path) -> "Recipe":
        """The recipe of sections that were read from a file; see `from_dict`.

        Raises:
            ValueError: as there; the message names the file.
        """
        try:
            return cls.from_dict(sections)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, sections: dict[str, Any]) -> "Recipe":
        """Check names and types of every key and build the recipe.

        Raises:
            ValueError: a section or key is not known, or a value has the wrong type.
        """
        owners, checked = typing.get_type_hints(cls), {}
        for name, values in sections.items():
            if name == "task":
                if values != cls.task:
                    raise ValueError(f"task is {values!r}, but this is a recipe of {cls.task}")
                continue
            check_name(name, [item.name for item in dataclasses.fields(cls)], "section")
            if not isinstance(values, dict | None):
                raise ValueError(f"{name} is {values!r}, but must be a section of keys and values")
            values = values or {}
            if name == "model":
                checked[name] = cls._check_model(values)
            elif name == "training":
                if idle := {*_IDLE_ARGUMENTS, *cls.idle_arguments} & values.keys():
                    raise ValueError(f"training.{min(idle)} does nothing here")
                checked[name] = check_fields(name, values, cls.arguments_class, excluded=["output_dir"])
            else:
                values = check_fields(name, values, owners[name])
                try:
                    checked[name] = owners[name](**values)
                except ValueError as error:
                    raise error if name in str(error) else ValueError(f"{name}: {error}") from error
        recipe = cls(**checked)
        recipe.model_config()
        return recipe

    @classmethod
    def _check_model(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The model section; the values themselves are checked by the configuration class."""
        preset = values.get("preset", "softmax")
        if preset not in list(ATTENTION_PRESETS):
            raise ValueError(f"model.preset is {preset!r}, but must be one of {', '.join(ATTENTION_PRESETS)}")
        for owner in (_StartSection, TransferOptions):
            names = [item.name for item in dataclasses.fields(owner)]
            options = owner(**check_fields("model", {name: values[name] for name in names if name in values}, owner))
        if values.get("start") is None:
            needs = {"start": {"sites", "calibration_rows", *_TRANSFER} & values.keys()}
        else:
            exchanges = [("schedule", options.is_gradual), ("attention_distillation", options.attention_distillation)]
            asked = {name for name, is_set in [("sites", values.get("sites")), *exchanges] if is_set}
            needs = {"preset": asked if values.get("preset") is None else ()}
        for missing, names in needs.items():
            if names:
                raise ValueError(f"model.{min(names)} is given, but no model.{missing}")
        decided = {"architectures", "is_encoder_decoder", *cls.decided_fields}
        decided |= {"size"} if values.get("start") else set()
        if given := decided & values.keys():
            raise ValueError(f"model.{min(given)} follows from the data, the task or model.start: leave it out")
        fields = [item.name for item in dataclasses.fields(cls.make_config(preset))]
        for name in values:
            check_name(f"model.{name}", [f"model.{key}" for key in (*fields, *cls.model_options)], "key")
        return dict(values)


def read_sections(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read what a recipe says, over what its base says, with some values changed; see `Recipe.load`.

    Raises:
        ValueError: the file is not YAML with sections, or an override is not of the form `section.key=value`.
    """
    sections = _read_with_base(Path(path))
    for text in overrides:
        override(sections, text)
    return sections


def _read_with_base(path: Path) -> dict[str, Any]:
    """The sections of a recipe over those of its base."""
    sections = read_yaml(path) or {}
    if not isinstance(sections, dict):
        raise ValueError(f"{path}: a recipe has sections, such as model and data, but this file holds {sections!r}")
    base = sections.pop("base", None)
    merged = {} if base is None else _read_with_base(path.parent / str(base))
    for name, values in sections.items():
        both_are_maps = isinstance(values, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **values} if both_are_maps else values
    return merged


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, and `no` and 2024-01-31 are text, as version 1.2 has it."""


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would not read as text."""


_TAG = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in (f"{_TAG}bool", f"{_TAG}timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile("^(?:true|false)$", re.IGNORECASE), list("tTfF"))
for _class in (_Loader, _Dumper):
    _exponent = re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    _class.add_implicit_resolver(f"{_TAG}float", _exponent, list("-+.0123456789"))


def read_yaml(path: Path) -> Any:
    """What a file of YAML holds.

    Raises:
        ValueError: it is not YAML in UTF-8.
    """
    return _parse_yaml(Path(path).read_text(encoding="utf-8"), str(path))


def to_yaml(sections: dict[str, Any]) -> str:
    """Text that `read_yaml` reads the same."""
    return yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _parse_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: not valid YAML ({error})") from error


def read_fields(texts: Iterable[str], form: str) -> dict[str, Any]:
    """Field → value of changes such as "dropout=0.1", the values read as YAML.

    Args:
        texts: the changes.
        form: what messages call their form, such as "FIELD=VALUE".

    Raises:
        ValueError: one is not of that form.
    """
    fields: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{text!r} is not of the form {form}")
        _set_value(fields, name.split("."), value, text)
    return fields


def override(sections: dict[str, Any], text: str) -> None:
    """Set one value of sections in place.

    Args:
        sections: of a recipe.
        text: "section.key=value", the value as YAML.

    Raises:
        ValueError: it is not of that form, or a section is no mapping.
    """
    name, equals, value = text.partition("=")
    keys = name.split(".")
    if not equals or len(keys) < 2:
        raise ValueError(f"{text!r} is not of the form section.key=value")
    _set_value(sections, keys, value, text)


def _set_value(target: dict[str, Any], keys: Sequence[str], value: str, text: str) -> None:
    """Set what `keys` lead to, mapping by mapping; `text` is for messages."""
    *parents, last = keys
    for parent in parents:
        if target.get(parent) is None:
            target[parent] = {}
        target = target[parent]
        if not isinstance(target, dict):
            raise ValueError(f"{text!r}: {parent} is {target!r}, so it has no keys of its own")
    target[last] = _parse_yaml(value, text)
