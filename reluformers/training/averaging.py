"""Averages the weights of several checkpoints of one run."""

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from reluformers.files import atomic_directory, check_output_folder
from reluformers.saved_models import check_no_adapter, load_config, read_index

from .checkpoints import MANIFEST_FILE, TRAINING_FILES, check_finite, check_model, checkpoints_of, step_of

# beside them what holds the weights in another form
_LEFT_BEHIND = shutil.ignore_patterns(
    *TRAINING_FILES, "*.safetensors", "*.distcp", "global_step*", "latest", "runs", "__pycache__"
)


def last_checkpoints(run_folder: str | Path, count: int) -> list[Path]:
    """Return the last `count` folders `checkpoint-<step>` of a run, oldest first, sorted by step.

    Raises:
        ValueError: the folder is missing or holds fewer checkpoints.
    """
    run_folder = Path(run_folder)
    if not run_folder.is_dir():
        raise ValueError(f"{run_folder}: no such folder; give the folder that holds checkpoint-<step> folders.")
    folders = checkpoints_of(run_folder)
    if len(folders) < count:
        raise ValueError(
            f"{run_folder}: holds {len(folders)} checkpoint-<step> folders, but {count} are to be averaged."
        )
    return folders[-count:]


def average_checkpoints(folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write a checkpoint whose weights are the mean of several: w = (1/k) Σ_i w_i.

    Sums are float32 (or wider, where the weights are), the result keeps the stored type and the sharding of the last
    checkpoint. Integer and boolean tensors, and every file that is not weights or training state (config, code,
    tokenizer, generation config), come from the last checkpoint, so that `output` opens like any checkpoint.

    Args:
        folders: checkpoints with `model.safetensors` (or its shards and index), oldest first.
        output: folder to write; it appears complete or not at all.
        overwrite: whether an existing folder may be replaced.

    Returns:
        Path of the written folder.

    Raises:
        ValueError: a file is missing or not what a manifest says, the checkpoints hold different tensors, ones that
            are not finite or one step twice, or `output` is, holds or lies in a checkpoint.

    Source: Vaswani et al. 2017, §6.1 (last 5 checkpoints); ReLA's recipe averages the last 5 as well.
    """
    folders, output = [Path(folder) for folder in folders], Path(output)
    if not folders:
        raise ValueError("There are no checkpoints to average.")
    check_output_folder(output, *folders)
    for folder in folders:
        check_no_adapter(folder)
        check_model(folder)
    _check_distinct(folders)
    for folder in folders:
        if (folder / CONFIG_NAME).is_file():  # weights alone may be averaged too
            load_config(folder)
    layouts = [_weight_files(folder) for folder in folders]
    with ExitStack() as stack:
        readers = [_open_all(stack, layout) for layout in layouts]
        _check_same_tensors(readers)
        with atomic_directory(output, overwrite=overwrite) as temporary:
            shutil.copytree(folders[-1], temporary, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
            for path in layouts[-1]:
                _write_average(path, readers, temporary / path.name)
    return output


def _check_distinct(folders: list[Path]) -> None:
    """Refuse one checkpoint twice: itself, a link to it, or a copy, which the count of updates gives away."""
    first: dict[Any, Path] = {}
    for folder in folders:
        manifest, state = folder / MANIFEST_FILE, folder / TRAINER_STATE_NAME
        same = first.setdefault(manifest.read_bytes() if manifest.is_file() else folder.resolve(), folder)
        if same is not folder:
            raise ValueError(f"{folder}: is the same as {same}; leave one out.")
        step = step_of(folder)
        with suppress(OSError, ValueError, TypeError, KeyError):  # what is no state of the Trainer tells nothing
            step = json.loads(state.read_text(encoding="utf-8"))["global_step"]
        if step_of(folder) not in (None, step):
            raise ValueError(f"{folder}: is a copy of {PREFIX_CHECKPOINT_DIR}-{step}; leave one out.")


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold a checkpoint's weights."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        return [folder / SAFE_WEIGHTS_NAME]
    if not index.is_file():
        raise ValueError(f"{folder}: holds neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}.")
    names = read_index(index)
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: is named in {SAFE_WEIGHTS_INDEX_NAME} but missing.")
    return [folder / name for name in names]


def _open_all(stack: ExitStack, paths: list[Path]) -> dict[str, tuple[Path, safe_open]]:
    """Open the files of one checkpoint; return for each tensor its file and reader."""
    tensors = {}
    for path in paths:
        try:
            reader = stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: is damaged or cut short ({error}); leave this checkpoint out.") from error
        tensors.update((key, (path, reader)) for key in reader.keys())  # noqa: SIM118 (not a dict)
    if not tensors:
        raise ValueError(f"{paths[0]}: holds no tensors; leave this checkpoint out.")
    return tensors


def _check_same_tensors(readers: list[dict[str, tuple[Path, safe_open]]]) -> None:
    """Compare names, shapes and types of all checkpoints with those of the last."""
    last = readers[-1]
    last_file = next(iter(last.values()))[0]
    for tensors in readers[:-1]:
        file = next(iter(tensors.values()))[0]
        if different := sorted(tensors.keys() ^ last.keys()):
            raise ValueError(
                f"{file}: does not hold the same tensors as {last_file}, first difference {different[0]!r}."
            )
        for key, (path, reader) in tensors.items():
            mine, wanted = (store.get_slice(key) for store in (reader, last[key][1]))
            for what in ("shape", "dtype"):
                got, expected = (getattr(view, f"get_{what}")() for view in (mine, wanted))
                if got != expected:
                    raise ValueError(f"{path}: {key} has {what} {got}, but {expected} in {last[key][0]}.")


def _write_average(path: Path, readers: list[dict[str, tuple[Path, safe_open]]], output: Path) -> None:
    """Average every tensor of one file of the last checkpoint over all checkpoints."""
    last = readers[-1]
    averages = {key: _mean(key, readers) for key, (file, _) in last.items() if file == path}
    metadata = next(reader.metadata() for file, reader in last.values() if file == path)
    save_file(averages, output, metadata=metadata or {"format": "pt"})


def _mean(key: str, readers: list[dict[str, tuple[Path, safe_open]]]) -> torch.Tensor:
    """Return the mean of one tensor, or its last value where a mean makes no sense."""
    last = readers[-1][key][1].get_tensor(key)
    if not (last.is_floating_point() or last.is_complex()):
        return last
    total = torch.zeros_like(last, dtype=torch.promote_types(last.dtype, torch.float32))
    for tensors in readers:
        path, reader = tensors[key]
        total += (value := reader.get_tensor(key).to(total.dtype))
        check_finite({key: value}, path)
    return (total / len(readers)).to(last.dtype)
