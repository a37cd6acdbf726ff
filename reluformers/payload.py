"""The code that goes beside config.json, so that a saved folder opens where reluformers is not installed.

On the Hub all code files lie flat and transformers follows only `from .name import`. Saving therefore copies the
closure of relative imports of a model's files and turns `from ..configuration.x import` into `from .x import`.
"""

import re
from copy import deepcopy
from pathlib import Path

from transformers import PreTrainedConfig

from . import configuration, modeling
from .files import atomic_write

_FOLDERS = tuple(Path(package.__path__[0]) for package in (configuration, modeling))
_RELATIVE_IMPORT = re.compile(r"^(\s*from )\.+(?:configuration\.|modeling\.)?(\w+)( import )", re.MULTILINE)


def find_payload_file(module: str) -> Path:
    """The file of a module that may go to the Hub, by the last part of its name.

    Raises:
        FileNotFoundError: neither `configuration/` nor `modeling/` has it.
    """
    for folder in _FOLDERS:
        if (folder / f"{module}.py").is_file():
            return folder / f"{module}.py"
    raise FileNotFoundError(f"no file {module}.py in configuration/ or modeling/")


def payload_names() -> set[str]:
    """Names of all files that may lie beside a config.json, whatever its model."""
    return {path.name for folder in _FOLDERS for path in folder.glob("*.py") if path.name != "__init__.py"}


def payload_files(modules: list[str]) -> dict[str, str]:
    """Name and flattened text of the files that the modules need, themselves included."""
    files: dict[str, str] = {}
    pending = list(modules)
    while pending:
        path = find_payload_file(pending.pop())
        if path.name not in files:
            files[path.name] = _RELATIVE_IMPORT.sub(r"\1.\2\3", path.read_text(encoding="utf-8"))
            pending += [match[2] for match in _RELATIVE_IMPORT.finditer(files[path.name])]
    return files


def write_payload(
    config: PreTrainedConfig, folder: str | Path, auto_map: dict[str, str], pipelines: dict[str, dict] | None = None
) -> None:
    """Write the code that `auto_map` names into a folder, and what is to be found there into the configuration.

    Args:
        config: what is being saved; gets `auto_map` and `custom_pipelines`.
        folder: where config.json goes; made if there is none.
        auto_map: auto class → "file.Class".
        pipelines: task → "impl", "pt" and "type", as transformers reads them; None = no pipeline of its own.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    modules = sorted({target.partition(".")[0] for target in auto_map.values()})
    for name, text in payload_files(modules).items():
        with atomic_write(folder / name) as path:
            path.write_text(text, encoding="utf-8")
    config.auto_map = dict(auto_map)
    if pipelines:
        config.custom_pipelines = deepcopy(pipelines)
