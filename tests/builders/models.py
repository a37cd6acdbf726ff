"""Tiny models of every kind, family and preset, which the model tests run over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

from reluformers import ATTENTION_PRESETS, seq2seq_config, vision_config
from reluformers.families import FAMILIES

TINY = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
}
TINY_VISION = {
    "image_size": [8, 12],
    "patch_size": 4,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "pooling": "attention",
    "num_labels": 5,
}
PRESETS = list(ATTENTION_PRESETS)


def draw_pairs(lengths: tuple[int, ...] = (7, 4, 6), target_lengths: tuple[int, ...] = (5, 6, 3)) -> dict:
    """Right-padded source ids, their mask and labels."""
    torch.manual_seed(2)
    batch = {
        "input_ids": torch.zeros(len(lengths), max(lengths), dtype=torch.long),
        "attention_mask": torch.zeros(len(lengths), max(lengths), dtype=torch.long),
        "labels": torch.full((len(lengths), max(target_lengths)), -100),
    }
    for row, (length, target_length) in enumerate(zip(lengths, target_lengths, strict=True)):
        batch["input_ids"][row, :length] = torch.randint(4, TINY["vocab_size"], (length,))
        batch["attention_mask"][row, :length] = 1
        batch["labels"][row, :target_length] = torch.randint(4, TINY["vocab_size"], (target_length,))
    return batch


def draw_images(rows: int = 3, height: int = 8, width: int = 12) -> dict:
    """Pixels and classes."""
    torch.manual_seed(2)
    return {"pixel_values": torch.randn(rows, 3, height, width), "labels": torch.randint(5, (rows,))}


@dataclass(frozen=True)
class Kind:
    """What the common tests have to know of a kind of model."""

    config: Callable[..., Any]
    auto_class: type
    sizes: dict[str, Any]
    draw: Callable[..., dict]
    still: dict[str, float]  # every kind of chance in training, switched off
    # field of the output → shape of each layer's weights, for the batch of `draw`
    attentions: dict[str, list[tuple[int, ...]]]
    hidden_states: dict[str, int]


KINDS = {
    "seq2seq": Kind(
        seq2seq_config,
        AutoModelForSeq2SeqLM,
        TINY,
        draw_pairs,
        {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "word_dropout": 0.0},
        {
            "encoder_attentions": [(3, 2, 7, 7)] * 2,
            "decoder_attentions": [(3, 4, 6, 6)] * 3,
            "cross_attentions": [(3, 4, 6, 7)] * 3,
        },
        {"encoder_hidden_states": 3, "decoder_hidden_states": 4},
    ),
    "vision": Kind(
        vision_config,
        AutoModelForImageClassification,
        TINY_VISION,
        draw_images,
        {},
        {"attentions": [(3, 2, 6, 6)] * 3},
        {"hidden_states": 4},
    ),
}


def build_config(kind: str, preset: str, **overrides) -> Any:
    """A tiny configuration."""
    return KINDS[kind].config(preset, **{**KINDS[kind].sizes, **overrides})


def build_model(preset: str = "softmax", kind: str = "seq2seq", **overrides) -> nn.Module:
    """A tiny model in evaluation mode whose every parameter has been moved off its initial value."""
    torch.manual_seed(1)
    model = KINDS[kind].auto_class.from_config(build_config(kind, preset, **overrides)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def build_marian(vocab_size: int, **fields) -> MarianMTModel:
    """A Marian model of transformers as tiny as ours, from seed 0."""
    torch.manual_seed(0)
    ids = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    }
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
    return MarianMTModel(MarianConfig(**{"vocab_size": vocab_size, **ids, **sizes, **fields})).eval()


def logits_of(model: nn.Module, **overrides) -> torch.Tensor:
    """Logits of the batch that belongs to the kind of model."""
    kind = "vision" if model.main_input_name == "pixel_values" else "seq2seq"
    return model(**{**KINDS[kind].draw(), **overrides}).logits


MODELS = [(kind, preset) for kind in KINDS for preset in PRESETS]
# one preset for each family, the first that belongs to it
FAMILY_MODELS = [
    next(model for model in MODELS if type(build_config(*model)) is config_class) for config_class in FAMILIES
]
all_models = pytest.mark.parametrize(("kind", "preset"), MODELS)
all_family_models = pytest.mark.parametrize(("kind", "preset"), FAMILY_MODELS)
all_presets = pytest.mark.parametrize("preset", PRESETS)
