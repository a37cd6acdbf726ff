"""What the documents show of the code is in the code."""

import re
from pathlib import Path

import pytest

from reluformers.tasks import load_recipe

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
    assert len(snippets) == 7
    sources = [(ROOT / name).read_text(encoding="utf-8") for name in SHOWN_FILES]
    for snippet in snippets:
        assert any(snippet in source for source in sources), snippet


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_code_is_trusted_of_folders_and_of_repositories_with_an_owner():
    """A name without `./` and without a folder of that name is asked for on the Hub, whoever has it there."""
    opened = re.compile(r"""(?:from_pretrained\(|model=|MODEL \?= )["']?([^"',)\s]+)""")
    names = {}
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Makefile", *ROOT.glob("scripts/*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "trust_remote_code=True" in line or "MODEL ?=" in line:
                names |= dict.fromkeys(opened.findall(line), path.name)
    assert len(names) >= 3
    for name, place in names.items():
        assert name.startswith("./") or name == "ORG/NAME", f"{place}: {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_valid(path):
    recipe = load_recipe(path)
    assert recipe.model_config().attention_for("encoder")
