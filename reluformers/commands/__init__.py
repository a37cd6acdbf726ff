"""The commands of `reluformers`, a file each.

A command's module has `add_arguments(parser)` and `run(options)`; its docstring is what --help says. It is imported
when it is asked for, so that none needs the packages of another.
"""

import argparse
import importlib
import re
from collections.abc import Callable, Sequence

import transformers

from reluformers.errors import run_main
from reluformers_cli import all_commands

CHANGE = re.compile(r"\w+(\.\w+)*=.*", re.DOTALL)  # It matches section.key=value and key=value.
OPTION = re.compile(r"\A--([a-z][\w-]*)(?=\Z|=)")


def build_parser(command: str) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], None]]:
    """The parser of a command, and what runs it."""
    module = importlib.import_module(all_commands()[command][0])
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"reluformers {command}", description=module.__doc__, formatter_class=formatter)
    module.add_arguments(parser)
    return parser, module.run


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Options of a command; its `changes` may stand anywhere, also behind an option of several values.

    Names of options may have dashes for underscores, as on other command lines of Hugging Face.
    """
    end = words.index("--") if "--" in words else len(words)
    words = [OPTION.sub(lambda name: f"--{name[1].replace('-', '_')}", word) for word in words[:end]] + [*words[end:]]
    takes_changes = any(action.dest == "changes" for action in parser._actions)
    changes = [word for word in words if takes_changes and CHANGE.fullmatch(word)]
    # Options may stand between the values of a list. Intermixed parsing forgets "--", behind which there are none.
    understand = parser.parse_args if "--" in words else parser.parse_intermixed_args
    options = understand([word for word in words if word not in changes])
    if takes_changes:
        options.changes = [*changes, *options.changes]
    return options


def run_command(arguments: Sequence[str], traceback: bool = False) -> None:
    """Run one command by its name and options, as `run_main` does."""
    transformers.logging.disable_progress_bar()  # Reading weights takes a second and needs no bar.
    if arguments[0] != "train":  # Commands print what matters of a model as lines of their own.
        transformers.logging.set_verbosity_error()

    def run() -> None:
        parser, run_with = build_parser(arguments[0])
        run_with(parse(parser, arguments[1:]))

    run_main(run, traceback)


def rows_of(paths: list[str]) -> str | dict[str, str]:
    """A source of rows by its name, or of two texts, line by line; a ValueError for any other number."""
    if len(paths) == 1:
        return paths[0]
    return dict(zip(("source", "target"), paths, strict=True))
