"""Configurations of the encoder–decoder families: defaults of the papers, checks, JSON."""

import json

import pytest
from transformers import AutoConfig, AutoModel

from builders.models import PRESETS, TINY, all_models, build_config
from reluformers import (
    AttentionConfig,
    QKNormConfig,
    QKNormViTConfig,
    ReLAConfig,
    ReLAViTConfig,
    ReLUFormerConfig,
    ReLUFormerViTConfig,
    ReLUViTConfig,
    Seq2SeqTransformerConfig,
    VisionTransformerConfig,
    seq2seq_config,
    vision_config,
)
from reluformers.configuration.configuration_base import TransformerConfig


@all_models
def test_json_round_trip_is_exact_and_complete(kind, preset, tmp_path):
    site = {"seq2seq": "cross", "vision": "pooling"}[kind]
    owner = {"seq2seq": Seq2SeqTransformerConfig, "vision": VisionTransformerConfig}[kind]
    config = build_config(kind, preset, **{f"{site}_attention": {"preset": "rela", "threshold": 0.1}})
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(config)
    loaded = type(config).from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.attention == loaded.attention_for("encoder") == config.attention_for("encoder")
    assert loaded.attention_for(site).threshold == 0.1
    own = (TransformerConfig.__annotations__, owner.__annotations__)
    missing = {name for names in own for name, hint in names.items() if "ClassVar" not in str(hint)} - set(saved)
    assert missing <= {"problem_type"}  # transformers' own, which it leaves out at its default
    assert set(saved["attention"]) == set(AttentionConfig().to_dict())


def test_some_fields_change_the_attention_that_is_there(tmp_path):
    config = Seq2SeqTransformerConfig(**TINY, attention="rela-g", encoder_attention={"output_norm": "rms_norm"})
    site = config.attention_for("encoder")
    assert (site.activation, site.output_norm) == ("relu", "rms_norm")
    config.encoder_attention = {"threshold": 0.5}
    site = config.attention_for("encoder")
    assert (site.threshold, site.output_norm) == (0.5, "rms_norm")
    config.save_pretrained(tmp_path)
    opened = Seq2SeqTransformerConfig.from_pretrained(tmp_path, attention={"output_norm_eps": 1e-2})
    wanted = {"preset": "rela-g", "output_norm_eps": 1e-2, "scale_length": 72}  # a file says all
    assert opened.attention == AttentionConfig.parse(wanted)
    opened.attention = {"preset": "qknorm", "value_norm": "l2"}
    assert (opened.attention.activation, opened.attention.value_norm) == ("softmax", "l2")
    for make in (seq2seq_config, vision_config):
        attention = make("sparsemax", attention={"learned_scale": True}).attention
        assert (attention.activation, attention.learned_scale) == ("sparsemax", True)


def test_presets_choose_their_family():
    rela = dict.fromkeys(("rela", "rela-i", "rela-g"), ReLAConfig)
    text = {"reluformer": ReLUFormerConfig, "qknorm": QKNormConfig, **rela}
    rela = dict.fromkeys(rela, ReLAViTConfig)
    images = {"reluformer": ReLUFormerViTConfig, "relu-vit": ReLUViTConfig, "qknorm": QKNormViTConfig, **rela}
    for preset in PRESETS:
        assert type(seq2seq_config(preset)) is text.get(preset, Seq2SeqTransformerConfig)
        assert type(vision_config(preset)) is images.get(preset, VisionTransformerConfig)
    with pytest.raises(ValueError, match="rele"):
        seq2seq_config("rele")


@pytest.mark.parametrize("tying", ["all", "decoder"])
def test_without_ties_means_what_it_says(tying, tmp_path):
    for config in (
        ReLUFormerConfig(**TINY, tying=tying, tie_word_embeddings=False),
        ReLUFormerConfig(**TINY, tying=tying),
    ):
        config.tie_word_embeddings = False
        config.validate()
        assert config.tying == "none"
    ReLUFormerConfig(**TINY, tying=tying).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, tie_word_embeddings=False)
    assert (config.tying, config.tie_word_embeddings) == ("none", False)
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).tying == "none"


