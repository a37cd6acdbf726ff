"""Average the weights of the last checkpoints of a run.

Example:
    reluformers average runs/reluformer --last 5 --output runs/reluformer/averaged
"""

import argparse

from reluformers.configuration.field_checks import check_number
from reluformers.training.averaging import average_checkpoints, last_checkpoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("run_folder", help="folder that holds checkpoint-<step> folders")
    parser.add_argument("--last", type=int, default=5, help="number of checkpoints to average (default: %(default)s)")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the output folder if a command wrote it")


def run(options: argparse.Namespace) -> None:
    """Average."""
    check_number("average", "last", options.last, "[1, inf)", integer=True)
    folders = last_checkpoints(options.run_folder, options.last)
    average_checkpoints(folders, options.output, overwrite=options.overwrite)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {options.output}")
