"""FSDP2 on two processes: the numbers of DDP, a tie that holds, beams, and going on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import merge_fsdp_weights
from safetensors.torch import load_file

from builders.commands import launch
from builders.translation_runs import assert_same_weights, copy_as_interrupted, make_recipe, write_toy_files
from reluformers.training.trainer import check_sharding
from reluformers.translation.recipe import TranslationTrainingArguments

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
TIED = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize(
    ("sizes", "plugin", "named"),
    [
        ({"cp_size": 2}, None, "parallelism_config_cp_size"),
        ({}, {"fsdp_version": 2, "cpu_ram_efficient_loading": False}, "ema_decay"),
        ({}, {"fsdp_version": 2, "cpu_ram_efficient_loading": True}, "fsdp_cpu_ram_efficient_loading"),
        ({}, {"fsdp_version": 1, "cpu_ram_efficient_loading": False}, "fsdp_version"),
    ],
)
def test_what_does_not_go_in_pieces_is_refused(tmp_path, sizes, plugin, named):
    args = TranslationTrainingArguments(str(tmp_path), use_cpu=True, ema_decay=0.5)
    state = SimpleNamespace(fsdp_plugin=plugin and SimpleNamespace(**plugin))
    with pytest.raises(ValueError, match=named):
        check_sharding(SimpleNamespace(parallelism_config=SimpleNamespace(**sizes), state=state), args)


def run_sharded(recipe, folder: Path, resume: str = "") -> None:
    script = Path(__file__).parents[1] / "builders" / "sharded_training.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d"]
    command += ["--rdzv_endpoint=127.0.0.1:0", str(script), str(folder), json.dumps(recipe.to_dict()), resume]
    environment = {**os.environ, **FSDP, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_weights_in_pieces_train_as_whole_ones(tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "max_tokens": 100}
    # Adam's first updates divide a gradient near ε by its own size, so that rounding would grow to a learning rate.
    options |= {"learning_rate": 1e-3, "adam_epsilon": 1e-4}
    recipe = make_recipe(write_toy_files(tmp_path), **options)
    # of an odd number of tokens, which no two processes can share evenly
    recipe.tokenizer.vocab_size = 101
    recipe.model |= {"dropout": 0.0, "attention_dropout": 0.0}
    recipe.decoding.num_beams = 3
    recipe.save(tmp_path / "recipe.yaml")
    launch("train.py", 2, tmp_path / "recipe.yaml", "--output_dir", tmp_path / "whole")
    run_sharded(recipe, tmp_path / "sharded")

    folders = [tmp_path / name for name in ("whole", "sharded")]
    logs = [json.loads((folder / "log_history.json").read_text()) for folder in folders]
    numbers = [[[entry[key] for key in ("loss", "grad_norm")] for entry in log if "loss" in entry] for log in logs]
    torch.testing.assert_close(torch.tensor(numbers[1]), torch.tensor(numbers[0]), rtol=1e-3, atol=1e-4)
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-3, atol=1e-4, msg=name)
    results = [json.loads((folder / "results.json").read_text()) for folder in folders]
    for key in ("examples", "validation_bleu", "parameters"):
        assert results[0][key] == results[1][key]

    # one tie, through both updates between the checkpoints
    for step in "24":
        merge_fsdp_weights(str(folders[1] / f"checkpoint-{step}" / "pytorch_model_fsdp_0"), str(tmp_path / step))
    first, last = (load_file(tmp_path / step / "model.safetensors") for step in "24")
    assert not torch.equal(first[TIED[0]], last[TIED[0]])
    for pieces in (first, last):
        assert torch.equal(pieces[TIED[0]], pieces[TIED[1]])
        assert torch.equal(pieces[TIED[0]], pieces[TIED[2]])

    resumed = copy_as_interrupted(folders[1], tmp_path / "resumed")
    for _ in range(2):  # at its end, too
        run_sharded(recipe, resumed, "last")
        assert_same_weights(folders[1], resumed)
        (resumed / "model.safetensors").unlink()