@pytest.mark.parametrize("eos", [None, [2, 5]])
def test_the_end_may_be_several_tokens_or_none(eos, tmp_path):
    ReLUFormerConfig(**TINY, eos_token_id=eos).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).eos_token_id == eos


def test_fields_may_be_changed_when_a_folder_is_opened(tmp_path):
    ReLUFormerConfig(**TINY).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, tying="none", attention="rela-g", dropout=0.3)
    assert config.attention == AttentionConfig.parse("rela-g")
    assert (config.tie_word_embeddings, config.dropout) == (False, 0.3)
    config.update({"cross_attention": "softmax"})
    assert json.loads(config.to_json_string())["cross_attention"]["activation"] == "softmax"
    with pytest.raises(ValueError, match="norm_position"):
        AutoConfig.from_pretrained(tmp_path, norm_position="sideways")
    bad = AutoConfig.from_pretrained(tmp_path, dropout=2)  # ranges may depend on other fields that are yet to be set
    for use in (AutoModel.from_config, lambda config: config.save_pretrained(tmp_path)):
        with pytest.raises(ValueError, match="dropout"):
            use(bad)
    with pytest.raises(ValueError, match="d_model"):
        config.d_model = 16.5


def test_copy_for_one_side_takes_what_that_side_has():
    config = Seq2SeqTransformerConfig(**TINY, tying="none", decoder_vocab_size=50, cross_attention="rela")
    for side, size, layers in (("encoder", 40, 2), ("decoder", 50, 3)):
        text_config = config.get_text_config(**{side: True})
        assert (text_config.vocab_size, text_config.num_hidden_layers) == (size, layers)
    shared = Seq2SeqTransformerConfig(**TINY).get_text_config(decoder=True)
    assert shared.vocab_size == 40
    assert config.get_text_config() is config


def test_class_of_a_user_is_saved_without_code(tmp_path, caplog):
    class MyConfig(ReLUFormerConfig):
        model_type = "mine"

    MyConfig(**TINY).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert "MyConfig is no class of reluformers" in caplog.text


RELUFORMER = {"normalization_loss_weight": 0.1, "entropy_loss_weight": 0.02, "entropy_bound": 0.7}
# what papers and released code say; ReLUFormer's C = 0.7 log n
SETTINGS = {
    ReLUFormerConfig: {
        **RELUFORMER,
        "encoder_layers": 6,
        "encoder_attention_heads": 4,
        "d_model": 512,
        "encoder_ffn_dim": 1024,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "label_smoothing": 0.1,
        "has_regularizer": True,
        "attention": AttentionConfig.parse("reluformer"),
    },
    ReLAConfig: {
        "norm_position": "post",
        "norm_eps": 1e-8,
        "position_embedding_type": "sinusoidal_halves",
        "tying": "decoder",
        "embedding_bias": True,
        "output_bias": False,
        "activation_dropout": 0.1,
        "attention": AttentionConfig.parse("rela-g"),
    },
    QKNormConfig: {
        "norm_position": "pre",
        "embedding_norm": "fix_norm",
        "initialization": "small",
        "dropout": 0.3,
        "attention_dropout": 0.3,
        "activation_dropout": 0.3,
        "word_dropout": 0.1,
        "output_bias": True,
        "tying": "all",
        "attention": AttentionConfig.parse("qknorm"),
    },
    ReLUFormerViTConfig: RELUFORMER,
    ReLUViTConfig: {"attention": AttentionConfig.parse("relu-vit")},
    ReLAViTConfig: {"attention": AttentionConfig.parse("rela-g")},
    VisionTransformerConfig: {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "norm_position": "pre"},
}


@pytest.mark.parametrize("config_class", SETTINGS)
def test_families_are_those_of_the_papers(config_class):
    config = config_class()
    assert {name: getattr(config, name) for name in SETTINGS[config_class]} == SETTINGS[config_class]
