"""Attention without plain softmax for the Hugging Face Hub: ReLUFormer, ReLA, QKNorm and their baselines."""

from .configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from .configuration.configuration_seq2seq import (
    QKNormConfig,
    ReLAConfig,
    ReLUFormerConfig,
    Seq2SeqTransformerConfig,
    seq2seq_config,
)
from .configuration.configuration_vision import (
    VISION_SIZES,
    QKNormViTConfig,
    ReLAViTConfig,
    ReLUViTConfig,
    VisionTransformerConfig,
    vision_config,
)
from .modeling.attention import MultiHeadAttention
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
    ReLUViTForImageClassification,
    ReLUViTModel,
    VisionTransformerForImageClassification,
    VisionTransformerModel,
)
from .modeling.pipeline_translation import TranslationPipeline
from .modeling.rectified_attention import rectified_attention
from .registry import register

__version__ = "0.1.0.dev0"

__all__ = [
    "ATTENTION_PRESETS",
    "VISION_SIZES",
    "AttentionConfig",
    "MultiHeadAttention",
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
    "ReLUViTConfig",
    "ReLUViTForImageClassification",
    "ReLUViTModel",
    "Seq2SeqTransformerConfig",
    "Seq2SeqTransformerForConditionalGeneration",
    "Seq2SeqTransformerModel",
    "TranslationPipeline",
    "VisionTransformerConfig",
    "VisionTransformerForImageClassification",
    "VisionTransformerModel",
    "rectified_attention",
    "seq2seq_config",
    "vision_config",
]

register()
