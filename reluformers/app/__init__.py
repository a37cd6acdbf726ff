"""The demo Space: its files lie beside this one and need no installed library; `space_files` fills them in."""

import json
from pathlib import Path

from reluformers.modeling import image_input

FOLDER = Path(__file__).parent
# README.md of a Space has this tag if the library made the Space and may write it anew.
MARK = "reluformers-demo"
FILES = (
    "app.py",
    "pages.py",
    "models.py",
    "view.py",
    "view.html",
    "view.css",
    "view.js",
    "pad.js",
    "README.md",
    "requirements.txt",
)


def space_files(repo_id: str, revision: str, *, licence: str = "apache-2.0") -> dict[str, str]:
    """The files of a model's Space, name → text; it shows a revision, whatever is pushed to the model later."""
    sources = [*(FOLDER / name for name in FILES), Path(image_input.__file__)]
    texts = {path.name: path.read_text(encoding="utf-8") for path in sources}
    for constant, value in (("MODEL_ID", repo_id), ("MODEL_REVISION", revision)):
        # json.dumps quotes a string as Python reads it.
        texts["app.py"] = texts["app.py"].replace(f'\n{constant} = ""\n', f"\n{constant} = {json.dumps(value)}\n")
    values = {"repo_id": repo_id, "name": repo_id.rpartition("/")[2], "revision": revision, "licence": licence}
    for name, value in values.items():
        texts["README.md"] = texts["README.md"].replace(f"{{{{ {name} }}}}", value)
    return texts
