"""What models of transformers are in our configuration's words, and the other way round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    BartConfig,
    DeiTConfig,
    MarianConfig,
    MBartConfig,
    PreTrainedConfig,
    ViTConfig,
)

from reluformers.configuration.configuration_base import TransformerConfig
from reluformers.data.checked_fields import check_name

from .names import DEIT_NAMES, SEQ2SEQ_NAMES, VIT_NAMES

# Each activation of transformers becomes these fields of ours.
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "gelu_python": {"activation_function": "gelu"},
    "gelu_new": {"activation_function": "gelu_pytorch_tanh"},
    "gelu_fast": {"activation_function": "gelu_pytorch_tanh"},
    "gelu_pytorch_tanh": {"activation_function": "gelu_pytorch_tanh"},
    "silu": {"activation_function": "silu"},
    "swish": {"activation_function": "swish", "swish_beta": 1.0},
    "quick_gelu": {"activation_function": "swish", "swish_beta": 1.702},
}

_NORMS = {"norm_type": ("layer_norm",), "feed_forward_norm": ("none",), "ffn_bias": (True,)}
_SEQ2SEQ = {
    **_NORMS,
    "norm_eps": (1e-5,),
    "attention_bias": (True,),
    "attention_output_bias": (None, True),
    "embedding_bias": (False,),
}
_LEARNED = {"position_embedding_type": ("learned",), "position_offset": (2,), "embedding_norm": ("layer_norm",)}
_VIT = {
    **_NORMS,
    "norm_position": ("pre",),
    "attention_output_bias": (True,),
    "pooling": ("cls",),
    "position_embedding_type": ("learned",),
    "prefix_positions": (True,),
    "norm_after_pooling": (False,),
    "representation_size": (None,),
}
# These fields have the same name and meaning in ours.
_SEQ2SEQ_COPIED = """
    vocab_size max_position_embeddings d_model dropout attention_dropout activation_dropout scale_embedding use_cache
    encoder_layers encoder_attention_heads encoder_ffn_dim decoder_layers decoder_attention_heads decoder_ffn_dim
    pad_token_id bos_token_id eos_token_id decoder_start_token_id
"""
_VISION_COPIED = """
    hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_dropout_prob layer_norm_eps
    attention_probs_dropout_prob image_size num_channels qkv_bias id2label label2id problem_type initializer_range
