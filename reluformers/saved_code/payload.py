"""The code that goes beside config.json, so that a saved folder opens where reluformers is not installed.

On the Hub all code files lie flat, transformers follows only `from .name import`, and each file costs it requests.
Saving therefore puts the modules of `configuration/` and `modeling/` together in a few files to be read from top to
bottom: a file has the name of its last module, its *head*, and before it whatever the head imports and no earlier file
has.
"""

import ast
import re
from functools import cache
from pathlib import Path

from transformers import PreTrainedConfig

from reluformers import configuration, modeling
from reluformers.files import write_text

# Each module by its name, with its file.
_PATHS = {
    path.stem: path
    for package in (configuration, modeling)
    for path in Path(package.__path__[0]).glob("*.py")
    if path.stem != "__init__"
}
_RELATIVE_IMPORT = re.compile(r"^(\s*from )\.+(?:configuration\.|modeling\.)?(\w+)( import )", re.MULTILINE)
# The attention has a file of its own in every folder, as strangers want to read it. In the file of a model it would
# also keep transformers from changing the backend.
_ATTENTION = "attention"
# An Inference Endpoint looks for a file of this name.
HANDLER_FILE = "handler.py"
_LINE_LENGTH = 119


def payload_names() -> set[str]:
    """Names of all code files that may lie beside a config.json, whatever its model."""
    return {HANDLER_FILE, *(f"{name}.py" for name in _PATHS)}


def payload_files(modules: list[str]) -> dict[str, str]:
    """Name and text of the files that hold the modules, whatever these import included.

    Args:
        modules: those that config.json names, configurations before models; each is the head of a file. So is what
            they import only later, or for type checking.
    """
    parts: dict[str, list[_Module]] = {}  # head → its file's modules, in the order of their imports
    files: dict[str, str] = {}  # module → head of its file
    pending = [*modules]
    while pending:
        head = pending.pop(0)
        if head in files:
            continue
        imported = _imported_first(head)
        if _ATTENTION in imported and _ATTENTION not in files and head != _ATTENTION:
            pending = [_ATTENTION, head, *pending]
            continue
        new = [module for name, module in imported.items() if name not in files]
        files |= {module.name: head for module in new}
        pending += [name for module in new for name in module.late_imports]
        parts[head] = new
    return {f"{head}.py": _put_together(sections, files) for head, sections in parts.items()}


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
        write_text(folder / name, text)
    config.auto_map = dict(auto_map)
    if pipelines:
        config.custom_pipelines = pipelines


class _Module:
    """A module's text, and its imports at the top level apart from it."""

    def __init__(self, name: str):
        self.name = name
        path = _PATHS[name]
        self.origin = f"{path.parent.name}/{path.name}"
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = text.splitlines()
        documentation = tree.body[0]
        self.licence = lines[: documentation.lineno - 1]
        self.docstring = ast.get_docstring(tree)
        self.imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in (documentation, *self.imports):
            lines[node.lineno - 1 : node.end_lineno] = [None] * (node.end_lineno - node.lineno + 1)
        self.body = "\n".join(line for line in lines[len(self.licence) :] if line is not None).strip("\n")
        self.late_imports = [match[2] for match in _RELATIVE_IMPORT.finditer(self.body)]

    @property
    def early_imports(self) -> list[str]:
        """Modules of ours that are imported together with this one."""
        return [node.module.rpartition(".")[2] for node in self.imports if getattr(node, "level", 0)]


@cache
def _read_module(name: str) -> _Module:
    return _Module(name)


def _imported_first(head: str, imported: dict[str, _Module] | None = None) -> dict[str, _Module]:
    """A module after all that it imports at once, by name."""
    imported = {} if imported is None else imported
    module = _read_module(head)
    for name in module.early_imports:
        if name not in imported:
            _imported_first(name, imported)
    imported[head] = module
    return imported


def _put_together(modules: list[_Module], files: dict[str, str]) -> str:
    """One file of several modules: licence, imports, and a section for each that is headed by where it comes from."""
    head = modules[-1]
    documentation = f'"""{head.docstring}\n"""' if "\n" in head.docstring else f'"""{head.docstring}"""'
    text = "\n".join([*head.licence, documentation])
    if imports := _merge_imports(modules, files):
        text += f"\n\n{imports}"
    for number, module in enumerate(modules):
        title = ["-" * (_LINE_LENGTH - 2), module.origin]
        title += module.docstring.splitlines() if module is not head else []
        body = _RELATIVE_IMPORT.sub(lambda match: f"{match[1]}.{files[match[2]]}{match[3]}", module.body)
        text += "\n" * (3 if number else 2) + "\n".join(f"# {line}".rstrip() for line in title) + f"\n\n\n{body}"
    return text + "\n"


def _merge_imports(modules: list[_Module], files: dict[str, str]) -> str:
    """Merge the imports of all modules, but those from each other; those from files beside come last."""
    plain = set()
    named = {}
    for module in modules:
        for node in module.imports:
            names = {ast.unparse(alias) for alias in node.names}
            if isinstance(node, ast.Import):
                plain |= names
                continue
            source = node.module
            if node.level:
                source = f".{files[node.module.rpartition('.')[2]]}"
                if source == f".{files[modules[-1].name]}":
                    continue
            named.setdefault(source, set()).update(names)
    lines = [f"import {name}" for name in sorted(plain)]
    for source in sorted(named, key=lambda source: (source.startswith("."), source)):
        names = sorted(named[source])
        line = f"from {source} import {', '.join(names)}"
        if len(line) > _LINE_LENGTH:
            line = f"from {source} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
        lines.append(line)
    return "\n".join(lines)
