"""Checks the names and types of values from YAML or JSON against the fields of a dataclass."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from huggingface_hub.dataclasses import type_validator


def check_name(name: str, allowed: Iterable[str], kind: str) -> None:
    """Refuse a name of some kind, such as "section", that is not allowed, and say which of those is nearest."""
    allowed = list(allowed)
    if name not in allowed:
        near = difflib.get_close_matches(str(name), allowed, n=1)
        raise ValueError(f"unknown {kind} {name!r}{f'; the nearest allowed is {near[0]!r}' if near else ''}")


def check_fields(section: str, values: Any, owner: type, *, excluded: Iterable[str] = ()) -> dict[str, Any]:
    """The values, whole numbers as floats where floats are meant, if they fit the fields of a dataclass.

    Args:
        section: where they stand, in front of each name in messages.
        values: name → value.
        owner: the dataclass.
        excluded: fields that may not be given.

    Raises:
        ValueError: they are no mapping, a name is not known, or a value has the wrong type; names `section.name`.
    """
    hints, checked = typing.get_type_hints(owner), {}
    allowed = [f"{section}.{item.name}" for item in dataclasses.fields(owner) if item.name not in excluded]
    for name, value in check_mapping(section, values).items():
        key = f"{section}.{name}"
        check_name(key, allowed, "key")
        hint = hints[name]
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
