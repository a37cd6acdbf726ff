"""Averages the weights of several checkpoints of one run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from reluformers.files import atomic_directory
from reluformers.saved_models import check_is_one_model, read_index

from .checkpoints import TRAINING_FILES, check_finite, check_model, checkpoints_of

# beside them what holds the weights in another form
_LEFT_BEHIND = shutil.ignore_patterns(
    *(*TRAINING_FILES, "*.safetensors", SAFE_WEIGHTS_INDEX_NAME, "*.distcp", "global_step*", "latest", "runs"),
    "__pycache__",
)


def last_checkpoints(run_folder: str | Path, count: int) -> list[Path]:
    """Return the last `count` folders `checkpoint-<step>` of a run, by step; a ValueError if it holds fewer."""
    folders = checkpoints_of(run_folder)
    if len(folders) < count:
        raise ValueError(f"{run_folder}: holds {len(folders)} complete checkpoints, but {count} are to be averaged")
    return folders[-count:]


def average_checkpoints(folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write a checkpoint with the `mean_weights` of several.

    Every file that is not weights or training state (config, code, tokenizer, generation config) comes from the last
    checkpoint, so that `output` opens like any checkpoint; it appears complete or not at all.
    """
    folders, output = [Path(folder) for folder in folders], Path(output)
    means = mean_weights(folders)
    with atomic_directory(output, *folders, overwrite=overwrite) as temporary:
        shutil.copytree(folders[-1], temporary, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
        save_torch_state_dict(means, temporary)
    return output


def mean_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints: w = (1/k) Σ_i w_i.

    Sums are float32 (or wider, where the weights are), the result keeps the stored type. Integer and boolean tensors
    come from the last checkpoint. All weights have to be finite.

    Source: Vaswani et al. 2017, §6.1 (last 5 checkpoints); ReLA's recipe averages the last 5 as well.
    """
    last: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for folder in folders:
        check_is_one_model(folder)
        check_model(folder)
        last = _weights(folder)
        check_finite(last, folder)
        shapes = [{name: weight.shape for name, weight in weights.items()} for weights in (sums, last)]
        if folder is not folders[0] and shapes[0] != shapes[1]:
            raise ValueError(f"{folder}: holds other tensors than {folders[0]}")
        for name, weight in last.items():
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            sums[name] = sums[name] + wide if name in sums else wide
    return {
        name: (sums[name] / len(folders)).to(weight.dtype) if weight.is_floating_point() else weight
        for name, weight in last.items()
    }


def _weights(folder: Path) -> dict[str, Tensor]:
    """Every stored tensor of a checkpoint."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    names = read_index(index) if index.is_file() else [SAFE_WEIGHTS_NAME]
    return {name: weight for file in names for name, weight in load_file(folder / file).items()}
