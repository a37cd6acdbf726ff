"""Tiny models of every family and preset, which the model tests run over."""

import torch
from transformers import AutoModelForSeq2SeqLM

from reluformers import ATTENTION_PRESETS, seq2seq_config
from reluformers.registry import FAMILIES

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
PRESETS = list(ATTENTION_PRESETS)
# one preset for each family, the first that belongs to it
FAMILY_PRESETS = [
    next(name for name in PRESETS if type(seq2seq_config(name, **TINY)) is config_class) for config_class in FAMILIES
]


def build_model(preset: str = "softmax", **overrides) -> torch.nn.Module:
    """A tiny model in evaluation mode whose every parameter has been moved off its initial value."""
    torch.manual_seed(1)
    model = AutoModelForSeq2SeqLM.from_config(seq2seq_config(preset, **{**TINY, **overrides})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def draw_batch(lengths: tuple[int, ...] = (7, 4, 6), target_lengths: tuple[int, ...] = (5, 6, 3)) -> dict:
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
