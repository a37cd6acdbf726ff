"""Execute the notebooks of the documentation, and keep what they print.

Example:
    python scripts/notebooks.py docs/notebooks/*.ipynb
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> None:
    """Run a notebook from its folder, as Jupyter would, and write it back with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    # no dates and no split lines: what comes out differs where the answers differ
    NotebookClient(notebook, resources=resources, record_timing=False, coalesce_streams=True).execute()
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore"  # a hint to install a widget is no part of an answer
    for name in sys.argv[1:]:
        execute(Path(name))
