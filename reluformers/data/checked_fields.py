"""Checks the names and types of values from YAML or JSON against the fields of a dataclass."""

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from huggingface_hub.dataclasses import type_validator


class PlainText(str):
    """A value that a YAML file writes without quotes; `read_as` decides between text, number and boolean."""


def read_as(hint: Any, value: Any) -> Any:
    """Read the plain text in a YAML value as the type that is meant, and leave all else.

    Text that fits no type of `hint` stays text. For text or `Any`, digits with underscores are no number.

    Args:
        hint: type of a field; a union, dataclass, list or mapping has those of its parts.
        value: of `read_yaml`.
    """
    choices = _choices(hint)
    if isinstance(value, Mapping):
        owners = filter(dataclasses.is_dataclass, choices)
        hints = {item.name: item.type for owner in owners for item in dataclasses.fields(owner)}
        other = next((typing.get_args(choice)[1] for choice in choices if typing.get_origin(choice) is dict), Any)
        return {name: read_as(hints.get(name, other), part) for name, part in value.items()}
    if isinstance(value, list):
        inner = next((typing.get_args(choice)[0] for choice in choices if typing.get_origin(choice) is list), Any)
        return [read_as(inner, part) for part in value]
    if not isinstance(value, PlainText):
        return value
    is_any = Any in choices
    if (is_any or bool in choices) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    number = None
    if is_any or int in choices or float in choices:
        is_text_allowed = is_any or str in choices
        number = None if is_text_allowed and "_" in value else _read_number(value)
    return str(value) if number is None else number


def _choices(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, those of literals among them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return sum(map(_choices, typing.get_args(hint)), ())
    if typing.get_origin(hint) is typing.Literal:
        return tuple(map(type, typing.get_args(hint)))
    return (hint,)


def _read_number(text: str) -> int | float | None:
    """The number that a text is: decimal with leading zeros or an exponent, 0x10, 0o10, 0b10, .inf or .nan."""
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        return float(text.replace(".", ""))
    if not any(character.isdigit() for character in text):  # Python's float would take "nan" and "infinity".
        return None
    for read in (int, lambda digits: int(digits, 0), float):
        with contextlib.suppress(ValueError):
            return read(text)
    return None


def check_name(name: str, allowed: Iterable[str], kind: str) -> None:
    """Refuse a name of some kind, such as "section", that is not allowed, and say which of those is nearest."""
    allowed = list(allowed)
    if name not in allowed:
        near = difflib.get_close_matches(str(name), allowed, n=1)
        raise ValueError(f"unknown {kind} {name!r}{f'; the nearest allowed is {near[0]!r}' if near else ''}")


def check_fields(section: str, values: Any, owner: type, *, excluded: Iterable[str] = ()) -> dict[str, Any]:
    """Check values against the fields of a dataclass; whole numbers become floats where floats are meant.

    Args:
        section: where they stand, in front of each name in messages.
        values: name → value, perhaps with plain text, which is read as the field's type.
        owner: the dataclass.
        excluded: fields that may not be given.

    Raises:
        ValueError: they are no mapping, a name is not known, or a value has the wrong type; names `section.name`.
    """
    hints = typing.get_type_hints(owner)
    checked = {}
    allowed = [f"{section}.{item.name}" for item in dataclasses.fields(owner) if item.name not in excluded]
    for name, value in check_mapping(section, values).items():
        key = f"{section}.{name}"
        check_name(key, allowed, "key")
        hint = hints[name]
        value = read_as(hint, value)
        if type(value) is int and (hint is float or float in typing.get_args(hint)):
            value = float(value)
        try:
            type_validator(key, value, hint)
        except TypeError as error:
            raise ValueError(str(error)) from error
        checked[name] = value
    return checked


def check_mapping(name: str, values: Any) -> Mapping[str, Any]:
    """The values, if they are a mapping; else a ValueError that names them."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} is {values!r}, but must be a mapping")
    return values
