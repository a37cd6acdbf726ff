"""Bounds of the scores of pages of keys."""

import runpy
from pathlib import Path

import torch

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/skippable_pages.py"))


def test_no_score_of_a_page_is_above_its_bounds():
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 8, dtype=torch.double), torch.randn(2, 35, 8, dtype=torch.double)
    bounds = SCRIPT["page_bounds"](query, key, 16)
    scores = query @ key[:, :32].mT
    highest = scores.unflatten(-1, (2, 16)).amax(-1)
    torch.testing.assert_close(bounds["empty"], highest)
    assert (bounds["channels"] >= highest - 1e-12).all()
    assert (bounds["radius"] >= highest - 1e-12).all()


def test_bounds_of_a_page_of_one_key_are_its_score():
    query, key = torch.randn(1, 3, 4, dtype=torch.double), torch.randn(1, 6, 4, dtype=torch.double)
    bounds = SCRIPT["page_bounds"](query, key, 1)
    for name in ("channels", "radius"):
        torch.testing.assert_close(bounds[name], query @ key.mT)
