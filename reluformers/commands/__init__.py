"""The commands of `reluformers`, a file each.

A command's module has `add_arguments(parser)` and `run(options)`; its docstring is what --help says. It is imported
when it is asked for, so that none needs the packages of another.
"""

import argparse
import importlib
import re
from collections.abc import Callable, Sequence

from reluformers.errors import run_main
from reluformers_cli import Parser, all_commands

SECTION_CHANGE = re.compile(r"\w+(\.\w+)+=.*", re.DOTALL)  # section.key=value
FIELD_CHANGE = re.compile(r"\w+(\.\w+)*=.*", re.DOTALL)  # field=value


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind every option that has one worth saying; the description as it is written."""

    def _get_help_string(self, action: argparse.Action) -> str:
        says_nothing = action.default is None or isinstance(action.default, bool) or action.default == []
        return action.help if says_nothing else super()._get_help_string(action)


def build_parser(command: str) -> tuple[Parser, Callable[[argparse.Namespace], None]]:
    """The parser of a command, and what runs it."""
    module = importlib.import_module(all_commands()[command][0])
    parser = Parser(prog=f"reluformers {command}", description=module.__doc__, formatter_class=_HelpFormatter)
    module.add_arguments(parser)
    return parser, module.run


def run_command(arguments: Sequence[str], traceback: bool = False) -> None:
    """Run one command by its name and options, as `run_main` does."""

    def run() -> None:
        parser, run_with = build_parser(arguments[0])
        # options may stand between the values of a list; behind "--", which that forgets, there are none
        parse = parser.parse_args if "--" in arguments else parser.parse_intermixed_args
        run_with(parse(arguments[1:]))

    run_main(run, traceback)


def take_changes(options: argparse.Namespace, changes: str, form: re.Pattern, *lists: str) -> None:
    """Move changes from behind an option of several values to the list that they are meant for.

    `--seeds 1 2 data.train=FILE` has argparse think that the file is a seed. `changes` and `lists` name options of
    several values, and those of the latter have another form.
    """
    for name in lists:
        if (values := getattr(options, name)) is None:  # not given, which may mean all
            continue
        taken = [text for text in values if form.fullmatch(text)]
        setattr(options, name, [text for text in values if text not in taken])
        setattr(options, changes, [*getattr(options, changes), *taken])


def rows_of(paths: list[str]) -> str | dict[str, str]:
    """A source of rows by its name, or of two texts, line by line; a ValueError for any other number."""
    return paths[0] if len(paths) == 1 else dict(zip(("source", "target"), paths, strict=True))
