"""The command line: `reluformers COMMAND …`, each command a module of `reluformers.commands`.

A command's module has `add_arguments(parser)` and `run(options)`; its docstring is what --help says. It is imported
when it is asked for, so that none needs the packages of another.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from .errors import run_main
from .files import check_name

# in the order in which they are used
COMMANDS = {
    "train": "train a model from a recipe",
    "translate": "translate a text, a file or a column of a table",
    "evaluate": "score a saved model",
    "analyse": "measure what the attention of saved models does, and draw it",
    "compare": "put finished runs side by side",
    "table": "run the rows of a paper's table and judge its claims",
    "align": "align the words of parallel text",
    "filter": "rank parallel text, or keep the best of it",
    "convert": "turn a model of transformers or timm into one of ours, or back",
    "average": "average the last checkpoints of a run",
    "merge": "make one folder of a checkpoint in pieces",
    "card": "write the model card of a finished run",
    "check": "make sure that a saved model still computes what it did",
    "push": "push a saved model to the Hub",
    "app": "open a model on a page that shows its attention",
    "env": "say by which computation attention runs here, and why",
}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind every option that has one worth saying; the description as it is written."""

    def _get_help_string(self, action: argparse.Action) -> str:
        says_nothing = action.default is None or action.default is False or action.default == []
        return action.help if says_nothing else super()._get_help_string(action)


def build_parser(command: str) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], None]]:
    """The parser of a command, and what runs it."""
    module = importlib.import_module(f"{__package__}.commands.{command}")
    parser = argparse.ArgumentParser(
        prog=f"reluformers {command}", description=module.__doc__, formatter_class=_HelpFormatter
    )
    module.add_arguments(parser)
    return parser, module.run


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: its name and options; None for those of the process.

    Raises:
        SystemExit: with code 2 and one line on stderr after an error that the user can mend.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    width = max(map(len, COMMANDS))
    overview = argparse.ArgumentParser(
        prog="reluformers",
        usage="%(prog)s COMMAND …",
        description="Attention without plain softmax: train, score, look, publish.",
        epilog="\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
        + "\n\n`reluformers COMMAND --help` says more of each.",
        formatter_class=_HelpFormatter,
    )
    overview.add_argument("--version", action="version", version=f"reluformers {version('reluformers')}")
    overview.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of:")

    def run() -> None:
        # paths among them would fail at the first file that is opened by a library, or when results are written
        for argument in (*arguments, os.getcwd()):
            check_name(argument)
        parser, run_command = build_parser(overview.parse_args(arguments[:1]).command)
        # options may stand between the values of a list; behind "--", which that forgets, there are none
        parse = parser.parse_args if "--" in arguments else parser.parse_intermixed_args
        run_command(parse(arguments[1:]))

    run_main(run)
