"""Recipes: one YAML file with everything that defines a training run."""

import dataclasses
import difflib
import enum
import math
import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub.dataclasses import type_validator

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS
from reluformers.configuration.configuration_seq2seq import (
    Seq2SeqTransformerConfig,
    seq2seq_config,
    seq2seq_config_class,
)
from reluformers.errors import UserError
from reluformers.files import atomic_write

from .arguments import TranslationTrainingArguments

# the tokenizer decides on these
_TOKENIZER_FIELDS = ("vocab_size", "decoder_vocab_size")
_METRICS = ("loss", "bleu")


def _check_least(owner: Any, section: str, least: dict[str, int]) -> None:
    """Numbers of a section must be at least so much, or None."""
    for name, minimum in least.items():
        value = getattr(owner, name)
        if value is not None and value < minimum:
            raise UserError(f"{section}.{name} is {value!r}, but must be {minimum} or more")


@dataclass
class TokenizerSection:
    """Which tokenizer.

    Args:
        path: folder or Hub id of a tokenizer to use; None trains one on the training set.
        vocab_size: number of tokens of a trained one.
        shared: one tokenizer for both sides; False trains one for each.
        min_frequency: a trained merge must occur that often.
        byte_fallback: unknown characters become bytes instead of <unk>.
    """

    path: str | None = None
    vocab_size: int = 32000
    shared: bool = True
    min_frequency: int = 2
    byte_fallback: bool = False

    def __post_init__(self):
        _check_least(self, "tokenizer", {"vocab_size": 1, "min_frequency": 0})


@dataclass
class DataSection:
    """Which sentence pairs.

    Args:
        path: Hub id of a data set, or folder; None if `train` and `validation` are files.
        name: configuration of the data set on the Hub.
        revision: branch, tag or commit on the Hub.
        train, validation, test: with `path`, the name of the split; without it a file, a list of files, or a mapping
            with `source` and `target` for parallel text. `test` may stay None.
        source_lang, target_lang: keys of the translation column, or column names.
        translation_column: name of the column with a dict of both languages.
        document_column: name of the column with the document's id, for `document_tokens`.
        document_tokens: join consecutive sentences of a document up to so many tokens (ReLUFormer, App. B).
        max_length: drop training pairs with a longer side, in tokens with </s>; None for the model's longest.
        max_length_ratio: drop training pairs whose longer side has more than that many times the other's tokens.
    """

    path: str | None = None
    name: str | None = None
    revision: str | None = None
    train: str | list[str] | dict[str, str] | None = None
    validation: str | list[str] | dict[str, str] | None = None
    test: str | list[str] | dict[str, str] | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    translation_column: str = "translation"
    document_column: str | None = None
    document_tokens: int | None = None
    max_length: int | None = None
    max_length_ratio: float | int | None = None

    def __post_init__(self):
        _check_least(self, "data", {"max_length": 1})
        for name in ("train", "validation", "test"):
            if getattr(self, name) in ([], {}):
                raise UserError(f"data.{name} is {getattr(self, name)!r}, but must name a file or split")


@dataclass
class DecodingSection:
    """How the finished model translates: for the last evaluation and as its generation defaults.

    Args:
        num_beams: width of the beam; 1 for greedy search.
        length_penalty: α.
        penalty: what α means: `"hf"` divides by |Y|^α, `"wu"` by ((5+|Y|)/6)^α, in the evaluation only.
        early_stopping: when the beam search ends, as in transformers; the papers' search is `"never"`.
        min_new_tokens: the shortest output, in tokens; 1 forbids an empty one, as the papers do.
        max_new_tokens: the longest output of the saved model by default, in tokens, at most as many as the model has
            positions; the evaluation allows 50 more than the source has.

    Raises:
        UserError: a number is too small, or α is not finite.
    """

    num_beams: int = 5
    length_penalty: float | int = 1.0
    penalty: Literal["hf", "wu"] = "hf"
    early_stopping: bool | Literal["never"] = False
    min_new_tokens: int = 0
    max_new_tokens: int = 256

    def __post_init__(self):
        _check_least(self, "decoding", {"num_beams": 1, "min_new_tokens": 0, "max_new_tokens": 1})
        if not math.isfinite(self.length_penalty):
            raise UserError(f"decoding.length_penalty is {self.length_penalty}, but must be finite")

    def search_options(self) -> dict[str, Any]:
        """What `generate` and a `GenerationConfig` need of it."""
        options: dict[str, Any] = {"num_beams": self.num_beams}
        if self.num_beams > 1:
            options |= {"length_penalty": float(self.length_penalty), "early_stopping": self.early_stopping}
        if self.min_new_tokens > 0:
            options["min_new_tokens"] = self.min_new_tokens
        return options


