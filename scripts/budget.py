"""Hold the code to its budget: print tokens and lines beside their ceilings, and fail where one is over.

    python scripts/budget.py

The ceilings are in pyproject.toml, [tool.budget]. A room is a folder; a file counts in the innermost room around it.
Tokens are those of Python's `tokenize` without comments, docstrings and layout, so that folding lines saves nothing.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LONG_FUNCTION = 60  # lines
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
LANGUAGES = {"lines of C": (".c", ".h"), "lines of JavaScript": (".js",)}


def main() -> int:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["budget"]
    command = ["git", "ls-files", "*.py", "*.c", "*.h", "*.js", ":!models"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {name: (ROOT / name).read_text(encoding="utf-8") for name in listed.split() if (ROOT / name).is_file()}
    rooms = dict.fromkeys(budget["rooms"], 0)
    tokens = Counter()
    lines = Counter()
    wholes = dict.fromkeys(budget["wholes"], 0)
    for name, text in files.items():
        for language, endings in LANGUAGES.items():
            if name.endswith(endings):
                wholes[language] += text.count("\n")
        if not name.endswith(".py"):
            continue
        count, code_lines = measure(text)
        rooms[max((room for room in rooms if name.startswith(room)), key=len)] += count
        group = group_of(name, budget["library"])
        tokens[group] += count
        lines[group] += code_lines
        if group == "library":
            wholes["functions over 60 lines"] += long_functions(text)
    for group in ("library", "tests"):
        wholes[f"{group}, tokens"] = tokens[group]
        wholes[f"{group}, tokens in a line"] = round(tokens[group] / lines[group], 1)
    over = 0
    for kind, counts in (("rooms", rooms), ("wholes", wholes)):
        for name, number in counts.items():
            is_over = number > budget[kind][name]
            over += is_over
            print(f"{number:>9,} of {budget[kind][name]:>9,}  {name or 'elsewhere'}{'   OVER' if is_over else ''}")
    return int(over > 0)


def group_of(name: str, library: list[str]) -> str:
    """Name what a file belongs to: the library, the tests or the rest."""
    if name.startswith(("tests/", "research/tests/")):
        return "tests"
    return "library" if name.startswith(tuple(library)) else "elsewhere"


def measure(text: str) -> tuple[int, int]:
    """Count tokens of code, and the lines that they are in."""
    documented = set()
    for node in ast.walk(ast.parse(text)):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            documented.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    count = 0
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in documented:
            count += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return count, len(lines)


def long_functions(text: str) -> int:
    """Count functions of `LONG_FUNCTION` lines and more."""
    functions = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return sum(node.end_lineno - node.lineno >= LONG_FUNCTION for node in functions)


if __name__ == "__main__":
    sys.exit(main())
