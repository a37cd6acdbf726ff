"""Anisotropy, learned scalars and costs against loops, the papers' numbers and real models."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from reluformers import seq2seq_config
from reluformers_research.analysis.parameters import anisotropy, attention_flops, parameter_statistics

TINY = {
    "vocab_size": 13, "d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 32,
}  # fmt: skip


def test_anisotropy_is_the_mean_cosine():
    values = torch.randn(9, 4)
    cosines = [
        torch.nn.functional.cosine_similarity(values[i], values[j], dim=0).item()
        for i in range(9)
        for j in range(9)
        if i != j
    ]
    assert anisotropy(values) == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)


def test_statistics_of_parameters():
    model = AutoModelForSeq2SeqLM.from_config(seq2seq_config("qknorm", **TINY))
    statistics = parameter_statistics(model)
    assert set(statistics) == {"ffn_anisotropy", "scale"}
    assert {site: len(layers) for site, layers in statistics["scale"].items()} == {
        "encoder": 1,
        "decoder": 2,
        "cross": 2,
    }
    with torch.no_grad():
        model.model.decoder.layers[1].cross_attn.scale.fill_(7.0)
    assert parameter_statistics(model)["scale"]["cross"][1] == {"overall": 7.0, "heads": []}
    values = model.model.encoder.layers[0].mlp.fc2.weight.T
    assert statistics["ffn_anisotropy"]["encoder"][0]["overall"] == pytest.approx(anisotropy(values))
    learned = {"activation": "relu", "learned_length_exponent": True, "learned_threshold": True, "threshold": 0.5}
    model = AutoModelForSeq2SeqLM.from_config(seq2seq_config("softmax", **TINY, cross_attention=learned))
    statistics = parameter_statistics(model)
    assert set(statistics) == {"ffn_anisotropy", "length_exponent", "threshold"}
    assert statistics["threshold"] == {"cross": [{"overall": 0.5, "heads": []}] * 2}


def test_flops_are_those_of_rela():
    # section 5.1: 239K < 592K at T = 100, 23.99M > 13.12M at T = 1000
    base = {"heads": 8, "width": 512}
    assert attention_flops("softmax", length=100, **base) == 239_200
    assert attention_flops("rela-g", length=100, **base) == 592_100
    assert attention_flops("softmax", length=1000, **base) == 23_992_000
    assert attention_flops("rela-g", length=1000, **base) == 13_121_000
    with pytest.raises(ValueError, match="kind is 'relu', but must be softmax or rela-g"):
        attention_flops("relu", length=1, **base)
