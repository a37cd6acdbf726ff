"""Closed lists that models of every kind choose from, and the checks of configuration fields."""

import math
from typing import Any

NORM_TYPES = ("layer_norm", "rms_norm", "scale_norm")
FEED_FORWARD_ACTIVATIONS = (
    "relu",
    "gelu",
    "gelu_pytorch_tanh",
    "silu",
    "swish",
    "softmax",
    "glu",
    "bilinear",
    "reglu",
    "geglu",
    "swiglu",
)


def check_choice(owner: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise a `ValueError` that names the field, the value and what is allowed unless `value` is in `allowed`."""
    if value not in allowed:
        raise ValueError(f"{owner}.{name} is {value!r}, but must be one of {', '.join(map(repr, allowed))}")


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    open_minimum: bool = False,
    open_maximum: bool = False,
    integer: bool = False,
) -> None:
    """Raise a `ValueError` unless `value` is a finite number (or integer) within the bounds; `open_…` excludes one."""
    kind_fits = isinstance(value, int if integer else (int, float)) and not isinstance(value, bool)
    if kind_fits and math.isfinite(value):
        above = value > minimum if open_minimum else value >= minimum
        below = value < maximum if open_maximum else value <= maximum
        if above and below:
            return
    low = "(" if open_minimum or minimum == -math.inf else "["
    high = ")" if open_maximum or maximum == math.inf else "]"
    noun = "an integer" if integer else "a number"
    raise ValueError(f"{owner}.{name} is {value!r}, but must be {noun} in {low}{minimum}, {maximum}{high}")


def check_bool(owner: str, name: str, value: Any) -> None:
    """Raise a `ValueError` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{name} is {value!r}, but must be True or False")
