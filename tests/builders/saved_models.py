"""Small models as a push would leave them, for the tests of the app."""

from pathlib import Path

import torch
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, ViTImageProcessorPil

from reluformers import seq2seq_config, vision_config
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer

TEXTS = [
    "A man in a blue hat is riding a horse on the beach.",
    "Two dogs run over green grass & a $5 bill lies there.",
    "Ein Mann mit einem blauen Hut reitet am Strand.",
]
HEADS = 2


def save_translator(folder: Path, preset: str = "reluformer", *, separate: bool = False, **fields) -> Path:
    """An untrained translation model with its tokenizers; with `separate` ones, the target's is smaller."""
    tokenizer = train_tokenizer(TEXTS, 120)
    target = train_tokenizer(TEXTS[2:], 60) if separate else None
    config = seq2seq_config(
        preset,
        vocab_size=len(tokenizer),
        **({"decoder_vocab_size": len(target), "tying": "decoder"} if separate else {}),
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        **fields,
    )
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    save_tokenizers(folder, tokenizer, target)
    return folder


def save_classifier(folder: Path, preset: str = "relu-vit", **fields) -> Path:
    """An untrained image classifier with 2 × 3 patches and its image processor."""
    sizes = {"image_size": [8, 12], "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": HEADS, "intermediate_size": 16, "id2label": {0: "cat", 1: "dog", 2: "horse"}}
    config = vision_config(preset, **{**sizes, **fields})
    AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 8, "width": 12}).save_pretrained(folder)
    return folder


def disturb(folder, auto_class, **options) -> torch.nn.Module:
    """Move every parameter of a saved model off its initial value, so that its attention is not near nothing."""
    torch.manual_seed(3)
    model = auto_class.from_pretrained(folder, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.eval()
