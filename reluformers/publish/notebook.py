"""The notebook of a release: the Hub's Colab button opens it, and its outputs were computed by the release itself."""

import json
import logging
from pathlib import Path

from huggingface_hub import ModelCard

from reluformers.files import write_json
from reluformers.tasks import TASKS

from .card import CARD_FILE
from .clean_process import answer_in_clean_process

NOTEBOOK = "notebook.ipynb"
_SHOWN = 3

logger = logging.getLogger(__name__)

_INTRODUCTION = """# {name}

This needs `torch` and `transformers`, for images `pillow` too: the code of the model lies in its repository, and
`revision` pins it with the weights. The outputs below were computed by the files of this release before its upload.
"""


def write_notebook(folder: Path, repo_id: str, revision: str, task: str) -> bool:
    """Write notebook.ipynb beside the files of a release: its examples, and what the release answers to them.

    The cells run in an isolated, offline process that has only the folder; in the notebook they name the repository.

    Args:
        folder: of the files, with README.md, whose examples are taken.
        repo_id: "ORG/NAME".
        revision: its tag.
        task: name of the task.

    Returns:
        Whether it was written: not where a cell fails, nor for images without an example.
    """
    card = TASKS[task].card
    inputs = _inputs(folder) or ([] if card.INPUTS_ARE_FILES else [TASKS[task].example])
    if not inputs:
        return False
    pinned = f'"{repo_id}", revision="{revision}"'
    shown = {"model": pinned, "inputs": repr(inputs), "file": f'"{repo_id}", name, revision="{revision}"'}
    cells = [cell.format(**shown) for cell in card.NOTEBOOK_CELLS]
    here = {"model": repr(str(folder)), "inputs": repr(inputs), "file": "name"}
    # the pictures lie in the folder, and nothing is downloaded
    picture = f"{str(folder)!r} + '/' + name"
    local = [cell.format(**here).replace("hf_hub_download(name)", picture) for cell in card.NOTEBOOK_CELLS]
    try:
        outputs = answer_in_clean_process("cells", folder, json.dumps(local).encode())["outputs"]
    except (RuntimeError, ValueError) as error:
        logger.warning("no %s: %s", NOTEBOOK, str(error).strip().rpartition("\n")[2])
        return False
    introduction = _INTRODUCTION.format(name=repo_id.rpartition("/")[2])
    notebook = {
        "cells": [
            {"cell_type": "markdown", "id": "about", "metadata": {}, "source": introduction.rstrip()},
            *(
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "execution_count": number,
                    "metadata": {},
                    "outputs": [{"name": "stdout", "output_type": "stream", "text": output}],
                    "source": cell,
                }
                for number, (cell, output) in enumerate(zip(cells, outputs, strict=True), start=1)
            ),
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    write_json(folder / NOTEBOOK, notebook)
    return True


def _inputs(folder: Path) -> list[str]:
    """Texts, or pictures of the folder, that the widget of the card shows."""
    widget = ModelCard.load(folder / CARD_FILE, ignore_metadata_errors=True).data.get("widget") or []
    found = [example.get("text") or example.get("src") for example in widget]
    return [text for text in found if text and "://" not in text][:_SHOWN]
