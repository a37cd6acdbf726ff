"""Hold the code to its budget: print a table of lines by room, and fail where a room is over its number.

    python scripts/budget.py

The numbers are in pyproject.toml, [tool.budget]. A room is a folder; a file counts in the innermost room around it.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LONG_FUNCTION, MANY_PARAMETERS = 60, 8


def main() -> int:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["budget"]
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {name: (ROOT / name).read_text(encoding="utf-8") for name in listed.split() if (ROOT / name).is_file()}
    lines = {name: text.count("\n") for name, text in files.items() if not name.startswith("models/")}
    rooms = dict.fromkeys(budget["rooms"], 0)
    for name, number in lines.items():
        rooms[max((room for room in rooms if name.startswith(room)), key=len)] += number
    is_test = {name: name.startswith(("tests/", "research/tests/")) for name in lines}
    library = {name: text for name, text in files.items() if name.startswith(tuple(budget["library"]))}
    wholes = {
        "library": sum(lines[name] for name in library),
        "all without tests": sum(number for name, number in lines.items() if not is_test[name]),
        "tests": sum(number for name, number in lines.items() if is_test[name]),
        "raise in 1,000 lines of the library": round(_raises(library) / sum(map(lines.get, library)) * 1000, 1),
        "modules of the library that import errors": sum("errors import " in text for text in _ours(library)),
        **_functions(library),
    }
    over = 0
    for kind, found in (("rooms", rooms), ("wholes", wholes)):
        for name, number in found.items():
            is_over = number > budget[kind][name]
            over += is_over
            print(f"{number:>8,} of {budget[kind][name]:>6,}  {name or 'elsewhere'}{'   OVER' if is_over else ''}")
    return int(over > 0)


def _raises(library: dict[str, str]) -> int:
    return sum(len(re.findall(r"^\s*raise\b", text, re.MULTILINE)) for text in library.values())


def _ours(library: dict[str, str]) -> list[str]:
    return [text.replace("huggingface_hub.errors", "") for text in library.values()]


def _functions(library: dict[str, str]) -> dict[str, int]:
    """Number of functions that are long or take much; kernels of Triton take what their launcher gives."""
    long = many = 0
    for name, text in library.items():
        if Path(name).name.startswith("triton_"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                long += node.end_lineno - node.lineno >= LONG_FUNCTION
                many += len([a for a in arguments if a.arg not in ("self", "cls")]) > MANY_PARAMETERS
    return {f"functions over {LONG_FUNCTION} lines": long, f"functions over {MANY_PARAMETERS} parameters": many}


if __name__ == "__main__":
    sys.exit(main())
