"""AttentionConfig: presets, reading, checks, round trips."""

import math

import pytest

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig


def test_defaults_are_softmax_attention():
    assert AttentionConfig() == AttentionConfig.parse("softmax")
    forms = {"score": "dot", "scale_form": "constant", "activation": "softmax", "threshold_form": "constant"}
    numbers = {"length_coefficient": 1.0, "output_norm_init": "ones", "output_norm_eps": 1e-8}
    others = AttentionConfig().to_dict().items() - {**forms, **numbers}.items()
    assert {value for _, value in others} == {None, False, "none"}  # 0.0 too, which equals False


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("softmax", {}),
        ("reluformer", {"activation": "relu", "length_coefficient": 1 / math.sqrt(2), "length_exponent": 0.5}),
        ("relu", {"activation": "relu"}),
        ("rela", {"activation": "relu", "output_norm": "rms_norm"}),
        ("rela-i", {"activation": "relu", "output_norm": "rms_norm", "output_norm_init": "uniform"}),
        ("rela-g", {"activation": "relu", "output_norm": "gated_rms_norm"}),
        ("qknorm", {"score": "cosine", "learned_scale": True}),
        ("relu-vit", {"activation": "relu", "length_exponent": 1.0}),
        ("sparsemax", {"activation": "sparsemax"}),
        ("entmax15", {"activation": "entmax15"}),
    ],
)
def test_presets_are_the_rows_of_the_papers(preset, expected):
    assert AttentionConfig.parse(preset).to_dict() == pytest.approx({**AttentionConfig().to_dict(), **expected})


@pytest.mark.parametrize("preset", ATTENTION_PRESETS)
def test_a_preset_has_its_name(preset):
    # whatever the length that belongs to the data
    assert AttentionConfig.parse({"preset": preset, "scale_length": 75}).preset_name == preset
    assert AttentionConfig.parse({"preset": preset, "output_norm_eps": 7}).preset_name is None


def test_parse_leaves_what_it_is_given_alone():
    given = {"preset": "rela-g", "threshold": 0.5}
    config = AttentionConfig.parse(given)
    assert given == {"preset": "rela-g", "threshold": 0.5}
    copy = AttentionConfig.parse(config)
    copy.threshold = 1.0
    assert config.threshold == 0.5
    assert "threshold" not in ATTENTION_PRESETS["rela-g"]


@pytest.mark.parametrize("value", ["relaformer", {"preset": "reluformer", "beta": 1.0}, None, 3, ["softmax"]])
def test_parse_refuses_what_it_does_not_know(value):
    with pytest.raises(ValueError, match=r"[aA]ttention"):
        AttentionConfig.parse(value)


def test_gamma_is_a_name_for_the_length_coefficient():
    """ReLUFormer eq. 6 divides by γ√(n/2), which is c·n^½ with c = γ/√2."""
    assert AttentionConfig.parse({"preset": "reluformer", "gamma": 1}) == AttentionConfig.parse("reluformer")
    assert AttentionConfig.parse({"preset": "reluformer", "gamma": 2}).length_coefficient == pytest.approx(
        math.sqrt(2)
    )
    for fields in ({"gamma": 0}, {"gamma": 1.0, "length_coefficient": 1.0}):
        with pytest.raises(ValueError, match="gamma"):
            AttentionConfig.parse(fields)
