"""Attention without plain softmax for the Hugging Face Hub: ReLUFormer, ReLA, QKNorm and their baselines."""

from .configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from .configuration.configuration_seq2seq import (
    QKNormConfig,
    ReLAConfig,
    ReLUFormerConfig,
    Seq2SeqTransformerConfig,
    seq2seq_config,
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
from .registry import register

__version__ = "0.1.0.dev0"

__all__ = [
    "ATTENTION_PRESETS",
    "AttentionConfig",
    "MultiHeadAttention",
    "QKNormConfig",
    "QKNormForConditionalGeneration",
    "QKNormModel",
    "ReLAConfig",
    "ReLAForConditionalGeneration",
    "ReLAModel",
    "ReLUFormerConfig",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerModel",
    "Seq2SeqTransformerConfig",
    "Seq2SeqTransformerForConditionalGeneration",
    "Seq2SeqTransformerModel",
    "seq2seq_config",
]

register()
