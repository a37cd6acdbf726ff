"""Checks the names and types of values from YAML or JSON against the fields of a dataclass."""

import dataclasses
import difflib
import enum
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from huggingface_hub.dataclasses import type_validator


def check_name(name: str, allowed: Iterable[str], kind: str) -> None:
    """Refuse a name that is not among the allowed ones, and say which of them is nearest.

    Args:
        name: as the user wrote it.
        allowed: names that there are.
        kind: what it names, such as "section".

    Raises:
        ValueError: it is not allowed.
    """
    allowed = list(allowed)
    if name in allowed:
        return
    near = difflib.get_close_matches(str(name), allowed, n=1)
    known = f"the nearest allowed is {near[0]!r}" if near else f"allowed are {', '.join(sorted(allowed)[:20])}"
    if not near and len(allowed) > 20:
        known += f" and {len(allowed) - 20} others"
    raise ValueError(f"unknown {kind} {name!r}; {known}")


def check_fields(
    section: str, values: Mapping[str, Any], owner: type, *, excluded: Iterable[str] = ()
) -> dict[str, Any]:
    """The values, whole numbers as floats where floats are meant, if they fit the fields of a dataclass.

    Args:
        section: where they stand, in front of each name in messages.
        values: name → value.
        owner: the dataclass.
        excluded: fields that may not be given.

    Raises:
        ValueError: a name is not known, or a value has the wrong type; the message names it as `section.name`.
    """
    hints = typing.get_type_hints(owner)
    allowed = [f"{section}.{item.name}" for item in dataclasses.fields(owner) if item.name not in excluded]
    checked = {}
    for name, value in values.items():
        key = f"{section}.{name}"
        check_name(key, allowed, "key")
        hint = hints[name]
        choices = [item.value for kind in (hint, *typing.get_args(hint)) if _is_enum(kind) for item in kind]
        if choices and value is not None and value not in choices:
            raise ValueError(f"{key} is {value!r}, but must be one of {', '.join(map(str, choices))}")
        if type(value) is int and (hint is float or float in typing.get_args(hint)):
            value = float(value)
        try:
            type_validator(name, value, hint)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key} is {value!r}, but must be {_describe(hint)}") from error
        checked[name] = value
    return checked


def check_mapping(name: str, values: Any) -> Mapping[str, Any]:
    """The values, if they are a mapping.

    Raises:
        ValueError: they are not.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} is {values!r}, but must be a mapping")
    return values


def build(name: str, kind: type, values: Any) -> Any:
    """A dataclass of checked values, all of whose fields without a default are given.

    Args:
        name: where they stand, in front of each field's name in messages.
        kind: the dataclass.
        values: name → value.

    Raises:
        ValueError: they are no mapping, a name is missing or not known, or a value has the wrong type.
    """
    checked = check_fields(name, check_mapping(name, values), kind)
    for item in dataclasses.fields(kind):
        is_required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if is_required and item.name not in checked:
            raise ValueError(f"{name}.{item.name} is missing")
    return kind(**checked)


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
