"""AttentionConfig: presets, reading, checks, round trips."""

import dataclasses
import json
import math

import pytest

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig

FIELDS = tuple(field.name for field in dataclasses.fields(AttentionConfig))


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
def test_preset_round_trips(preset):
    config = AttentionConfig.parse(preset)
    read = AttentionConfig.parse(json.loads(json.dumps(config.to_dict())))
    assert read == config
    assert read.preset_name == preset
    # whatever the length that belongs to the data
    assert AttentionConfig.parse({"preset": preset, "scale_length": 75}).preset_name == preset
    assert AttentionConfig.parse({"preset": preset, "output_norm_eps": 7}).preset_name is None
    assert set(config.to_dict()) == set(FIELDS)


def test_parse_leaves_what_it_is_given_alone():
    given = {"preset": "rela-g", "threshold": 0.5}
    presets = json.dumps(ATTENTION_PRESETS)
    config = AttentionConfig.parse(given)
    assert given == {"preset": "rela-g", "threshold": 0.5}
    copy = AttentionConfig.parse(config)
    copy.threshold = 1.0
    assert config.threshold == 0.5
    assert json.dumps(ATTENTION_PRESETS) == presets


def test_parse_reads_the_class_of_another_checkpoint():
    class FromElsewhere:
        def to_dict(self):
            return AttentionConfig.parse("rela-g").to_dict()

    assert AttentionConfig.parse(FromElsewhere()) == AttentionConfig.parse("rela-g")


@pytest.mark.parametrize(
    ("length", "expected"), [(2, 1.0), (72, math.log2(72 * 71)), (75, math.log2(75 * 74)), (79, math.log2(79 * 78))]
)
def test_cosine_scale_starts_from_the_length(length, expected):
    # QKNorm eq. 3; the released lists print 12.320, 12.438 and 12.589 for 72, 75 and 79
    config = AttentionConfig.parse({"preset": "qknorm", "scale_length": length})
    assert config.initial_scale(64) == pytest.approx(expected, rel=1e-15)
    assert round(expected, 3) in (1.0, 12.320, 12.438, 12.589)


def test_dot_scale_starts_from_the_width_or_the_given_number():
    assert AttentionConfig().initial_scale(64) == 0.125
    assert AttentionConfig(scale=2.0).initial_scale(64) == 2.0
    assert AttentionConfig(score="cosine", scale=2.0).initial_scale(64) == 2.0


@pytest.mark.parametrize("value", ["relaformer", {"preset": "reluformer", "beta": 1.0}, None, 3, ["softmax"]], ids=str)
def test_parse_refuses_what_it_does_not_know(value):
    with pytest.raises(ValueError, match=r"[aA]ttention"):
        AttentionConfig.parse(value)


def test_gamma_is_a_name_for_the_length_coefficient():
    """ReLUFormer eq. 6 divides by γ√(n/2), which is c·n^½ with c = γ/√2."""
    assert AttentionConfig.parse({"preset": "reluformer", "gamma": 1}) == AttentionConfig.parse("reluformer")
    assert AttentionConfig.parse({"preset": "reluformer", "gamma": 2}).length_coefficient == pytest.approx(
        math.sqrt(2)
    )
    with pytest.raises(ValueError, match=r"gamma is 0, but must be a number in \(0, inf\)"):
        AttentionConfig.parse({"gamma": 0})
    with pytest.raises(ValueError, match="gamma and length_coefficient"):
        AttentionConfig.parse({"gamma": 1.0, "length_coefficient": 1.0})
