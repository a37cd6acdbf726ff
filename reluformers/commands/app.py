"""Open a model on a page that shows its attention. The code in the model's folder is executed.

Example:
    reluformers app ./runs/reluformer
"""

import argparse
import runpy
import sys
from pathlib import Path

import reluformers.app


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, which are those of the app itself."""
    parser.add_argument("model", nargs="?", help="folder or Hub id; else the environment variable MODEL_ID")
    parser.add_argument("--revision", help="branch, tag or commit; else the environment variable MODEL_REVISION")
    parser.add_argument("--port", type=int, help="port of the page; else the first free one from 7860 on")


def run(options: argparse.Namespace) -> None:
    """Run the app as a Space runs it: its files lie flat and import each other by their names."""
    folder = Path(reluformers.app.__file__).parent
    given = {f"--{name}": value for name in ("revision", "port") if (value := vars(options)[name]) is not None}
    sys.argv = [
        "reluformers app",
        *([options.model] if options.model else []),
        *(str(part) for pair in given.items() for part in pair),
    ]
    sys.path.insert(0, str(folder))
    runpy.run_path(str(folder / "app.py"), run_name="__main__")
