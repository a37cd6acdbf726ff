"""Open a model on a page that shows its attention. This runs the code in the model's folder.

If all models are folders, their code gets no token of the environment or of `hf auth login`.

Example:
    reluformers app ./runs/reluformer ./runs/softmax
"""

import argparse
import sys
from pathlib import Path

import reluformers.app
from reluformers.app.app import add_arguments, open_page, read_arguments
from reluformers.saved_models import check_is_one_model
from reluformers.training.checkpoints import check_model

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace) -> None:
    """Open the page as a Space does: its files lie flat and import each other by their names."""
    arguments = read_arguments(options)
    for folder in filter(None, (arguments.get("model"), arguments.get("compare"))):
        check_is_one_model(folder)
        check_model(folder)
    sys.path.insert(0, str(Path(reluformers.app.__file__).parent))
    open_page(**arguments)
