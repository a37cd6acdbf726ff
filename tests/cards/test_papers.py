"""The papers and formulas that cards name."""

import re
from pathlib import Path

import pytest
import yaml

import reluformers
from reluformers import seq2seq_config, vision_config
from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from reluformers.families import FAMILIES
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


def test_formulas_say_what_is_trained():
    attention = AttentionConfig(
        score="cosine",
        learned_scale=True,
        scale_length=31,
        activation="relu2",
        learned_threshold=True,
        learned_length_exponent=True,
        length_coefficient=0.5,
        output_gate="silu",
    )
    assert formula(attention, 64) == [
        "score   z_ij = a · cos(q_i, k_j),  a learned, 9.861 at the start",
        "weight  s_ij = relu2(z_ij − θ) / (0.5 · n_i^α),  n_i the number of keys that i sees",
        "output  o_i  = (Σ_j s_ij v_j) ⊙ silu(W x_i)",
    ]


def test_formulas_say_what_hangs_on_the_length():
    attention = AttentionConfig.parse(
        {"preset": "relu", "scale_form": "log_length", "threshold": 0.5, "threshold_form": "sqrt_log_length"}
    )
    gated = {"output_norm": "gated_layer_norm", "output_gate": "sigmoid"}
    assert formula(attention, 64)[:2] == [
        "score   z_ij = log n_i · q_i·k_j / √64",
        "weight  s_ij = relu(z_ij − 0.5 · √(2 log n_i / 64)),  n_i the number of keys that i sees",
    ]
    assert formula(AttentionConfig(**gated), 64)[2] == (
        "output  o_i  = (σ(w ⊙ u) ⊙ g ⊙ LayerNorm(u)) ⊙ σ(W x_i),  u = Σ_j s_ij v_j"
    )
    assert formula(AttentionConfig(**gated, exclusive_output=True), 64)[2].endswith(
        "⊙ σ(W x_i),  u = t − (t·v̂_i) v̂_i,  t = Σ_j s_ij v_j and v̂_i = v_i/‖v_i‖ of each head"
    )


def test_relu_without_a_divisor_is_another_paper_for_images():
    relu = AttentionConfig.parse("relu")
    for preset in ("relu-vit", "softmax"):
        assert attention_source(relu, vision_config(preset)).paper.key.startswith("wortsman")
    assert attention_source(relu, seq2seq_config("relu")).paper.key.startswith("shen")


def test_an_attention_of_no_name_varies_that_of_its_family():
    own = AttentionConfig(activation="relu2", length_exponent=0.25)
    for config_class in FAMILIES:
        source = attention_source(own, config_class())
        assert source.place.startswith("a variant of ")
        assert source.paper == attention_source(AttentionConfig.parse(config_class.attention), config_class()).paper


def test_the_citation_file_names_the_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    titles = {reference["title"] for reference in citation["references"]}
    ours = ("shen2023study", "zhang2021sparse", "henry2020query", "wortsman2023replacing")
    assert {PAPERS[key].title for key in ours} <= titles
    assert len(titles) == 5
    assert citation["version"] == reluformers.__version__
