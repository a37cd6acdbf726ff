"""A toy language, a tiny recipe and the commands, for the tests of training."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from reluformers.errors import run_main
from reluformers.images import ImageRecipe
from reluformers.training.recipe import Recipe
from reluformers.translation import TranslationRecipe, TranslationTrainer

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

# the command that a recipe of the repository names at its head → its class
COMMANDS = {"train_translation.py": TranslationRecipe, "train_image_classification.py": ImageRecipe}


def recipe_class(path: Path) -> type[Recipe]:
    """The task of a recipe of the repository."""
    text = path.read_text(encoding="utf-8")
    (found,) = (recipe for command, recipe in COMMANDS.items() if command in text)
    return found


def write_pairs(folder: Path, name: str, rows: int) -> dict[str, str]:
    """Parallel text whose target spells each source word backwards."""
    rng = random.Random(name)
    sources = [" ".join(rng.choices(WORDS, k=rng.randint(2, 7))) for _ in range(rows)]
    targets = [" ".join(word[::-1] for word in source.split()) for source in sources]
    paths = {"source": folder / f"{name}.en", "target": folder / f"{name}.de"}
    for path, lines in zip(paths.values(), (sources, targets), strict=True):
        path.write_text("\n".join(lines) + "\n")
    return {side: str(path) for side, path in paths.items()}


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


def run_script(monkeypatch, script: Path, *arguments) -> None:
    """Run a command in this process."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    run_main(module.main)


def launch(script: Path, processes: int, *arguments) -> str:
    """Output of a command in processes of its own on the CPU."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--master_addr=127.0.0.1"]
        launcher += ["--rdzv_endpoint=127.0.0.1:0", "--rdzv_backend=c10d"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(
        [*launcher, str(script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