"""


@dataclass(frozen=True)
class Source:
    """A kind of model that can be had in both forms.

    Args:
        config_class: of transformers.
        architecture: class of its models.
        names: table of `rename`, theirs → ours.
        required: our fields, and the values with which our model computes what theirs does; the first one is set.
        ignored: ends of names of tensors that are not copied, since they are computed.
        auto_class: opens its models.
        copied: names of fields that mean the same in both.
    """

    config_class: type[PreTrainedConfig]
    architecture: str
    names: Mapping[str, str]
    required: Mapping[str, tuple[Any, ...]]
    ignored: tuple[str, ...] = ()
    auto_class: type = AutoModelForSeq2SeqLM
    copied: Sequence[str] = tuple(_SEQ2SEQ_COPIED.split())

    @property
    def is_seq2seq(self) -> bool:
        """Whether it is an encoder–decoder model and not an image classifier."""
        return self.auto_class is AutoModelForSeq2SeqLM


_ViT = partial(Source, auto_class=AutoModelForImageClassification, copied=tuple(_VISION_COPIED.split()))


_MARIAN = {
    **_SEQ2SEQ,
    "norm_position": ("post",),
    "position_embedding_type": ("sinusoidal_marian",),
    "embedding_norm": ("none",),
    "label_shift": ("start_token",),
}
_BART = {**_SEQ2SEQ, **_LEARNED, "norm_position": ("post",), "label_shift": ("start_token",)}
_MBART = {**_SEQ2SEQ, **_LEARNED, "norm_position": ("pre",), "label_shift": ("last_label",)}
_VERSIONS = ("encoder.version", "decoder.version")
SOURCES = {
    source.config_class.model_type: source
    for source in (
        Source(MarianConfig, "MarianMTModel", SEQ2SEQ_NAMES, _MARIAN, ignored=("embed_positions.weight",)),
        Source(BartConfig, "BartForConditionalGeneration", SEQ2SEQ_NAMES, _BART, ignored=_VERSIONS),
        Source(MBartConfig, "MBartForConditionalGeneration", SEQ2SEQ_NAMES, _MBART),
        _ViT(ViTConfig, "ViTForImageClassification", VIT_NAMES, _VIT | {"num_register_tokens": (0,)}),
        _ViT(DeiTConfig, "DeiTForImageClassification", DEIT_NAMES, _VIT | {"num_register_tokens": (1,)}),
    )
}


def fields_of(config: PreTrainedConfig) -> dict[str, Any]:
    """Find fields of our configuration with which our model, with softmax, computes what the transformers model does.

    `output_bias` is not among them: the weights tell whether there is one. Further training is without `layerdrop`
    and label smoothing.

    Args:
        config: of a model of `SOURCES`.
    """
    source = SOURCES[config.model_type]
    fields = {name: getattr(config, name) for name in source.copied}
    fields |= {name: values[0] for name, values in source.required.items()}
    fields |= {"initialization": "normal", "label_smoothing": 0.0}
    activation = config.activation_function if source.is_seq2seq else config.hidden_act
    check_name(activation, ACTIVATIONS, "activation function")
    fields |= ACTIVATIONS[activation]
    if source.is_seq2seq:
        is_shared = getattr(config, "share_encoder_decoder_embeddings", True)
        tied = "all" if is_shared else "decoder"
        return fields | {
            "tying": tied if config.tie_word_embeddings else "none",
            "decoder_vocab_size": None if is_shared else config.decoder_vocab_size,
            "initializer_range": config.init_std,
            "unk_token_id": None,
            "word_dropout": 0.0,
            "embedding_dropout": None,
        }
    del fields["label2id"]  # It follows from the names of classes.
    fields["id2label"] = distinct_names(config.id2label)
    return fields | {"patch_size": square_side(config.patch_size), "multi_label_reduction": "mean"}


def square_side(patch_size: int | Sequence[int]) -> int:
    """The side of a patch; a ValueError where height and width differ."""
    sides = {patch_size} if isinstance(patch_size, int) else {*patch_size}
    if len(sides) > 1:
        raise ValueError(f"patch_size is {patch_size}, but patches must be square")
    return sides.pop()


def distinct_names(names: dict[int, str]) -> dict[int, str]:
    """Names of classes by number; of equal ones those after the first get their number: ImageNet has two cranes."""
    first = {name: number for number, name in reversed(names.items())}
    return {number: name if first[name] == number else f"{name} ({number})" for number, name in names.items()}


def target_of(config: TransformerConfig) -> Source:
    """The kind of model that computes what one of ours does; a ValueError names the fields by which there is none."""
    other = {
        name: [field for field, values in source.required.items() if getattr(config, field) not in values]
        for name, source in SOURCES.items()
        if source.is_seq2seq == hasattr(config, "d_model")
    }
    nearest = min(other, key=lambda name: len(other[name]))
    wrong = [f"{site}_attention" for site in config.sites if config.attention_for(site).preset_name != "softmax"]
    wrong += other[nearest]
    if _activation_name(config) is None:
        wrong.append("activation_function")
    if nearest != "marian" and getattr(config, "tying", "all") == "decoder":
        wrong.append("tying")
    is_multi_label = config.problem_type == "multi_label_classification"
    if is_multi_label and getattr(config, "multi_label_reduction", "mean") == "sum":
        wrong.append("multi_label_reduction")
    if wrong:
        raise ValueError(f"cannot be a {nearest} model by its {', '.join(wrong)}")
    return SOURCES[nearest]


def _activation_name(config: TransformerConfig) -> str | None:
    """The name in transformers, None if there is none."""
    if config.learned_swish_beta and config.activation_function == "swish":
        return None
    names = [
        name
        for name, fields in ACTIVATIONS.items()
        if all(getattr(config, key) == value for key, value in fields.items())
    ]
    # If a name needs no change, it is the first choice.
    if config.activation_function in names:
        return config.activation_function
    return next(iter(names), None)


def config_back(config: TransformerConfig, source: Source) -> PreTrainedConfig:
    """The configuration of the model of transformers, out of `target_of`, that computes what ours does."""
    fields = {name: getattr(config, name) for name in source.copied}
    if not source.is_seq2seq:
        return source.config_class(**fields, patch_size=config.patch_size, hidden_act=_activation_name(config))
    fields |= {
        "activation_function": _activation_name(config),
        "init_std": config.initializer_range,
        "tie_word_embeddings": config.tying != "none",
        "forced_eos_token_id": None,  # It stands in generation_config.json.
    }
    if source.config_class is MarianConfig:
        fields["share_encoder_decoder_embeddings"] = config.tying == "all"
        fields["decoder_vocab_size"] = config.target_vocab_size
    return source.config_class(**fields)
