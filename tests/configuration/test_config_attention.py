"""AttentionConfig: presets, reading, checks, round trips."""

import dataclasses
import json
import math

import pytest

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig

FIELDS = tuple(field.name for field in dataclasses.fields(AttentionConfig))


def test_defaults_are_softmax_attention():
    assert AttentionConfig() == AttentionConfig.parse("softmax")
    assert AttentionConfig().to_dict() == {
        "score": "dot",
        "scale": None,
        "learned_scale": False,
        "scale_form": "constant",
        "scale_length": None,
        "query_key_norm": "none",
        "value_norm": "none",
        "activation": "softmax",
        "normalizer": "none",
        "length_coefficient": 1.0,
        "length_exponent": 0.0,
        "learned_length_exponent": False,
        "threshold": 0.0,
        "learned_threshold": False,
        "threshold_per_head": False,
        "threshold_form": "constant",
        "exclusive_output": False,
        "output_norm": "none",
        "output_norm_init": "ones",
        "output_norm_eps": 1e-8,
        "output_gate": "none",
    }


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
    assert set(config.to_dict()) == set(FIELDS)


def test_presets_differ():
    configs = [AttentionConfig.parse(preset) for preset in ATTENTION_PRESETS]
    assert all(a != b for i, a in enumerate(configs) for b in configs[:i])


def test_parse_reads_overrides_on_a_preset():
    config = AttentionConfig.parse({"preset": "reluformer", "length_exponent": 1, "threshold": 0.5})
    assert (config.activation, config.length_coefficient) == ("relu", math.sqrt(0.5))
    assert (config.length_exponent, config.threshold) == (1, 0.5)
    assert config.preset_name is None


def test_parse_reads_a_dict_without_preset_from_the_defaults():
    assert AttentionConfig.parse({"activation": "relu"}) == AttentionConfig.parse("relu")
    assert AttentionConfig.parse({}) == AttentionConfig()


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


def test_preset_name_ignores_the_length_that_belongs_to_the_data():
    assert AttentionConfig.parse({"preset": "qknorm", "scale_length": 75}).preset_name == "qknorm"
    assert AttentionConfig.parse({"preset": "qknorm", "learned_scale": False}).preset_name is None


@pytest.mark.parametrize(
    ("length", "expected"),
    [(2, 1.0), (72, math.log2(72 * 71)), (75, math.log2(75 * 74)), (79, math.log2(79 * 78))],
)
def test_cosine_scale_starts_from_the_length(length, expected):
    # QKNorm eq. 3; the released lists print 12.320, 12.438 and 12.589 for 72, 75 and 79
    config = AttentionConfig.parse({"preset": "qknorm", "scale_length": length})
    assert config.initial_scale(64) == pytest.approx(expected, rel=1e-15)
    assert round(expected, 3) in (1.0, 12.320, 12.438, 12.589)


def test_length_that_is_not_given_is_that_of_the_paper():
    assert AttentionConfig.parse("qknorm").initial_scale(64) == pytest.approx(12.320, abs=1e-3)


def test_dot_scale_starts_from_the_width_or_the_given_number():
    assert AttentionConfig().initial_scale(64) == 0.125
    assert AttentionConfig(scale=2.0).initial_scale(64) == 2.0
    assert AttentionConfig(score="cosine", scale=2.0).initial_scale(64) == 2.0


INVALID = {
    "score": ["euclid", None],
    "scale": [0, -1.0, math.nan, math.inf, "1", True],
    "learned_scale": ["yes", 1, None],
    "scale_length": [1, 72.0, True],
    "query_key_norm": ["l2", True],
    "value_norm": ["layer_norm", None],
    "activation": ["tanh", "ReLU", None],
    "length_coefficient": [0, -0.5, math.nan, math.inf, None],
    "length_exponent": [math.nan, math.inf, "0.5", None],
    "learned_length_exponent": [0, "true"],
    "threshold": [math.inf, math.nan, None, False],
    "learned_threshold": [0.5, None],
    "threshold_per_head": [1, None],
    "normalizer": ["l1", None, True],
    "exclusive_output": [1, None],
    "output_norm": ["scale_norm", None],
    "output_norm_init": ["zeros", None],
    "output_norm_eps": [0, -1e-8, math.nan, "1e-8"],
    "output_gate": ["relu", True, None],
    "scale_form": ["log", None],
    "threshold_form": ["log", None, 1],
}
CHOICES = {
    "score": ("dot", "cosine"),
    "query_key_norm": ("none", "layer_norm"),
    "value_norm": ("none", "l2"),
    "activation": (
        *("softmax", "softmax1", "softpick", "sparsemax", "entmax15", "relu", "relu2", "relu6"),
        *("leaky_relu", "gelu", "softplus", "sigmoid", "identity"),
    ),
    "output_norm": ("none", "rms_norm", "gated_rms_norm", "layer_norm", "gated_layer_norm"),
    "output_norm_init": ("ones", "uniform"),
    "output_gate": ("none", "linear", "silu", "sigmoid"),
    "scale_form": ("constant", "log_length"),
    "threshold_form": ("constant", "log_length", "sqrt_log_length"),
    "normalizer": ("none", "sum"),
}


def test_every_field_is_checked():
    assert set(INVALID) == set(FIELDS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_error_names_field_value_and_what_is_allowed(name, value):
    with pytest.raises(ValueError, match=r"must be") as caught:
        AttentionConfig(**{name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert all(repr(choice) in message for choice in CHOICES.get(name, ()))
    assert "\n" not in message


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_choice_is_accepted(name, value):
    others = {"activation": "relu"} | ({"threshold": 1.0} if name == "threshold_form" else {})
    assert getattr(AttentionConfig(**{**others, name: value}), name) == value


def test_unknown_preset_names_the_presets():
    with pytest.raises(ValueError, match="'relaformer'") as caught:
        AttentionConfig.parse("relaformer")
    assert all(repr(preset) in str(caught.value) for preset in ATTENTION_PRESETS)


def test_unknown_field_names_the_fields():
    with pytest.raises(ValueError, match="'beta'") as caught:
        AttentionConfig.parse({"preset": "reluformer", "beta": 1.0})
    assert all(field in str(caught.value) for field in FIELDS)


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


@pytest.mark.parametrize("value", [None, 3, ["softmax"]], ids=repr)
def test_parse_refuses_other_types(value):
    with pytest.raises(ValueError, match="must be") as caught:
        AttentionConfig.parse(value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"activation": "softmax"},
        {"activation": "gelu"},
        {"activation": "relu", "length_exponent": 1.0},
        {"activation": "relu", "length_coefficient": 2.0},
        {"activation": "relu", "learned_length_exponent": True},
    ],
)
def test_a_sum_is_taken_once_and_of_positive_weights(fields):
    with pytest.raises(ValueError, match="normalizer"):
        AttentionConfig(normalizer="sum", **fields)


def test_a_threshold_of_each_head_is_learned():
    with pytest.raises(ValueError, match="threshold_per_head"):
        AttentionConfig(activation="softmax1", threshold_per_head=True)
