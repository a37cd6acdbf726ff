"""A toy language and a tiny recipe, for the tests of training."""

import json
import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from reluformers.translation.recipe import TranslationRecipe
from reluformers.translation.trainer import TranslationTrainer

WORDS = ["red", "green", "big", "small", "old", "dog", "cat", "house", "tree", "runs", "sees", "likes", "one", "two"]
SIZES = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "norm_position": "pre",
    "max_position_embeddings": 40,
}


def write_pairs(folder: Path, name: str, rows: int) -> dict[str, str]:
    """Parallel text whose target spells each source word backwards."""
    rng = random.Random(name)
    sources = [" ".join(rng.choices(WORDS, k=rng.randint(2, 7))) for _ in range(rows)]
    targets = [" ".join(word[::-1] for word in source.split()) for source in sources]
    paths = {"source": folder / f"{name}.en", "target": folder / f"{name}.de"}
    for path, lines in zip(paths.values(), (sources, targets), strict=True):
        path.write_text("\n".join(lines) + "\n")
    return {side: str(path) for side, path in paths.items()}


def write_toy_files(folder: Path) -> dict[str, dict[str, str]]:
    """A training and a validation set of the toy language."""
    return {"train": write_pairs(folder, "train", 120), "validation": write_pairs(folder, "validation", 6)}


def copy_as_interrupted(whole: Path, copy: Path, step: int = 2) -> Path:
    """A copy of a finished run as if it had been stopped behind an update of the first epoch."""
    shutil.copytree(whole, copy)
    for folder in copy.glob("checkpoint-*"):
        if folder.name != f"checkpoint-{step}":
            shutil.rmtree(folder)
    state = json.loads((copy / f"checkpoint-{step}" / "trainer_state.json").read_text())
    assert 0 < state["epoch"] <= 1
    return copy


def assert_same_weights(folder: Path, other: Path) -> None:
    """Two models have the same weights, to the bit."""
    weights, others = (load_file(each / "model.safetensors") for each in (folder, other))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, others[name]), name


def check_resuming(train, recipe, folder: Path, step: int = 2) -> tuple[Path, Path]:
    """A run and one that was stopped within its first epoch end with the same weights and have the same log."""
    whole, resumed = folder / "whole", folder / "resumed"
    train(recipe, whole)
    train(recipe, copy_as_interrupted(whole, resumed, step), resume="last")
    assert_same_weights(whole, resumed)
    keys = ("step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss", "eval_bleu", "eval_accuracy")
    logs = [json.loads((each / "log_history.json").read_text()) for each in (whole, resumed)]
    logs = [[{key: entry.get(key) for key in keys} for entry in log] for log in logs]
    assert logs[0] == logs[1]
    return whole, resumed


def check_accumulated(whole, halves) -> list[list[dict]]:
    """Trainers make the same updates, of which one accumulates halves of the other's batches; gives their logs."""
    for trainer in (whole, halves):
        trainer.train()
    logs = [training_logs(trainer) for trainer in (whole, halves)]
    for expected, entry in zip(*logs, strict=True):
        assert abs(entry["loss"] - expected["loss"]) < 1e-5 * expected["loss"]
        assert abs(entry["grad_norm"] - expected["grad_norm"]) < 1e-4 * expected["grad_norm"]
    weights = dict(halves.model.named_parameters())
    for name, weight in whole.model.named_parameters():
        torch.testing.assert_close(weights[name], weight, rtol=1e-3, atol=1e-5)
    return logs


def make_recipe(files: dict[str, dict[str, str]], *, preset: str = "reluformer", **training) -> TranslationRecipe:
    return TranslationRecipe.from_dict(
        {
            "model": {"preset": preset, **SIZES},
            "tokenizer": {"vocab_size": 100},
            "data": {"source_lang": "en", "target_lang": "de", **files},
            "training": {
                "max_tokens": 400,
                "num_train_epochs": 2,
                "learning_rate": 5e-3,
                "logging_steps": 1,
                "save_strategy": "epoch",
                "disable_tqdm": True,
                "seed": 3,
                **training,
            },
            "decoding": {"num_beams": 1, "max_new_tokens": 20},
        }
    )


def training_logs(folder_or_trainer: Path | TranslationTrainer) -> list[dict]:
    if isinstance(folder_or_trainer, Path):
        history = json.loads((folder_or_trainer / "log_history.json").read_text())
    else:
        history = folder_or_trainer.state.log_history
    return [entry for entry in history if "loss" in entry]
