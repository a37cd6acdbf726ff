"""Recipes: one YAML file with everything that defines a training run.

Each task has a recipe class of its own, which says what its sections are; reading and checking them is the same.
"""

import dataclasses
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from transformers import PreTrainedConfig

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS
from reluformers.conversion.convert import PIPELINE_TAGS, exchanged_config
from reluformers.conversion.start import open_start
from reluformers.data.checked_fields import check_fields, check_name
from reluformers.data.names import marked_as_local
from reluformers.errors import describe_error
from reluformers.files import write_text

from .arguments import TaskTrainingArguments
from .transfer import TransferOptions

CALIBRATION_ROWS = 128
_TRANSFER = tuple(item.name for item in dataclasses.fields(TransferOptions))
# arguments of transformers that our trainers do not ask for
_IDLE_ARGUMENTS = {
    "generation_max_length": "set decoding.max_new_tokens",
    "predict_with_generate": "set training.evaluate_bleu",
    "resume_from_checkpoint": "it is the option --resume",
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), "`train` trains, and evaluates by eval_strategy"),
    "label_names": "labels are those of the task",
    "auto_find_batch_size": "set the size of a batch",
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), "evaluations compute as training does"),
    **dict.fromkeys(
        (
            *("prediction_loss_only", "eval_accumulation_steps", "batch_eval_metrics", "include_for_metrics"),
            *("eval_do_concat_batches", "eval_use_gather_object"),
        ),
        "evaluations measure what the task has",
    ),
    **dict.fromkeys(
        ("train_sampling_strategy", "length_column_name", "remove_unused_columns", "dataloader_in_order"),
        "batches are made by the task",
    ),
}
# fields of configurations that no recipe decides
_DECIDED_FIELDS = dict.fromkeys(
    ("architectures", "is_encoder_decoder"),
    "follows from the task: leave it out",
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


class Recipe(ABC):
    """What defines a training run; a task's recipe is a dataclass whose fields are the sections.

    Every recipe has the sections `model` (`preset`, "softmax" if missing, and fields of its configuration class) and
    `training` (fields of `arguments_class`, all but `output_dir`), both dicts; the other sections are dataclasses.
    With `model.start`, a folder or Hub id, the model is that one: `preset` is then the attention that its own is
    exchanged for, none if missing, `sites` is where (everywhere if missing), and `calibration_rows` of the training
    set (128 if missing) are what the new attention is fitted on; 0 leaves it as it comes. `TransferOptions` are fields
    of this section too.
    """

    # what `task:` at the head of the file says
    task: ClassVar[str]
    arguments_class: ClassVar[type[TaskTrainingArguments]]
    # keys of the model section that are no fields of the configuration
    model_options: ClassVar[tuple[str, ...]] = ("preset", "start", "sites", "calibration_rows", *_TRANSFER)
    # further arguments of transformers that the trainer of this task does not ask for, and why
    idle_arguments: ClassVar[dict[str, str]] = {}
    # fields of the configuration that are no matter of the recipe, and why
    decided_fields: ClassVar[dict[str, str]] = {}

    model: dict[str, Any]
    training: dict[str, Any]

    @staticmethod
    @abstractmethod
    def make_config(preset: str, **fields: Any) -> PreTrainedConfig:
        """Configuration of a preset with some fields."""

    @staticmethod
    @abstractmethod
    def metrics(args: TaskTrainingArguments) -> Sequence[str]:
        """What evaluations measure, without prefix."""

    def model_config(self, **fields: Any) -> PreTrainedConfig:
        """Configuration of the model, with further fields (those that the data decide on).

        Raises:
            ValueError: a field has a value that is not allowed.
        """
        values = {**self.model, **fields}
        if values.get("return_dict") is False:
            raise ValueError("model.return_dict is False, but training reads outputs by their names: leave it out")
        if self.start is not None:
            config_fields = {name: value for name, value in values.items() if name not in self.model_options}
            opened = open_start(self.start)
            if PIPELINE_TAGS[opened.auto_class] != self.task:
                raise ValueError(
                    f"model.start is {self.start}, a model of {PIPELINE_TAGS[opened.auto_class]}, but this is a "
                    f"recipe of {self.task}"
                )
            return exchanged_config(opened, values.get("preset"), values.get("sites"), **config_fields)
        try:
            return self.make_config(values.pop("preset", "softmax"), **values)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"model: {describe_error(error)}") from error

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
            raise ValueError(f"training: {describe_error(error)}") from error
        metrics = self.metrics(args)
        if args.metric_for_best_model not in (None, *metrics, *(f"eval_{name}" for name in metrics)):
            raise ValueError(
                f"training.metric_for_best_model is {args.metric_for_best_model!r}, but evaluations measure "
                f"{' and '.join(metrics)}"
            )
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
        allowed = {item.name: item for item in dataclasses.fields(cls)}
        checked = {}
        for name, values in sections.items():
            if name == "task":
                if values != cls.task:
                    raise ValueError(f"task is {values!r}, but this is a recipe of {cls.task}")
                continue
            check_name(name, allowed, "section")
            if not isinstance(values, dict | None):
                raise ValueError(f"{name} is {values!r}, but must be a section of keys and values")
            checked[name] = cls._check_section(name, values or {})
        recipe = cls(**checked)
        recipe.model_config()
        return recipe

    @classmethod
    def _check_section(cls, name: str, values: dict[str, Any]) -> Any:
        if name == "model":
            return cls._check_model(values)
        if name == "training":
            for key, reason in (_IDLE_ARGUMENTS | cls.idle_arguments).items():
                if key in values:
                    raise ValueError(f"training.{key} does nothing here: {reason}")
            return check_fields(name, values, cls.arguments_class, excluded=["output_dir"])
        owner = typing.get_type_hints(cls)[name]
        try:
            return owner(**check_fields(name, values, owner))
        except ValueError as error:
            message = describe_error(error)
            raise ValueError(message if name in message else f"{name}: {message}") from error

    @classmethod
    def _check_model(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The model section; the values themselves are checked by the configuration class."""
        preset = values.get("preset", "softmax")
        if preset not in list(ATTENTION_PRESETS):
            raise ValueError(f"model.preset is {preset!r}, but must be one of {', '.join(ATTENTION_PRESETS)}")
        cls._check_start(values)
        if not isinstance(values.get("dtype"), str | None):
            raise ValueError(f"model.dtype is {values['dtype']!r}, but must be the name of a type, such as bfloat16")
        for name, reason in (_DECIDED_FIELDS | cls.decided_fields).items():
            if name in values:
                raise ValueError(f"model.{name} {reason}")
        fields = [item.name for item in dataclasses.fields(cls.make_config(preset))]
        for name in values:
            check_name(f"model.{name}", [f"model.{key}" for key in (*fields, *cls.model_options)], "key")
        return dict(values)

    @classmethod
    def _check_start(cls, values: dict[str, Any]) -> None:
        """The keys of a warm start: their types, and that there is one."""
        rows, sites = values.get("calibration_rows", 0), values.get("sites")
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
            raise ValueError(f"model.calibration_rows is {rows!r}, but must be an integer of 0 or more")
        if sites is not None and (not isinstance(sites, list) or not all(isinstance(site, str) for site in sites)):
            raise ValueError(f"model.sites is {sites!r}, but must be a list of names, such as [cross]")
        if not isinstance(values.get("start"), str | None):
            raise ValueError(f"model.start is {values['start']!r}, but must be a folder or Hub id")
        given = {name: values[name] for name in _TRANSFER if name in values}
        transfer = TransferOptions(**check_fields("model", given, TransferOptions))
        if values.get("start") is None:
            for name in ("sites", "calibration_rows", *given):
                if name in values:
                    raise ValueError(
                        f"model.{name} is given, but there is no model.start to exchange the attention of"
                    )
        elif sites is not None and "preset" not in values:
            raise ValueError("model.sites says where, but there is no model.preset to say what comes there")
        elif (transfer.is_gradual or transfer.attention_distillation > 0) and values.get("preset") is None:
            name = "schedule" if transfer.is_gradual else "attention_distillation"
            raise ValueError(f"model.{name} is of the attention that is exchanged, but there is no model.preset")
        elif "size" in values:
            raise ValueError("model.size is given, but sizes follow from model.start: leave it out")


def read_sections(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read what a recipe says, over what its base says, with some values changed; see `Recipe.load`.

    Raises:
        ValueError: the file is not YAML with sections, or an override is not of the form `section.key=value`.
    """
    sections = _read_with_base(Path(path))
    for text in overrides:
        override(sections, text)
    return sections


def _read_with_base(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The sections of a recipe over those of its base."""
    if path in seen:
        raise ValueError(f"{path}: is its own base ({' → '.join(str(one) for one in (*seen, path))})")
    sections = read_yaml(path) or {}
    if not isinstance(sections, dict):
        raise ValueError(f"{path}: a recipe has sections, such as model and data, but this file holds {sections!r}")
    base = sections.pop("base", None)
    if base is None:
        return sections
    if not isinstance(base, str):
        raise ValueError(f"{path}: base is {base!r}, but must be the name of a recipe beside this one")
    merged = _read_with_base(path.parent / base, (*seen, path))
    for name, values in sections.items():
        both_are_maps = isinstance(values, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **values} if both_are_maps else values
    return merged


def read_yaml(path: Path) -> Any:
    """What a file holds, read as YAML 1.2.

    Raises:
        ValueError: it cannot be read, or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a recipe ({describe_error(error, path)})") from error
    return _parse_yaml(text, str(path))


class _Loader(yaml.SafeLoader):
    """YAML as 1.2 has it: 1e-3 is a number, 010 is ten, `no` and 2024-01-31 are text. Keys come once."""

    def construct_mapping(self, node, deep=False):
        seen = []
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":  # <<: *other, whose keys may be given again
                continue
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", key.start_mark)
            seen.append(name)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would not read as text."""


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


_TAG = "tag:yaml.org,2002:"
# of YAML 1.2, section 10.3.2: name → the form of such values, and the characters that they begin with
_FORMS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_REPLACED = {f"{_TAG}{name}" for name in (*_FORMS, "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, (_form, _first) in _FORMS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_form})$"), list(_first))
_Loader.add_constructor(f"{_TAG}int", _construct_int)


def to_yaml(sections: dict[str, Any]) -> str:
    """Text that `read_yaml` reads the same."""
    return yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _parse_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{name}: not valid YAML, line {error.problem_mark.line + 1}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # of numbers of thousands of digits, and of nests
        raise ValueError(f"{name}: not valid YAML ({describe_error(error)})") from error


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
