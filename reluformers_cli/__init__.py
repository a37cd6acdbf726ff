"""The command line `reluformers COMMAND …`, without what a command needs.

Importing `reluformers` takes seconds, as it makes its models known to transformers. This package imports nothing of it
before a command is to run, so that --help and --version answer at once.
"""

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version

# in the order in which they are used
COMMANDS = {
    "train": "train a model from a recipe or from sentence pairs",
    "translate": "translate a text, a file or a column of a table",
    "evaluate": "score a saved model",
    "compare": "compare finished runs in a table",
    "convert": "convert a model of transformers or timm, or exchange its attention",
    "average": "average the last checkpoints of a run",
    "card": "write the model card of a finished run",
    "check": "check that a saved model still computes the same",
    "export": "write a saved model as ONNX, or as a page that needs no server",
    "push": "push a saved model to the Hub",
    "app": "open a model on a page that shows its attention",
    "serve": "serve a saved model over HTTP",
    "env": "print versions, hardware, and how attention is computed here",
}


@functools.cache
def all_commands() -> dict[str, tuple[str, str]]:
    """Name → module and summary of every command: those here, and those of packages on top of reluformers.

    Such a package has an entry point of the group `reluformers.commands`: a package with a module for each command, as
    `reluformers.commands` is one, and `COMMANDS` as here.
    """
    commands = {name: (f"reluformers.commands.{name}", summary) for name, summary in COMMANDS.items()}
    for entry in entry_points(group="reluformers.commands"):
        try:
            package = entry.load()
        except ImportError as error:  # one that is broken or half removed takes only its own commands away
            sys.stderr.write(f"warning: the commands of {entry.value} are left out: {error}\n")
            continue
        commands |= {name: (f"{package.__name__}.{name}", summary) for name, summary in package.COMMANDS.items()}
    return commands


def build_overview() -> argparse.ArgumentParser:
    """Build the parser of the first argument, the command."""
    commands = all_commands()
    width = max(map(len, commands))
    overview = argparse.ArgumentParser(
        prog="reluformers",
        usage="%(prog)s COMMAND ...",
        description="Train, score, look into and publish models whose attention is not plain softmax.",
        epilog="\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in commands.items())
        + "\n\n`reluformers COMMAND --help` explains a command; --traceback shows where an error came from.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    overview.add_argument("--version", action="version", version=f"reluformers {version('reluformers')}")
    overview.add_argument("command", choices=commands, metavar="COMMAND", help="one of the commands below")
    return overview


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, or say which there are.

    Args:
        arguments: its name and options; None for those of the process.

    Raises:
        SystemExit: with code 2 and one line on stderr after an error that the user can mend.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    traceback = "--traceback" in arguments[: arguments.index("--") if "--" in arguments else None]
    if traceback:
        arguments.remove("--traceback")
    if not arguments or arguments[0] not in all_commands():
        build_overview().parse_args(arguments[:1])
    if sys.stderr is None or not sys.stderr.isatty():  # no progress bars into files and pipes
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from reluformers.commands import run_command

    run_command(arguments, traceback)
