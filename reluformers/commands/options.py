"""Options of commands that are fields of a dataclass: names, types, defaults and help are written down once."""

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable


def add_fields(group: argparse._ActionsContainer, owner: type, names: Iterable[str]) -> None:
    """Add an option for each of some fields of a dataclass.

    Args:
        group: a parser, or a group of its options.
        owner: the dataclass; the help of a field is its line under "Args:" in the docstring.
        names: of the fields.
    """
    hints = typing.get_type_hints(owner)
    defaults = {item.name: item.default for item in dataclasses.fields(owner)}
    for name in names:
        hint = hints[name]
        if type(None) in typing.get_args(hint):
            hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        kinds = typing.get_args(hint) or (hint,)
        options = {"help": _help_of(owner, name).replace("%", "%%")}
        if hint is bool:
            options |= {"action": "store_true"}
        elif typing.get_origin(hint) is typing.Literal:
            options |= {"choices": list(kinds), "default": defaults[name]}
        else:
            options |= {"type": kinds[0], "default": defaults[name]}
        group.add_argument(f"--{name}", **options)


def _help_of(owner: type, name: str) -> str:
    for kind in owner.__mro__:
        documentation = inspect.cleandoc(kind.__doc__ or "")
        if found := re.search(rf"^    {name}: (.*?)\.?$(?=\n    \w|\n\n|\Z)", documentation, re.MULTILINE | re.DOTALL):
            return " ".join(found[1].split())
    raise ValueError(f"{owner.__name__}.{name} is not documented")
