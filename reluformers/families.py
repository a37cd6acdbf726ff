"""The families: which model classes belong to which configuration, and which preset to which family.

A new one is a row here, beside its two classes.
"""

from typing import Any

from transformers import AutoModel, AutoModelForImageClassification, AutoModelForSeq2SeqLM, PreTrainedConfig

from .configuration.configuration_seq2seq import QKNormConfig, ReLAConfig, ReLUFormerConfig, Seq2SeqTransformerConfig
from .configuration.configuration_vision import (
    QKNormViTConfig,
    ReLAViTConfig,
    ReLUFormerViTConfig,
    ReLUViTConfig,
    VisionTransformerConfig,
)
from .configuration.field_checks import check_choice
from .modeling.modeling_seq2seq import (
    QKNormForConditionalGeneration,
    QKNormModel,
    ReLAForConditionalGeneration,
    ReLAModel,
    ReLUFormerForConditionalGeneration,
    ReLUFormerModel,
    Seq2SeqTransformerForConditionalGeneration,
    Seq2SeqTransformerModel,
)
from .modeling.modeling_vision import (
    QKNormViTForImageClassification,
    QKNormViTModel,
    ReLAViTForImageClassification,
    ReLAViTModel,
    ReLUFormerViTForImageClassification,
    ReLUFormerViTModel,
    ReLUViTForImageClassification,
    ReLUViTModel,
    VisionTransformerForImageClassification,
    VisionTransformerModel,
)

# For each configuration, the model that each auto class opens.
FAMILIES = {
    Seq2SeqTransformerConfig: {
        AutoModel: Seq2SeqTransformerModel,
        AutoModelForSeq2SeqLM: Seq2SeqTransformerForConditionalGeneration,
    },
    ReLUFormerConfig: {AutoModel: ReLUFormerModel, AutoModelForSeq2SeqLM: ReLUFormerForConditionalGeneration},
    ReLAConfig: {AutoModel: ReLAModel, AutoModelForSeq2SeqLM: ReLAForConditionalGeneration},
    QKNormConfig: {AutoModel: QKNormModel, AutoModelForSeq2SeqLM: QKNormForConditionalGeneration},
    VisionTransformerConfig: {
        AutoModel: VisionTransformerModel,
        AutoModelForImageClassification: VisionTransformerForImageClassification,
    },
    ReLUViTConfig: {AutoModel: ReLUViTModel, AutoModelForImageClassification: ReLUViTForImageClassification},
    ReLUFormerViTConfig: {
        AutoModel: ReLUFormerViTModel,
        AutoModelForImageClassification: ReLUFormerViTForImageClassification,
    },
    ReLAViTConfig: {AutoModel: ReLAViTModel, AutoModelForImageClassification: ReLAViTForImageClassification},
    QKNormViTConfig: {AutoModel: QKNormViTModel, AutoModelForImageClassification: QKNormViTForImageClassification},
}
# `reluformers` exports these.
__all__ = sorted(owner.__name__ for family, models in FAMILIES.items() for owner in (family, *models.values()))


def config_class_of(model_type: str | None) -> type[PreTrainedConfig] | None:
    """The configuration class of a family by its `model_type`; None for one of others."""
    return next((family for family in FAMILIES if family.model_type == model_type), None)


# For each baseline, presets with a configuration of their own; others have the baseline's.
_PRESET_FAMILIES: dict[type[PreTrainedConfig], dict[str, type[PreTrainedConfig]]] = {
    Seq2SeqTransformerConfig: {
        "reluformer": ReLUFormerConfig,
        **dict.fromkeys(("rela", "rela-i", "rela-g"), ReLAConfig),
        "qknorm": QKNormConfig,
    },
    VisionTransformerConfig: {
        "relu-vit": ReLUViTConfig,
        "reluformer": ReLUFormerViTConfig,
        **dict.fromkeys(("rela", "rela-i", "rela-g"), ReLAViTConfig),
        "qknorm": QKNormViTConfig,
    },
}
# big_vision names widths and depths so; behind the slash stands the patch size in pixels.
_WIDTHS = {
    "Ti": {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768},
    "S": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536},
    "B": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "L": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
VISION_SIZES: dict[str, dict[str, int]] = {
    **{f"{width}/4": {**_WIDTHS[width], "image_size": 32, "patch_size": 4} for width in ("Ti", "S")},
    **{
        f"{width}/{patch}": {**_WIDTHS[width], "image_size": 224, "patch_size": patch}
        for width, patch in (("Ti", 16), ("S", 32), ("S", 16), ("B", 32), ("B", 16), ("L", 16))
    },
}


def seq2seq_config(preset: str, **overrides: Any) -> Seq2SeqTransformerConfig:
    """A configuration with the attention of `preset`, in its family, and any field overridden.

    A dict of `attention` changes fields of the preset.
    """
    return _with_attention(Seq2SeqTransformerConfig, preset, overrides)


def vision_config(preset: str, size: str | None = None, **overrides: Any) -> VisionTransformerConfig:
    """A configuration with the attention of `preset`, in its family, the fields of a size, and any field overridden.

    Args:
        preset: a name of `ATTENTION_PRESETS`.
        size: a name of `VISION_SIZES`, such as "S/16"; None for the defaults.
        overrides: fields; a dict of `attention` changes those of the preset.

    Raises:
        ValueError: there is no such preset or size, or a field has a value that is not allowed.
    """
    if size is not None:
        check_choice("vision_config", "size", size, tuple(VISION_SIZES))
        overrides = {**VISION_SIZES[size], **overrides}
    return _with_attention(VisionTransformerConfig, preset, overrides)


def _with_attention(baseline: type[PreTrainedConfig], preset: str, overrides: dict[str, Any]) -> PreTrainedConfig:
    family = _PRESET_FAMILIES[baseline].get(preset, baseline)
    given = overrides.get("attention", preset)
    return family(**{**overrides, "attention": {"preset": preset, **given} if isinstance(given, dict) else given})
