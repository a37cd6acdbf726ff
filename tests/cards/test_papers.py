"""The papers and formulas that cards name."""

import re
from pathlib import Path

import pytest
import yaml

import reluformers
from reluformers import seq2seq_config
from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from reluformers.papers import PAPERS, attention_source, formula

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("preset", ATTENTION_PRESETS)
def test_every_preset_has_a_paper_and_a_formula(preset):
    attention = AttentionConfig.parse(preset)
    source = attention_source(attention, seq2seq_config("softmax"))
    assert re.fullmatch(r"\d{4}\.\d{5}", source.paper.arxiv)
    assert source.paper.bibtex.startswith(f"@misc{{{source.paper.key},")
    assert source.paper.bibtex.endswith("\n}")
    assert "variant" not in source.place
    assert formula(attention, 64)[1].startswith(f"weight  s_ij = {attention.activation}(z_ij)")


def test_the_citation_file_names_the_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    titles = {reference["title"] for reference in citation["references"]}
    ours = ("shen2023study", "zhang2021sparse", "henry2020query", "wortsman2023replacing")
    assert {PAPERS[key].title for key in ours} <= titles
    assert len(titles) == 5
    assert citation["version"] == reluformers.__version__
