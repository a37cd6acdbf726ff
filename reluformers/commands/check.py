"""Check that a saved model still computes the same, here and without this library.

`check` opens the folder in a process that has only torch and transformers. There the model must give the same logits
as with this library, and `generate` the same tokens as the model's own steps. If the folder has check.json, which
`push` writes, the model must give the same answers to four inputs.

Example:
    reluformers check runs/reluformer
"""

import argparse
from pathlib import Path

import transformers
from huggingface_hub import HfApi

from reluformers.data.names import is_hub_id
from reluformers.publish.folder_check import check_folder
from reluformers.publish.release import CHECK_FILE, read_saved_model, refuse_foreign_code
from reluformers.training.checkpoints import check_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("model", metavar="FOLDER|ID", help="folder of a saved model, or a Hub id")
    parser.add_argument("--revision", help="branch, tag or commit of a Hub id")
    parser.add_argument("--write", action="store_true", help=f"store the answers in {CHECK_FILE} of the folder")
    parser.add_argument("--trust_code", action="store_true", help="run code that this library would not write")


def run(options: argparse.Namespace) -> None:
    """Check."""
    folder = Path(options.model)
    if is_hub_id(options.model):
        folder = Path(HfApi().snapshot_download(options.model, revision=options.revision))
    check_model(folder)
    refuse_foreign_code(read_saved_model(folder), options.trust_code, print, shown_as=options.model)
    check = check_folder(folder, renew=options.write, store=options.write)
    name = check.model_class.rpartition(".")[2]
    print(f"{options.model}: opens without reluformers as {name}; its logits differ by {check.difference:.1e}")
    print(f"{options.model}: computes the same in generate of transformers {transformers.__version__}")
    if check.is_stored:
        print(f"{options.model}: the {len(check.answers)} answers in {CHECK_FILE} are the same")
    elif options.write:
        print(f"{folder / CHECK_FILE}: {len(check.answers)} answers stored")
    else:
        print(f"{options.model}: no {CHECK_FILE} to compare answers with; --write makes one")
