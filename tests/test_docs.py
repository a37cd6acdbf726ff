"""What the documents show of the code is in the code."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from reluformers.commands import build_parser, parse
from reluformers_cli import all_commands
from reluformers_research.tables import Table

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "adding-a-variant.md"
SHOWN_FILES = [
    "modeling/attention_functions.py",
    "configuration/configuration_attention.py",
    "tests/reference.py",
    "scripts/recipes/multi30k_en_de_relu2.yaml",
    "reluformers/papers.py",
]


def test_guide_shows_code_as_it_is():
    snippets = re.findall(r"```(?:python|yaml)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 6
    sources = [(ROOT / name).read_text(encoding="utf-8") for name in SHOWN_FILES]
    for snippet in snippets:
        assert any(snippet in source for source in sources), snippet


def python_in(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", ["docs/models.md", "docs/training.md"])
def test_code_of_a_page_runs(name, tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "reluformer"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "models" / "tatoeba-en-de" / "evaluation.json", folder)
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in python_in(ROOT / name):
        exec(code, names)
    assert names


def test_a_page_shows_what_its_code_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = (ROOT / "docs" / "any-model.md").read_text(encoding="utf-8"), {}
    pieces = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(pieces) == 3
    for code, said in pieces:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == said


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_code_is_trusted_of_folders_and_of_repositories_with_an_owner():
    """A name without `./` and without a folder of that name is asked for on the Hub, whoever has it there."""
    opened = re.compile(r"""(?:from_pretrained\(|model=|MODEL \?= )["']?([^"',)\s]+)""")
    names = {}
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "Makefile", *ROOT.glob("scripts/*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "trust_remote_code=True" in line or "MODEL ?=" in line:
                names |= dict.fromkeys(opened.findall(line), path.name)
    assert len(names) >= 3
    for name, place in names.items():
        assert name.startswith("./") or name == "ORG/NAME", f"{place}: {name}"


def commands_in(path: Path) -> list[list[str]]:
    """Lines `reluformers COMMAND …` of the blocks of a page, of a docstring or of a recipe's comment, as words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, re.DOTALL))
    elif path.suffix == ".yaml":
        text = "\n".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#   "))
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    found = [
        line.split(" | ")[0]
        for line in map(str.strip, lines)
        if re.match(rf"reluformers ({'|'.join(all_commands())})\b", line)
    ]
    words = [shlex.split(line, comments=True)[1:] for line in found]
    return [of_line for of_line in words if "…" not in of_line]  # that one is left to the reader


PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("scripts/recipes/*.yaml"),
    *ROOT.glob("reluformers/commands/*.py"),
    *ROOT.glob("research/recipes/*/*.yaml"),
    *ROOT.glob("research/reluformers_research/commands/*.py"),
]


def test_commands_are_understood(capsys):
    commands = [(path, words) for path in PAGES for words in commands_in(path)]
    assert len(commands) > 60
    for path, words in commands:
        if "--help" in words:
            continue
        try:
            options = parse(build_parser(words[0])[0], words[1:])
        except SystemExit:
            pytest.fail(f"{path.name}: {' '.join(words)}: {capsys.readouterr().err}")
        if words[0] == "table" and options.table:
            table = Table.load(options.table)
            assert table.rows_of(options.setting, options.rows), path
            assert all(str(seed).isdecimal() for seed in options.seeds), (path, options.seeds)
            assert all("." in change.partition("=")[0] for change in options.changes), (path, options.changes)
