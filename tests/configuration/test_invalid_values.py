"""Values and names that no configuration takes, over all fields, and what none may keep from training in DDP."""

import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.generation import GenerationConfig

from reluformers import seq2seq_config
from reluformers.configuration.configuration_attention import ACTIVATIONS, SHIFT_INVARIANT_ACTIVATIONS, AttentionConfig
from reluformers.configuration.configuration_seq2seq import ReLUFormerConfig, Seq2SeqTransformerConfig
from reluformers.configuration.configuration_vision import VisionTransformerConfig

SIZES = {
    "vocab_size": 20,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_position_embeddings": 8,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 8),
}


# values that their type, their range or another field excludes; the first field is the one that is named
SINGLE = {
    AttentionConfig: {
        "scale": 0,
        "scale_length": 1,
        "length_coefficient": 0,
        "output_norm_eps": 0,
        "activation": "tanh",
        "threshold": math.inf,
        "learned_scale": 1,
        "normalizer": "sum",
    },
    Seq2SeqTransformerConfig: {
        "dropout": 1.0,
        "encoder_layers": 0,
        "norm_eps": 0,
        "position_offset": 2,
        "eos_token_id": [2, 32000],
        "alignment_layer": 6,
        "alignment_head": 8,
        "attention": "relu7",
        "d_modl": 8,
        "format_version": 2,
        "decoder_layers": True,
        "word_dropout": math.nan,
        "d_model": "64",
        "cross_attention": {"activaton": "relu"},
    },
    VisionTransformerConfig: {
        "image_size": 30,
        "attention": None,
        "num_register_tokens": -1,
        "problem_type": "ranking",
        "hidden_dropout_prob": 1.0,
        "drop_path_rate": 1,
        "layer_norm_eps": 0,
        "norm_type": None,
    },
}
OUT_OF_RANGE = [
    *((owner, {name: value}) for owner, fields in SINGLE.items() for name, value in fields.items()),
    *((AttentionConfig, fields) for fields in (
        {"learned_threshold": True, "activation": "softmax"},
        {"threshold": 0.1, "activation": "entmax15"},
        # a sum is taken once and of positive weights
        {"normalizer": "sum", "activation": "gelu"},
        {"normalizer": "sum", "activation": "relu", "length_exponent": 1.0},
        {"normalizer": "sum", "activation": "relu", "length_coefficient": 2.0},
    )),
    *((Seq2SeqTransformerConfig, fields) for fields in (
        {"eos_token_id": 2, "vocab_size": 2},
        {"eos_token_id": 60, "vocab_size": 90, "decoder_vocab_size": 50, "tying": "none"},
        {"position_offset": -1, "position_embedding_type": "learned"},
        {"tying": "all", "decoder_vocab_size": 10},
        {"embedding_norm": "layer_norm", "norm_type": "rms_norm"},
        {"entropy_loss_weight": 0.1, "cross_attention": {"activation": "gelu"}},
    )),
    *((VisionTransformerConfig, fields) for fields in (
        {"image_size": [32, 20]},
        {"entropy_loss_weight": 0.1, "attention": {"activation": "identity"}},
        {"pooling_attention": "softmx", "pooling": "attention"},
    )),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "fields"), OUT_OF_RANGE)
def test_a_value_out_of_its_range_is_refused_by_the_name_of_its_field(owner, fields):
    with pytest.raises(ValueError, match=rf"\b{next(iter(fields))}\b") as caught:
        owner(**fields)
    assert "\n" not in str(caught.value)


def test_names_of_transformers_pass():
    names = {*GenerationConfig._get_default_generation_params(), "sep_token_id", "output_attentions", "name_or_path"}
    seq2seq_config("reluformer", **dict.fromkeys(names - set(ReLUFormerConfig.__dataclass_fields__)))
    assert seq2seq_config("reluformer", hidden_size=64, num_labels=3).d_model == 64


LEARNED = [
    {"learned_scale": True, "learned_threshold": True, "learned_length_exponent": True},
    {"score": "cosine", "learned_scale": True, "scale_form": "log_length"},
    {"output_norm": "gated_rms_norm", "output_gate": "silu", "query_key_norm": "layer_norm", "value_norm": "l2"},
]


@pytest.mark.parametrize("options", LEARNED)
def test_every_parameter_of_a_valid_configuration_has_a_gradient(options):
    """DDP waits for the gradient of every parameter."""
    tokens = torch.randint(4, 20, (2, 5))
    for activation in ACTIVATIONS:
        cancels = {"learned_threshold"} if activation in SHIFT_INVARIANT_ACTIVATIONS else set()
        attention = {name: value for name, value in options.items() if name not in cancels}
        config = seq2seq_config("softmax", **SIZES, attention={"activation": activation, **attention})
        model = AutoModelForSeq2SeqLM.from_config(config)
        model(input_ids=tokens, labels=tokens).loss.backward()
        assert [name for name, weight in model.named_parameters() if weight.grad is None] == [], activation
