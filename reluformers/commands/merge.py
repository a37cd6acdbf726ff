"""Make one folder, ready for the Hub, of a checkpoint that FSDP wrote in pieces.

Example:
    reluformers merge runs/reluformer/checkpoint-5000 --output runs/merged
"""

import argparse

from reluformers.saved_models import load_config
from reluformers.tasks import task_of
from reluformers.training.sharding import merge_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("checkpoint", help="folder checkpoint-<step> of a run under FSDP")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an output folder that a command wrote")


def run(options: argparse.Namespace) -> None:
    """Merge."""
    auto_class = task_of(load_config(options.checkpoint)).auto_class
    merge_checkpoint(options.checkpoint, options.output, auto_class, overwrite=options.overwrite)
    print(f"merged {options.checkpoint} into {options.output}")
