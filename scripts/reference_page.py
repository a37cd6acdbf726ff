"""Fill the tables of docs/reference.md from the code: a hook of mkdocs.

`<!-- commands -->` becomes every command with its options, and `<!-- fields MODULE.CLASS -->` the fields of a class.
"""

import argparse
import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Sequence

from reluformers.commands import build_parser
from reluformers_cli import all_commands


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers of a page, as mkdocs asks for it."""
    markdown = re.sub(r"<!-- fields (\S+) -->", lambda match: fields_of(match[1]), markdown)
    return re.sub("<!-- commands -->", lambda _: "\n".join(map(command, all_commands())), markdown)


def command(name: str) -> str:
    """Write down a command: what its --help says, with the options as a table."""
    parser = build_parser(name)[0]
    options = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    rows = []
    for action in options:
        names = ", ".join(action.option_strings) or action.metavar or action.dest
        says_nothing = isinstance(action.default, bool) or action.default in (None, [], argparse.SUPPRESS)
        values = "" if action.choices is None else " (" + ", ".join(map(str, action.choices)) + ")"
        default = "" if says_nothing else f"`{action.default}`"
        rows.append((f"`{names}`", default, (action.help or "").replace("%%", "%") + values))
    head = f"### reluformers {name}\n\n```text\n{(parser.description or '').strip()}\n```\n\n"
    return head + table(("option", "default", "meaning"), rows)


def fields_of(path: str) -> str:
    """Write down the fields of a class by the "Args:" of its docstring, with their defaults."""
    module, _, name = path.rpartition(".")
    owner = getattr(importlib.import_module(module), name)
    fields = {item.name: item for item in dataclasses.fields(owner)}
    arguments = inspect.cleandoc(owner.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    rows = []
    for match in re.finditer(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE):
        names = match[1].split(", ")
        text = " ".join(match[2].split())
        listed = [fields[field] for field in names if field in fields]  # the others are attributes
        values = [str(value) for item in listed[:1] for value in typing.get_args(item.type)]
        if listed and typing.get_origin(listed[0].type) is typing.Literal and not all(v in text for v in values):
            text += " (" + ", ".join(values) + ")"
        defaults = [item.default for item in listed]
        shown = ", ".join(f"`{value}`" for value in defaults if value not in (None, dataclasses.MISSING))
        rows.append((", ".join(f"`{field}`" for field in names), shown, text))
    return table(("field", "default", "meaning"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown; in code `|` ends no cell, and `</s>` in words is no HTML."""
    lines = [[re.sub(r"<(/?\w+)>", r"&lt;\1&gt;", cell) for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
