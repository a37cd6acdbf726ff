"""Weights in pieces on several devices (FSDP2), and their checkpoints.

Accelerate shards a model layer by layer. A weight that several modules hold has to be sharded with all of them at
once, since torch refuses one that two groups see; encoder–decoders have three: both embeddings and the output layer.
"""

from collections import defaultdict

from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from .arguments import TaskTrainingArguments


def check_sharding(accelerator: Accelerator, args: TaskTrainingArguments) -> None:
    """Refuse what does not go with weights in pieces, and attention in pieces altogether."""
    parallelism = accelerator.parallelism_config
    for name in ("cp", "sp", "tp"):
        if parallelism is not None and getattr(parallelism, f"{name}_size", 1) > 1:
            raise ValueError(f"parallelism_config_{name}_size divides softmax attention, and ours may be another")
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        return
    if plugin.fsdp_version != 2 or plugin.cpu_ram_efficient_loading:
        raise ValueError("fsdp_version must be 2, to share embeddings, and fsdp_cpu_ram_efficient_loading false")
    if args.final_weights:
        raise ValueError(f"training.{args.final_weights[0]} needs whole weights, but FSDP has them in pieces")


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
