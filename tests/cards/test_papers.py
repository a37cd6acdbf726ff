"""The papers and formulas that cards name."""

import re

import pytest

from reluformers import seq2seq_config
from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from reluformers.papers import attention_source, formula


@pytest.mark.parametrize("preset", ATTENTION_PRESETS)
def test_every_preset_has_a_paper_and_a_formula(preset):
    attention = AttentionConfig.parse(preset)
    source = attention_source(attention, seq2seq_config("softmax"))
    assert re.fullmatch(r"\d{4}\.\d{5}", source.paper.arxiv)
    assert source.paper.bibtex.startswith(f"@misc{{{source.paper.key},")
    assert source.paper.bibtex.endswith("\n}")
    assert "variant" not in source.place
    assert formula(attention, 64)[1].startswith(f"weight  s_ij = {attention.activation}(z_ij)")
