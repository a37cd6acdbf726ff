"""What models of transformers are in our configuration's words, and the other way round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from reluformers.configuration.configuration_vision import distinct_names

from .names import DEIT_NAMES, SEQ2SEQ_NAMES, VIT_NAMES

# name in transformers → our fields
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
_SEQ2SEQ_COPIED = (
    "vocab_size",
    "max_position_embeddings",
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "scale_embedding",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)
_VISION_COPIED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "image_size",
    "num_channels",
    "qkv_bias",
    "id2label",
    "label2id",
    "problem_type",
    "initializer_range",
)


@dataclass(frozen=True)
class Source:
    """A kind of model that can be had in both forms.

    Args:
        config_class: of transformers.
        auto_class: opens its models.
        architectures: classes whose weights these are, by the names that config.json has.
        names: table of `rename`, theirs → ours.
        required: our fields, and the values with which our model computes what theirs does; the first one is set.
        copied: fields of the same name and meaning.
        ignored: ends of names of tensors that need no place, since they are computed.
    """

    config_class: type[PreTrainedConfig]
    auto_class: type
    architectures: tuple[str, ...]
    names: Mapping[str, str]
    required: Mapping[str, tuple[Any, ...]]
    copied: tuple[str, ...]
    ignored: tuple[str, ...] = field(default=())

    @property
    def model_type(self) -> str:
        """The name that config.json has for it."""
        return self.config_class.model_type


SOURCES = {
    source.model_type: source
    for source in (
        Source(
            MarianConfig,
            AutoModelForSeq2SeqLM,
            ("MarianMTModel", "MarianModel"),
            SEQ2SEQ_NAMES,
            {
                **_SEQ2SEQ,
                "norm_position": ("post",),
                "position_embedding_type": ("sinusoidal_marian",),
                "embedding_norm": ("none",),
                "label_shift": ("start_token",),
            },
            _SEQ2SEQ_COPIED,
            ignored=("embed_positions.weight",),
        ),
        Source(
            BartConfig,
            AutoModelForSeq2SeqLM,
            ("BartForConditionalGeneration", "BartModel"),
            SEQ2SEQ_NAMES,
            {**_SEQ2SEQ, **_LEARNED, "norm_position": ("post",), "label_shift": ("start_token",)},
            _SEQ2SEQ_COPIED,
            ignored=("encoder.version", "decoder.version"),
        ),
        Source(
            MBartConfig,
            AutoModelForSeq2SeqLM,
            ("MBartForConditionalGeneration", "MBartModel"),
            SEQ2SEQ_NAMES,
            {**_SEQ2SEQ, **_LEARNED, "norm_position": ("pre",), "label_shift": ("last_label",)},
            _SEQ2SEQ_COPIED,
        ),
        Source(
            ViTConfig,
            AutoModelForImageClassification,
            ("ViTForImageClassification",),
            VIT_NAMES,
            {**_VIT, "num_register_tokens": (0,)},
            _VISION_COPIED,
        ),
        Source(
            DeiTConfig,
            AutoModelForImageClassification,
            ("DeiTForImageClassification",),
            DEIT_NAMES,
            {**_VIT, "num_register_tokens": (1,)},
            _VISION_COPIED,
        ),
    )
}


def is_seq2seq(source: Source) -> bool:
    """Whether it is an encoder–decoder model and not an image classifier."""
    return source.auto_class is AutoModelForSeq2SeqLM


def source_of(config: PreTrainedConfig, place: str) -> Source:
    """The kind of a model by its configuration.

    Args:
        config: of the model.
        place: where it was found, for errors.

    Raises:
        ValueError: it is none that our model can compute.
    """
    if config.model_type not in SOURCES:
        raise ValueError(f"{place}: is a model of type {config.model_type!r}, but must be one of {', '.join(SOURCES)}")
    source = SOURCES[config.model_type]
    for name in config.architectures or ():
        if name not in source.architectures:
            raise ValueError(f"{place}: is a {name}, but must be a {source.architectures[0]}")
    return source


def fields_of(config: PreTrainedConfig, place: str) -> dict[str, Any]:
    """Fields of our configuration with which our model, with softmax, computes what theirs does.

    `output_bias` is not among them: the weights tell whether there is one. Further training is without `layerdrop`
    and label smoothing.

    Args:
        config: of a model of `SOURCES`.
        place: where it was found, for errors.

    Raises:
        ValueError: a field has a value that ours cannot express.
    """
    source = source_of(config, place)
    fields = {name: getattr(config, name) for name in source.copied}
    fields |= {name: values[0] for name, values in source.required.items()}
    fields |= {"initialization": "normal", "label_smoothing": 0.0}
    fields |= _activation(getattr(config, "activation_function" if is_seq2seq(source) else "hidden_act"), place)
    if is_seq2seq(source):
        return fields | _seq2seq_fields(config)
    del fields["label2id"]  # follows from the names
    fields["id2label"] = distinct_names(config.id2label)
    return fields | _vision_fields(config, place)


def _activation(name: str, place: str) -> dict[str, Any]:
    if name not in ACTIVATIONS:
        raise ValueError(f"{place}: has the activation {name!r}, but it must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _seq2seq_fields(config: PreTrainedConfig) -> dict[str, Any]:
    is_shared = getattr(config, "share_encoder_decoder_embeddings", True)
    tying = "none" if not config.tie_word_embeddings else "all" if is_shared else "decoder"
    return {
        "tying": tying,
        "decoder_vocab_size": None if is_shared else config.decoder_vocab_size,
        "initializer_range": config.init_std,
        "unk_token_id": None,
        "word_dropout": 0.0,
        "embedding_dropout": None,
    }


def _vision_fields(config: PreTrainedConfig, place: str) -> dict[str, Any]:
    patch_size = config.patch_size
    if not isinstance(patch_size, int):
        if len(set(patch_size)) > 1:
            raise ValueError(f"{place}: has patches of {patch_size}, but they must be square")
        patch_size = patch_size[0]
    width = config.hidden_size // config.num_attention_heads
    if getattr(config, "head_dim", width) != width:
        raise ValueError(f"{place}: has heads of width {config.head_dim}, but it must be {width}, d over heads")
    return {"patch_size": patch_size, "multi_label_reduction": "mean"}


def target_of(config: TransformerConfig, place: str) -> Source:
    """The kind of model that computes what one of ours does.

    Args:
        config: of ours.
        place: where it was found, for errors.

    Raises:
        ValueError: there is none; the message names the fields.
    """
    for site in config.sites:
        is_used = site != "pooling" or config.pooling == "attention"
        if is_used and config.attention_for(site).preset_name != "softmax":
            raise ValueError(f"{place}: {site}_attention is no plain softmax, which is all that other models compute")
    is_translation = hasattr(config, "d_model")
    reasons = {
        source.model_type: [
            f"{name} is {getattr(config, name)!r} instead of {values[0]!r}"
            for name, values in source.required.items()
            if getattr(config, name) not in values
        ]
        for source in SOURCES.values()
        if is_seq2seq(source) == is_translation
    }
    nearest = min(reasons, key=lambda name: len(reasons[name]))
    if wrong := [*reasons[nearest], *_unspeakable(config, SOURCES[nearest])]:
        raise ValueError(f"{place}: cannot be a {nearest} model, since {', '.join(wrong)}")
    return SOURCES[nearest]


def _unspeakable(config: TransformerConfig, source: Source) -> list[str]:
    """What is said of one more than of a fixed value."""
    wrong = []
    if _activation_name(config) is None:
        beta = f" with β = {config.swish_beta}" if config.activation_function == "swish" else ""
        wrong.append(f"activation_function is {config.activation_function!r}{beta}")
    if source.config_class is not MarianConfig and getattr(config, "tying", "all") == "decoder":
        wrong.append("tying is 'decoder' instead of 'all'")
    is_multi_label = config.problem_type == "multi_label_classification"
    if is_multi_label and getattr(config, "multi_label_reduction", "mean") == "sum":
        wrong.append("multi_label_reduction is 'sum' instead of 'mean'")
    return wrong


def _activation_name(config: TransformerConfig) -> str | None:
    """The name in transformers, None if there is none."""
    if config.learned_swish_beta and config.activation_function == "swish":
        return None
    names = [
        name
        for name, fields in ACTIVATIONS.items()
        if all(getattr(config, key) == value for key, value in fields.items())
    ]
    # the name that does not change is the first choice
    return config.activation_function if config.activation_function in names else next(iter(names), None)


def config_back(config: TransformerConfig, place: str) -> PreTrainedConfig:
    """The configuration of the model of transformers that computes what ours does.

    Raises:
        ValueError: there is none.
    """
    source = target_of(config, place)
    fields = {name: getattr(config, name) for name in source.copied}
    if not is_seq2seq(source):
        return source.config_class(**fields, patch_size=config.patch_size, hidden_act=_activation_name(config))
    fields |= {
        "activation_function": _activation_name(config),
        "init_std": config.initializer_range,
        "tie_word_embeddings": config.tying != "none",
        "forced_eos_token_id": None,  # a matter of generation_config.json
    }
    if source.config_class is MarianConfig:
        fields["share_encoder_decoder_embeddings"] = config.tying == "all"
        fields["decoder_vocab_size"] = config.target_vocab_size
    return source.config_class(**fields)
