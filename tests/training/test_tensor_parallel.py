"""Tensor parallelism: loss, gradients, tokens and saved weights of a model that several processes share."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

from builders.commands import launch
from builders.models import build_config, build_model
from builders.tensor_parallel import CASES

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", ["seq2seq", "vision"])
@pytest.mark.parametrize("preset", ["reluformer", "rela-g", "qknorm"])
def test_rules_name_modules(kind, preset):
    names = [name for name, _ in build_model(preset, kind).base_model.named_modules()]
    config = build_config(kind, preset)
    for rule in (*config.base_model_tp_plan, *config.base_model_fsdp_plan):
        assert any(fnmatch(name, rule) for name in names), rule


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("kind", ["seq2seq", "vision", "llama"])
def test_every_kind_of_model_is_shared(processes, kind, tmp_path, monkeypatch):
    own = ("seq2seq", "vision")
    kinds = {name: name.split("-")[0] if name.startswith(own) else "llama" for name in CASES}
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    cases = (name for name in CASES if kinds[name] == kind)
    launch(str(TESTS / "builders" / "tensor_parallel.py"), processes, tmp_path, *cases)
