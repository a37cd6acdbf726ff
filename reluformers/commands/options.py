"""Options of commands that are fields of a dataclass: names, types, defaults and help are written down once."""

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable


def add_fields(group: argparse._ActionsContainer, owner: type, names: Iterable[str]) -> None:
    """Add an option for each of some fields of a dataclass; those that are not given leave no trace.

    Args:
        group: a parser, or a group of its options.
        owner: the dataclass; the help of a field is its line under "Args:" in the docstring.
        names: of the fields.
    """
    hints = typing.get_type_hints(owner)
    defaults = {item.name: item.default for item in dataclasses.fields(owner)}
    for name in names:
        hint, default = hints[name], defaults[name]
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
        if hint is bool:
            options = {"action": "store_true"}
        elif typing.get_origin(kinds[0]) is typing.Literal:
            options = {"choices": typing.get_args(kinds[0])}
        else:
            options = {"type": kinds[0]}
        shown = "" if default in (None, False) else f" (default: {default})"
        text = f"{_help_of(owner, name)}{shown}".replace("%", "%%")
        group.add_argument(f"--{name}", help=text, default=argparse.SUPPRESS, **options)


def _help_of(owner: type, name: str) -> str:
    pattern = rf"^    {name}: (.*?)\.?$(?=\n    \w|\n\n|\Z)"
    texts = (inspect.cleandoc(kind.__doc__ or "") for kind in owner.__mro__)
    found = next(filter(None, (re.search(pattern, text, re.MULTILINE | re.DOTALL) for text in texts)))
    return " ".join(found[1].split())