@dataclass
class Recipe:
    """Everything that defines a training run.

    Args:
        model: `preset` (a name of `ATTENTION_PRESETS`, "softmax" if missing) and fields of its configuration class.
        tokenizer, data, decoding: see the sections.
        training: fields of `TranslationTrainingArguments`, all but `output_dir`.
    """

    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    data: DataSection = field(default_factory=DataSection)
    training: dict[str, Any] = field(default_factory=dict)
    decoding: DecodingSection = field(default_factory=DecodingSection)

    def model_config(self, **fields) -> Seq2SeqTransformerConfig:
        """Configuration of the model, with further fields (those that the tokenizer decides on).

        Raises:
            UserError: a field has a value that is not allowed.
        """
        values = {**self.model, **fields}
        try:
            return seq2seq_config(values.pop("preset", "softmax"), **values)
        except (TypeError, ValueError) as error:
            raise UserError(f"model: {_one_line(error)}") from error

    def training_arguments(self, output_dir: str | Path) -> TranslationTrainingArguments:
        """Arguments of the trainer, for an output folder.

        Raises:
            UserError: a field has a value that is not allowed.
        """
        try:
            args = TranslationTrainingArguments(output_dir=str(output_dir), **self.training)
        except (TypeError, ValueError, ImportError) as error:
            raise UserError(f"training: {_one_line(error)}") from error
        metrics = _METRICS if args.evaluate_bleu else _METRICS[:1]
        if args.metric_for_best_model not in (None, *metrics, *(f"eval_{name}" for name in metrics)):
            raise UserError(
                f"training.metric_for_best_model is {args.metric_for_best_model!r}, but evaluations measure "
                f"{' and '.join(metrics)}"
            )
        return args

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The recipe as it is written in YAML."""
        return dataclasses.asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the recipe so that `load_recipe` reads the same, without access tokens."""
        sections = self.to_dict()
        sections["training"] = {name: value for name, value in self.training.items() if not name.endswith("_token")}
        with atomic_write(path) as temporary:
            temporary.write_text(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True), encoding="utf-8")

    @classmethod
    def from_dict(cls, sections: dict[str, dict[str, Any] | None]) -> "Recipe":
        """Check names and types of every key and build the recipe.

        Raises:
            UserError: a section or key is not known, or a value has the wrong type.
        """
        allowed = {item.name: item for item in dataclasses.fields(cls)}
        checked = {}
        for name, values in sections.items():
            _check_name(name, allowed, "section")
            if not isinstance(values, dict | None):
                raise UserError(f"{name} is {values!r}, but must be a section of keys and values")
            checked[name] = _CHECKS[name](values or {})
        recipe = cls(**checked)
        recipe.model_config()
        return recipe


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: YAML file with sections `model`, `tokenizer`, `data`, `training`, `decoding`, and `base`, the name of a
            recipe beside it whose values hold where this one says nothing.
        overrides: `"section.key=value"` each, later ones win; the value is read as YAML, and `section.key.inner=value`
            sets one entry of a mapping.

    Raises:
        UserError: the file is not a recipe, a section or key is not known, or a value is not allowed.
    """
    sections = _read_sections(Path(path))
    for override in overrides:
        _apply_override(sections, override)
    try:
        return Recipe.from_dict(sections)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _read_sections(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The sections of a recipe over those of its base."""
    if path in seen:
        raise UserError(f"{path}: is its own base ({' → '.join(str(one) for one in (*seen, path))})")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a recipe ({_one_line(error)})") from error
    sections = _parse_yaml(text, str(path)) or {}
    if not isinstance(sections, dict):
        raise UserError(f"{path}: a recipe has sections {', '.join(_CHECKS)}, but this file holds {sections!r}")
    base = sections.pop("base", None)
    if base is None:
        return sections
    if not isinstance(base, str):
        raise UserError(f"{path}: base is {base!r}, but must be the name of a recipe beside this one")
    merged = _read_sections(path.parent / base, (*seen, path))
    for name, values in sections.items():
        both_are_maps = isinstance(values, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **values} if both_are_maps else values
    return merged


