"""Execute the notebooks of the documentation, and keep what they print.

Example:
    python scripts/notebooks.py docs/notebooks/*.ipynb
"""

import argparse
import os
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Execute notebooks in place.")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    # a hint to install a widget is no part of an answer
    os.environ["PYTHONWARNINGS"] = "ignore"
    for path in parser.parse_args().notebooks:
        execute(path)


if __name__ == "__main__":
    main()
