"""Folders of finished runs, as far as a model card reads them."""

import json
from pathlib import Path
from typing import Any

import yaml
from transformers import PreTrainedConfig

from reluformers import seq2seq_config

SIGNATURES = {"bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0", "chrf": "nrefs:1|nc:6|nw:0"}
SIZES = {
    "vocab_size": 4000,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "norm_position": "pre",
    "label_smoothing": 0.1,
}
DECODING = {"num_beams": 5, "length_penalty": 1.0, "penalty": "hf", "max_tokens": 4096}


def attention_statistics(zeros: float, *sites: str) -> dict[str, Any]:
    row = {"zeros": zeros, "null_rate": zeros / 8, "entropy": 1.25, "row_sum": 1.0, "rows": 5000}
    empty = {**row, "null_rate": 1.0, "entropy": None, "row_sum": 0.0}
    report: dict[str, Any] = {site: {"layers": [row, empty], "overall": {**row, "rows": 10000}} for site in sites}
    return {**report, "overall": {**row, "rows": 10000 * len(sites)}}


def translation_evaluation(bleu: float, zeros: float) -> dict[str, Any]:
    return {
        "format_version": 2,
        "task": "translation",
        "model": "/home/someone/runs/model",
        "data": {
            "source": "/home/someone/data/test.jsonl.gz",
            "split": "test",
            "rows": 1000,
            "unit": "sentences",
            "source_lang": "en",
            "target_lang": "de",
        },
        "decoding": DECODING,
        "scores": {
            "bleu": {"value": bleu, "signature": SIGNATURES["bleu"]},
            "chrf": {"value": 2 * bleu, "signature": SIGNATURES["chrf"]},
        },
        "circumstances": {"device": "cpu"},
        "attention": attention_statistics(zeros, "encoder", "decoder", "cross"),
    }


def recipe(preset: str) -> dict[str, dict[str, Any]]:
    data = {"train": "/home/someone/data/train.jsonl.gz", "source_lang": "en", "target_lang": "de"}
    training = {
        "max_tokens": 2000,
        "learning_rate": 0.002,
        "lr_scheduler_type": "inverse_sqrt",
        "warmup_steps": 0.1,
        "optim": "adamw_torch_fused",
        "adam_beta2": 0.98,
        "seed": 1,
        "average_last": 5,
        "bf16": True,
        "logging_steps": 50 if preset == "softmax" else 100,
    }
    return {"model": {"preset": preset}, "tokenizer": {"vocab_size": 4000}, "data": data, "training": training}


def write_run(folder: Path, config: PreTrainedConfig, **files: Any) -> Path:
    """Write config.json and one file for each keyword."""
    config.save_pretrained(folder)
    for name, content in files.items():
        if name == "recipe":
            (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def translation_run(folder: Path, preset: str = "reluformer", bleu: float = 35.9932, zeros: float = 0.64) -> Path:
    """A run that knows everything about itself."""
    return write_run(
        folder,
        seq2seq_config(preset, **SIZES),
        recipe=recipe(preset),
        log_history=[{"loss": 2.0, "epoch": 1.0}, {"epoch": 20.0}],
        results={
            "parameters": 1837568,
            "steps": 5220,
            "test_bleu": 1.0,
            "training_seconds": 1747.6,
            "device": "cpu",
            "torch": "2.13.0",
            "transformers": "5.23.0",
        },
        evaluation=translation_evaluation(bleu, zeros),
    )