class _Loader(yaml.SafeLoader):
    """YAML as 1.2 has it: 1e-3 is a number and `no` is text. A key that is given twice is an error."""

    def construct_mapping(self, node, deep=False):
        seen = []
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", key.start_mark)
            seen.append(name)
        return super().construct_mapping(node, deep=deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parse_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise UserError(f"{name}: not valid YAML, line {error.problem_mark.line + 1}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not valid YAML ({_one_line(error)})") from error


def _apply_override(sections: dict[str, Any], override: str) -> None:
    """Set one value in place."""
    key, equals, value = override.partition("=")
    *parents, last = key.split(".")
    if not equals or not parents:
        raise UserError(f"{override!r} is not of the form section.key=value")
    target = sections
    for parent in parents:
        if target.get(parent) is None:
            target[parent] = {}
        target = target[parent]
        if not isinstance(target, dict):
            raise UserError(f"{override!r}: {parent} is {target!r}, so it has no keys of its own")
    target[last] = _parse_yaml(value, override)


def _check_name(name: str, allowed: Iterable[str], kind: str) -> None:
    if name in allowed:
        return
    near = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0)
    raise UserError(f"unknown {kind} {name!r}; the nearest allowed is {near[0]!r}")


def _check_fields(section: str, values: dict[str, Any], owner: type, excluded: Iterable[str] = ()) -> dict[str, Any]:
    """The values, whole numbers as floats where floats are meant, if they fit the fields of a dataclass."""
    hints = typing.get_type_hints(owner)
    allowed = [f"{section}.{item.name}" for item in dataclasses.fields(owner) if item.name not in excluded]
    checked = {}
    for name, value in values.items():
        key = f"{section}.{name}"
        _check_name(key, allowed, "key")
        hint = hints[name]
        choices = [item.value for kind in (hint, *typing.get_args(hint)) if _is_enum(kind) for item in kind]
        if choices and value is not None and value not in choices:
            raise UserError(f"{key} is {value!r}, but must be one of {', '.join(map(str, choices))}")
        if type(value) is int and (hint is float or float in typing.get_args(hint)):
            value = float(value)
        try:
            type_validator(name, value, hint)
        except (TypeError, ValueError) as error:
            raise UserError(f"{key} is {value!r}, but must be {_describe(hint)}") from error
        checked[name] = value
    return checked


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _describe(hint: Any) -> str:
    """A type in words."""
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (dict, list):
        return str(hint).replace("typing.", "")
    parts = typing.get_args(hint)
    if parts:
        return " or ".join(_describe(part) for part in parts)
    return "null" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _check_model(values: dict[str, Any]) -> dict[str, Any]:
    """The model section; the values themselves are checked by the configuration class."""
    preset = values.get("preset", "softmax")
    if preset not in list(ATTENTION_PRESETS):
        raise UserError(f"model.preset is {preset!r}, but must be one of {', '.join(ATTENTION_PRESETS)}")
    for name in _TOKENIZER_FIELDS:
        if name in values:
            raise UserError(f"model.{name} follows from the tokenizer: set tokenizer.vocab_size instead")
    allowed = [f"model.{item.name}" for item in dataclasses.fields(seq2seq_config_class(preset))]
    for name in values:
        _check_name(f"model.{name}", [*allowed, "model.preset"], "key")
    return dict(values)


_CHECKS = {
    "model": _check_model,
    "tokenizer": lambda values: TokenizerSection(**_check_fields("tokenizer", values, TokenizerSection)),
    "data": lambda values: DataSection(**_check_fields("data", values, DataSection)),
    "training": lambda values: _check_fields("training", values, TranslationTrainingArguments, ("output_dir",)),
    "decoding": lambda values: DecodingSection(**_check_fields("decoding", values, DecodingSection)),
}
