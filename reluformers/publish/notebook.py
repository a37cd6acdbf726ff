"""The notebook of a release: the Hub's Colab button opens it, and its outputs were computed by the release itself."""

import json
import logging
from pathlib import Path

from huggingface_hub import ModelCard

from reluformers.files import write_json
from reluformers.tasks import TASKS

from .card import CARD_FILE
from .clean_process import answer_in_clean_process
from .release import NOTEBOOK

_SHOWN = 3
_INTRODUCTION = """# {name}

This needs `torch` and `transformers`, for images `pillow` too: the code of the model lies in its repository, and
`revision` pins it with the weights. The outputs below were computed by the files of this release before its upload."""

logger = logging.getLogger(__name__)


def write_notebook(folder: Path, repo_id: str, revision: str, task: str) -> None:
    """Write notebook.ipynb beside the files of a release: its examples, and what the release answers to them.

    The cells run in an isolated, offline process that has only the folder; in the notebook they name the repository.
    None is written where a cell fails, nor for images without an example.

    Args:
        folder: of the files, with README.md, whose examples are taken.
        repo_id: "ORG/NAME".
        revision: its tag.
        task: name of the task.
    """
    card = TASKS[task].card
    widget = ModelCard.load(folder / CARD_FILE, ignore_metadata_errors=True).data.get("widget") or []
    inputs = [example.get("text") or example["src"] for example in widget][:_SHOWN]
    inputs = inputs or ([] if card.INPUTS_ARE_FILES else [TASKS[task].example])
    if not inputs:
        return
    pinned = f'"{repo_id}", revision="{revision}"'
    file = f'"{repo_id}", name, revision="{revision}"'
    cells = [cell.format(model=pinned, inputs=repr(inputs), file=file) for cell in card.NOTEBOOK_CELLS]
    # the pictures lie in the folder, and nothing is downloaded
    local = [cell.replace(pinned, repr(str(folder))) for cell in cells]
    local = [cell.replace(f"hf_hub_download({file})", f"{str(folder)!r} + '/' + name") for cell in local]
    try:
        outputs = answer_in_clean_process("cells", folder, json.dumps(local).encode())["outputs"]
    except RuntimeError as error:
        logger.warning("no %s: %s", NOTEBOOK, str(error).strip().rpartition("\n")[2])
        return
    about = {"cell_type": "markdown", "id": "about", "metadata": {}}
    written = [{**about, "source": _INTRODUCTION.format(name=repo_id.rpartition("/")[2])}]
    for number, (cell, output) in enumerate(zip(cells, outputs, strict=True), start=1):
        shown = {"name": "stdout", "output_type": "stream", "text": output}
        code = {"cell_type": "code", "id": f"cell-{number}", "execution_count": number, "metadata": {}}
        written.append({**code, "outputs": [shown], "source": cell})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    write_json(folder / NOTEBOOK, {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
