"""The private names of transformers on which saved code leans: all of them are listed, and there."""

import ast
import re
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, Pipeline, PreTrainedConfig, PreTrainedModel

from builders.models import build_model, draw_pairs
from reluformers_kernels.search import SearchMixin

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("configuration", "modeling") for path in sorted((ROOT / folder).glob("*.py"))]
OWNERS = (PreTrainedModel, GenerationMixin, Pipeline, PreTrainedConfig)
# set where transformers prepares a search, or on a module or parameter: no class has them
INSTANCE_NAMES = {"_pad_token_tensor", "_eos_token_tensor", "_is_hf_initialized"}


SEARCH = ROOT / "reluformers_kernels" / "search.py"
SECTIONS = {"saved code": FILES, "the library's search": [SEARCH]}


def listed_names(who: str) -> set[str]:
    text = (ROOT / "docs" / "research" / "private-names.md").read_text(encoding="utf-8")
    section = text.partition(f"## Private names that {who} uses")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def names_in(tree: ast.Module) -> set[str]:
    """Private names that a file defines in a class or reads of an object."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            names |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            names |= {
                target.id for item in node.body for target in getattr(item, "targets", ()) if hasattr(target, "id")
            }
    return {name for name in names if re.match(r"_[^_]", name)}


@pytest.mark.parametrize("who", SECTIONS)
def test_the_list_has_every_private_name_and_no_other(who):
    found = set().union(*(names_in(ast.parse(path.read_text(encoding="utf-8"))) for path in SECTIONS[who]))
    # what nn.Module itself has is torch's
    theirs = {name for name in found if any(hasattr(owner, name) for owner in OWNERS)} | found & INSTANCE_NAMES
    assert theirs - set(dir(torch.nn.Module)) == listed_names(who)


@pytest.mark.parametrize("name", sorted(set().union(*map(listed_names, SECTIONS)) - INSTANCE_NAMES))
def test_a_listed_name_is_still_there(name):
    assert any(hasattr(owner, name) for owner in OWNERS)


def test_names_that_a_search_gets_are_still_there(monkeypatch):
    seen = []
    monkeypatch.setattr(
        SearchMixin, "_sample", lambda self, *args, generation_config, **_: seen.append(generation_config)
    )
    build_model("relu").generate(input_ids=draw_pairs()["input_ids"], max_new_tokens=2)
    (config,) = seen
    assert isinstance(config, GenerationConfig)
    assert config._pad_token_tensor is not None
    assert config._eos_token_tensor is not None


def test_a_replaced_head_is_not_drawn_anew():
    model = build_model("relu", embedding_norm="fix_norm", tying="none")
    model.resize_token_embeddings(44)
    head = model.lm_head.weight.clone()
    model.post_init()
    assert torch.equal(model.lm_head.weight, head)


@pytest.mark.parametrize("name", ["_sample", "_beam_search"])
@pytest.mark.parametrize("beams", [1, 3])
def test_without_our_search_the_tokens_are_the_same(name, beams, monkeypatch):
    model, batch = build_model("reluformer"), draw_pairs()
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    expected = model.generate(**inputs, max_new_tokens=8, num_beams=beams)
    monkeypatch.delattr(SearchMixin, name)
    assert torch.equal(model.generate(**inputs, max_new_tokens=8, num_beams=beams), expected)
