"""Brings text that others wrote into Markdown, where it stays text."""

import re
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

# White space of all kinds, line breaks and control characters become a blank.
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
# An underscore within a word needs no escape.
_SPECIAL = re.compile(r"[\\`*~\[\]|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
# These begin a heading, a list, a quotation or a rule.
_BEGINNING = re.compile(r"^ *(?:([#>+=-])|(\d+)(?=[.)](?: |$)))")


def escape(value: Any) -> Markup:
    """Text as Markdown that shows it and no more, on one line, in a cell of a table too; Markdown stays as it is."""
    if isinstance(value, Markup):
        return value
    text = _ENTITY.sub("&amp;", _BLANK.sub(" ", str(value)))
    return Markup(_SPECIAL.sub(r"\\\g<0>", text).replace("<", "&lt;"))


def paragraph(value: Any) -> Markup:
    """Text as Markdown that stands at the beginning of a line."""
    return Markup(
        _BEGINNING.sub(lambda match: f"\\{match[1]}" if match[1] else f"{match[2]}\\", escape(value).strip())
    )


def code(value: Any) -> Markup:
    """Text in the letters of code where it needs no escapes, which mean nothing there."""
    text = str(value)
    return (
        escape(text) if re.search(r"[`<|\\]|&#?\w+;", text) or _BLANK.sub(" ", text) != text else Markup(f"`{text}`")
    )


def row(cells: Iterable[Any]) -> Markup:
    """Cells of a table, without the strokes at its sides."""
    return Markup(" | ").join(escape(cell) for cell in cells)
