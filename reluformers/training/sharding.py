"""Weights in pieces on several devices (FSDP2), their checkpoints, and one folder of all pieces again.

Accelerate shards a model layer by layer. A weight that several modules hold has to be sharded with all of them at
once, since torch refuses one that two groups see; encoder–decoders have three: both embeddings and the output layer.
"""

import pickle
import shutil
from collections import defaultdict
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import SAFE_WEIGHTS_NAME, merge_fsdp_weights
from accelerate.utils.constants import FSDP_MODEL_NAME
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException, filesystem, metadata
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reluformers.files import atomic_directory, check_output_folder
from reluformers.saved_models import check_size, load_config, opening

from .arguments import TaskTrainingArguments
from .checkpoints import TRAINING_FILES, check_checkpoint, check_finite

SHARDED_WEIGHTS = f"{FSDP_MODEL_NAME}_0"
# what a record of pieces is made of; a pickle may name any function, and calls it as it is read
_PARTS_OF_RECORD = {
    metadata.__name__: (
        *("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex"),
        *("StorageMeta", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    filesystem.__name__: ("_StorageInfo",),
    "torch": ("Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))),
    "torch.serialization": ("_get_layout",),
    **dict.fromkeys(("pathlib", "pathlib._local"), ("PosixPath", "WindowsPath")),
}
_LEFT_BEHIND = shutil.ignore_patterns(*TRAINING_FILES, SHARDED_WEIGHTS, "optimizer_0")


def check_sharding(accelerator: Accelerator, args: TaskTrainingArguments) -> None:
    """Refuse what does not go with weights in pieces, and attention in pieces altogether.

    Raises:
        ValueError: names the setting.
    """
    parallelism = accelerator.parallelism_config
    for name in ("cp", "sp", "tp"):
        if parallelism is not None and (size := getattr(parallelism, f"{name}_size", 1)) > 1:
            raise ValueError(
                f"parallelism_config_{name}_size is {size}, but must be 1: context, sequence and tensor parallelism "
                "divide softmax attention, and ours may be another; take dp_shard_size and dp_replicate_size"
            )
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        return
    if plugin.fsdp_version != 2:
        raise ValueError("fsdp_version is 1, but must be 2: the first one cannot share embeddings")
    if plugin.cpu_ram_efficient_loading:
        raise ValueError("fsdp_cpu_ram_efficient_loading is true, but must be false: a new model has no file to load")
    for name in args.final_weights:
        raise ValueError(
            f"training.{name} needs whole weights, but FSDP has them in pieces: leave it out, and average folders "
            "of `reluformers merge` afterwards"
        )


def shard_tied_weights(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard every weight that several modules hold with all of these, as Accelerate will shard the others.

    Args:
        model: on any device; `Accelerator.prepare` skips what is sharded already.
        accelerator: of FSDP2; its checkpoints are written in pieces from now on.
    """
    plugin, mesh = accelerator.state.fsdp_plugin, accelerator.torch_device_mesh
    plugin.set_state_dict_type("SHARDED_STATE_DICT")
    holders = defaultdict(list)
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders[weight].append(module)
    for weight, modules in holders.items():
        if len(modules) == 1:
            continue
        # as Accelerate does it with the others
        if accelerator.mixed_precision != "no":
            weight.data = weight.data.float()
        fully_shard(
            modules,
            mesh=None if mesh is None else mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)],
            reshard_after_forward=plugin.reshard_after_forward,
            mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy(),
            offload_policy=plugin.cpu_offload,
        )


class _RecordUnpickler(pickle.Unpickler):
    """Reads `.metadata` of pieces, and calls nothing that has no place in it."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _PARTS_OF_RECORD.get(module, ()):
            raise ValueError(f".metadata names {module}.{name}, which is no part of a record of pieces")
        return super().find_class(module, name)


def _sizes_of_pieces(folder: Path) -> list[int]:
    """Numbers in each tensor of a folder of pieces, which torch may then read: its record brings no code.

    Raises:
        ValueError: there is something else in it, elsewhere, or more than its files can hold.
    """
    with open(folder / ".metadata", "rb") as file:
        record = _RecordUnpickler(file).load()
    for name, entry in record.state_dict_metadata.items():
        if not isinstance(entry, metadata.TensorStorageMetadata):
            raise ValueError(f".metadata has {name}, which is no tensor")
    for place in record.storage_data.values():
        if Path(place.relative_path).name != place.relative_path or not (folder / place.relative_path).is_file():
            raise ValueError(f".metadata names {place.relative_path!r}, which is no file beside it")
    sizes = [prod(entry.size) for entry in record.state_dict_metadata.values()]
    if sum(sizes) > sum(path.stat().st_size for path in folder.iterdir()):
        raise ValueError(f".metadata names {sum(sizes)} numbers, more than the files beside it can hold")
    return sizes


def read_sharded_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """All weights of a checkpoint that was written in pieces, on the CPU.

    Raises:
        ValueError: the pieces are damaged, or their record is none.
    """
    with opening(checkpoint, SHARDED_WEIGHTS), TemporaryDirectory() as folder:
        _sizes_of_pieces(Path(checkpoint, SHARDED_WEIGHTS))
        try:
            merge_fsdp_weights(str(Path(checkpoint, SHARDED_WEIGHTS)), folder)
        except CheckpointException as error:  # which is no Exception
            raise ValueError(f"its files are not those of .metadata ({error.failures})") from error
        return load_file(Path(folder, SAFE_WEIGHTS_NAME))


def merge_checkpoint(checkpoint: str | Path, output: str | Path, auto_class: type, *, overwrite: bool = False) -> Path:
    """Make a folder that opens anywhere of a checkpoint in pieces.

    Args:
        checkpoint: folder `checkpoint-<step>` that was written with FSDP; verified first.
        output: folder to write; it appears complete or not at all.
        auto_class: opens models of its task.
        overwrite: whether an existing folder may be replaced.

    Returns:
        Path of the written folder.

    Raises:
        ValueError: the checkpoint is damaged, not finite or not in pieces, or `output` is, holds or lies in one.
    """
    checkpoint = Path(checkpoint)
    if not (checkpoint / SHARDED_WEIGHTS).is_dir():
        raise ValueError(f"{checkpoint}: holds no {SHARDED_WEIGHTS}; whole checkpoints open as they are")
    check_output_folder(output, checkpoint)
    check_checkpoint(checkpoint)
    config = load_config(checkpoint)
    with opening(checkpoint, SHARDED_WEIGHTS):
        sizes = _sizes_of_pieces(checkpoint / SHARDED_WEIGHTS)
    check_size(checkpoint, config, lambda: auto_class.from_config(config), sizes)
    model = auto_class.from_config(config)
    weights = read_sharded_weights(checkpoint)
    check_finite(weights, checkpoint)
    with opening(checkpoint, "the model"):
        model.load_state_dict(weights)
    with atomic_directory(output, overwrite=overwrite) as temporary:
        model.save_pretrained(temporary)
        shutil.copytree(checkpoint, temporary, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
    return Path(output)
