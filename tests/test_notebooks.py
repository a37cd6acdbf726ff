"""The notebooks of the documentation run, and show what they have computed."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from builders.saved_models import save_translator

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# a picture of each layer is the most that a notebook shows
BYTES = 150_000


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_there_and_of_the_code_alone(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    text = path.read_text(encoding="utf-8")
    assert len(text) < BYTES
    assert not [place for place in ("/home/", "/root/", "/tmp/", "site-packages") if place in text]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    """On an untrained model in place of the repository's, and with few updates."""
    save_translator(tmp_path / "models" / "tatoeba-en-de")
    folder = tmp_path / "docs" / "notebooks"
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "scripts" / "recipes", tmp_path / "scripts" / "recipes")
    shutil.copy(ROOT / "docs" / "how-to.md", tmp_path / "docs")
    text = path.read_text(encoding="utf-8")
    fewer = {"max_steps=400": "max_steps=100", "(original, 500": "(original, 10", "(model, 100": "(model, 10"}
    for updates, few in fewer.items():
        text = text.replace(updates, few)
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    nbformat.write(notebook, folder / path.name)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "notebooks.py"), str(folder / path.name)], check=True)
    assert all(cell["outputs"] for cell in code_cells(folder / path.name))
