"""The families: which model classes belong to which configuration. A new one is a row here, beside its two classes."""

from transformers import AutoModel, AutoModelForImageClassification, AutoModelForSeq2SeqLM, PreTrainedConfig

from .configuration.configuration_seq2seq import QKNormConfig, ReLAConfig, ReLUFormerConfig, Seq2SeqTransformerConfig
from .configuration.configuration_vision import (
    QKNormViTConfig,
    ReLAViTConfig,
    ReLUFormerViTConfig,
    ReLUViTConfig,
    VisionTransformerConfig,
)
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

__all__ = [
    "QKNormConfig",
    "QKNormForConditionalGeneration",
    "QKNormModel",
    "QKNormViTConfig",
    "QKNormViTForImageClassification",
    "QKNormViTModel",
    "ReLAConfig",
    "ReLAForConditionalGeneration",
    "ReLAModel",
    "ReLAViTConfig",
    "ReLAViTForImageClassification",
    "ReLAViTModel",
    "ReLUFormerConfig",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerModel",
    "ReLUFormerViTConfig",
    "ReLUFormerViTForImageClassification",
    "ReLUFormerViTModel",
    "ReLUViTConfig",
    "ReLUViTForImageClassification",
    "ReLUViTModel",
    "Seq2SeqTransformerConfig",
    "Seq2SeqTransformerForConditionalGeneration",
    "Seq2SeqTransformerModel",
    "VisionTransformerConfig",
    "VisionTransformerForImageClassification",
    "VisionTransformerModel",
]

# configuration → auto class → model
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


def config_class_of(model_type: str | None) -> type[PreTrainedConfig] | None:
    """The configuration class of a family by its `model_type`; None for one of others."""
    return next((family for family in FAMILIES if family.model_type == model_type), None)
