# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of configuration fields, whose errors are one line with the field, its value and what is allowed."""

from functools import wraps
from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError


def strict_fields(cls: type) -> type:
    """Check a dataclass's fields as `@strict` of huggingface_hub does, aliases too, with `ValueError`s of one line.

    Types are checked when a field is set, the rest by methods `validate_…`, at the end of making and by `validate`.
    """
    is_checked, own_setattr = getattr(cls, "_is_checked", False), vars(cls).get("__setattr__")
    cls = strict(cls)
    set_field, run_validators = cls.__setattr__, cls.validate

    @wraps(set_field)
    def set_checked(self: Any, name: str, value: Any) -> None:
        name = getattr(self, "attribute_map", {}).get(name, name)
        try:
            set_field(self, name, value)
        except StrictDataclassFieldValidationError as error:
            reason = " ".join(str(error.__cause__).split())
            raise ValueError(f"{type(self).__name__}.{name}: {reason}") from error

    @wraps(run_validators)
    def validate(self: Any) -> None:
        try:
            run_validators(self)
        except StrictDataclassClassValidationError as error:
            raise ValueError(str(error.__cause__)) from error

    cls.validate = validate
    if not is_checked:
        cls.__setattr__, cls._is_checked = set_checked, True
    elif own_setattr is not None:  # A base class already checks fields by the types of the object's own class.
        cls.__setattr__ = own_setattr
    else:
        del cls.__setattr__
    return cls


def check_choice(owner: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise a `ValueError` with the field, the value and what is allowed unless `value` is in `allowed`."""
    if value not in allowed:
        raise ValueError(f"{owner}.{name} is {value!r}, but must be one of {', '.join(map(repr, allowed))}")


def check_number(owner: str, name: str, value: Any, interval: str = "(-inf, inf)", *, integer: bool = False) -> None:
    """Raise a `ValueError` unless `value` is a finite number, or an integer, in an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))
    # A NaN lies in no interval, so it is refused.
    if isinstance(value, int if integer else (int, float)) and not isinstance(value, bool):
        is_above = value > low or (interval[0] == "[" and value == low)
        if is_above and (value < high or (interval[-1] == "]" and value == high)):
            return
    noun = "an integer" if integer else "a number"
    raise ValueError(f"{owner}.{name} is {value!r}, but must be {noun} in {interval}")
