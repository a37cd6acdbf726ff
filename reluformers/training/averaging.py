"""Averages the weights of several checkpoints of one run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from reluformers.files import atomic_directory, check_output_folder
from reluformers.saved_models import check_no_adapter, load_config, opening, read_index

from .checkpoints import TRAINING_FILES, check_finite, check_model, checkpoints_of

# beside them what holds the weights in another form
_LEFT_BEHIND = shutil.ignore_patterns(
    *(*TRAINING_FILES, "*.safetensors", SAFE_WEIGHTS_INDEX_NAME, "*.distcp", "global_step*", "latest", "runs"),
    "__pycache__",
)


def last_checkpoints(run_folder: str | Path, count: int) -> list[Path]:
    """Return the last `count` folders `checkpoint-<step>` of a run, oldest first, sorted by step.

    Raises:
        ValueError: the folder holds fewer checkpoints.
    """
    folders = checkpoints_of(run_folder)
    if len(folders) < count:
        raise ValueError(f"{run_folder}: holds {len(folders)} complete checkpoints, but {count} are to be averaged")
    return folders[-count:]


def average_checkpoints(folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write a checkpoint whose weights are the mean of several: w = (1/k) Σ_i w_i.

    Sums are float32 (or wider, where the weights are), the result keeps the stored type. Integer and boolean tensors,
    and every file that is not weights or training state (config, code, tokenizer, generation config), come from the
    last checkpoint, so that `output` opens like any checkpoint.

    Args:
        folders: checkpoints with `model.safetensors` (or its shards and index), oldest first.
        output: folder to write; it appears complete or not at all.
        overwrite: whether an existing folder may be replaced.

    Returns:
        Path of the written folder.

    Raises:
        ValueError: a file is missing or not what a manifest says, the checkpoints hold different tensors or ones that
            are not finite, or `output` is, holds or lies in a checkpoint.

    Source: Vaswani et al. 2017, §6.1 (last 5 checkpoints); ReLA's recipe averages the last 5 as well.
    """
    folders, output = [Path(folder) for folder in folders], Path(output)
    check_output_folder(output, *folders)
    last: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for folder in folders:
        check_no_adapter(folder)
        check_model(folder)
        if (folder / CONFIG_NAME).is_file():  # weights alone may be averaged too
            load_config(folder)
        last = _weights(folder)
        check_finite(last, folder)
        shapes = [{name: weight.shape for name, weight in weights.items()} for weights in (sums, last)]
        if folder is not folders[0] and shapes[0] != shapes[1]:
            raise ValueError(f"{folder}: holds other tensors than {folders[0]}")
        for name, weight in last.items():
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            sums[name] = sums[name] + wide if name in sums else wide
    means = {
        name: (sums[name] / len(folders)).to(weight.dtype) if weight.is_floating_point() else weight
        for name, weight in last.items()
    }
    with atomic_directory(output, overwrite=overwrite) as temporary:
        shutil.copytree(folders[-1], temporary, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
        save_torch_state_dict(means, temporary)
    return output


def _weights(folder: Path) -> dict[str, Tensor]:
    """Every stored tensor of a checkpoint."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    names = read_index(index) if index.is_file() else [SAFE_WEIGHTS_NAME]
    with opening(folder, "its weights"):
        return {name: weight for file in names for name, weight in load_file(folder / file).items()}
