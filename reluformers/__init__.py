"""Attention without plain softmax for the Hugging Face Hub: ReLUFormer, ReLA, QKNorm, ReLU-ViT, baselines."""

from reluformers_kernels import quantize_int8, rectified_attention

from . import families
from .attentions import register_attention, register_attentions
from .configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from .conversion.exchanged_fit import fit_attention
from .exchange import exchange_attention, load_adapter, restore_attention, save_adapter
from .families import *  # noqa: F403 (the classes of every family, as families.py lists them)
from .families import VISION_SIZES, seq2seq_config, vision_config
from .modeling.attention import MultiHeadAttention
from .modeling.pipeline_translation import TranslationPipeline
from .saved_code.registry import register
from .training.attention_statistics import AttentionStatistics

__version__ = "0.1.0"

__all__ = [
    "ATTENTION_PRESETS",
    "VISION_SIZES",
    "AttentionConfig",
    "AttentionStatistics",
    "MultiHeadAttention",
    "TranslationPipeline",
    "exchange_attention",
    "fit_attention",
    "load_adapter",
    "quantize_int8",
    "rectified_attention",
    "register_attention",
    "restore_attention",
    "save_adapter",
    "seq2seq_config",
    "vision_config",
]
__all__ += families.__all__

register()
register_attentions()
