"""Exchanges the attention of a model of transformers, parameters included, and takes it back.

model = AutoModelForCausalLM.from_pretrained(ID)
exchange_attention(model, "rela-g")
"""

import inspect
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .attentions import check_attention, is_ours, watch_first_forward
from .configuration.configuration_attention import AttentionConfig
from .files import read_json, write_json
from .modeling.attention_interface import InterfaceAttention
from .modeling.modeling_exchanged import (
    IMPLEMENTATION,
    SUBMODULE,
    attach,
    calls_interface,
    exchanged_class,
)

ADAPTER_CONFIG = "exchanged_attention.json"
ADAPTER_WEIGHTS = "exchanged_attention.safetensors"
# Modules of transformers hold their number of heads and head width under these names.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_local_heads")
_HEAD_DIM = ("qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
# The 1.0 in their `forward` is added to a temperature, and is not the scale of their attention.
_ADDS_ONE = ("InklingAttention", "Llama4TextAttention")
_OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "o", "wo", "Wo", "proj", "out")


def exchange_attention(
    model: PreTrainedModel, attention: str | dict[str, Any] | AttentionConfig, sites: Iterable[str] | None = None
) -> PreTrainedModel:
    """Exchange softmax in the attention modules of a model of transformers, in place.

    The model keeps its weights and its class becomes a subclass of its own, which saves and opens what was exchanged.
    New scalars start as the `AttentionConfig` says, a learned a of dot products from the scaling of the module.

    Args:
        model: of transformers, whose attention calls the interface of transformers.
        attention: a preset's name, fields, or an `AttentionConfig`.
        sites: patterns of names of modules, such as `"model.decoder.layers.*.self_attn"`; None for all.

    Returns:
        The model.

    Raises:
        ValueError: the model cannot take the attention, is exchanged already, or a pattern fits no attention module.
    """
    if not isinstance(model, PreTrainedModel) or getattr(transformers, type(model).__name__, None) is not type(model):
        raise ValueError(f"the model is a {type(model).__name__}, but must be of a class of transformers itself")
    if (model._tp_size or 1) > 1:
        raise ValueError("the model is split over several processes: exchange its attention, save it and open that")
    config = AttentionConfig.parse(attention)
    name = f"the attention {config.preset_name or 'given'}"
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            check_attention(type(part), part.config, config, name)
    InterfaceAttention(config)  # Raises what it cannot compute before anything is changed.
    chosen = _chosen(model, ["*"] if sites is None else list(sites), config)
    configs = _configs_of(model)
    before = [part._attn_implementation for part in configs]
    if sites is not None and any(map(is_ours, before)):
        raise ValueError("the model has an attention by name, which other modules would lose: set 'sdpa', or no sites")
    modules = {name: _sizes(module) for name, module in chosen.items()}
    model.config.exchanged = {"attention": config.to_dict(), "modules": modules}
    devices_and_dtypes = [_place_of(module) for module in chosen.values()]
    attach(model)
    for module, device_and_dtype in zip(chosen.values(), devices_and_dtypes, strict=True):
        added = getattr(module, SUBMODULE).to(**device_and_dtype)
        added.train(module.training)
        if added.scale is not None and config.score == "dot":
            own, scaling = _scalings_of(module)
            init.constant_(added.scale, scaling if config.scale is None else config.scale / own)
    model.__class__ = exchanged_class(type(model))
    for part in configs:
        part._attn_implementation_internal = IMPLEMENTATION
    watch_first_forward(model)
    model.attention_before = before
    # An adapter of PEFT that names the original model would open with softmax.
    model.base_name = model.name_or_path
    model.name_or_path = ""
    return model


def restore_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Take an exchanged attention off again: the model computes to the bit what it did before."""
    model.__class__ = model.base_class
    for name in _sites(model):
        model.get_submodule(name)._modules.pop(SUBMODULE, None)
    del model.config.exchanged
    before = getattr(model, "attention_before", None)
    if before is None:  # The model was opened exchanged: each part gets the default of its class.
        before = [part.get_correct_attn_implementation(None) for part in _parts_of(model)]
    for part, name in zip(_configs_of(model), before, strict=True):
        part._attn_implementation_internal = name
    model.name_or_path = getattr(model, "base_name", model.name_or_path)
    return model


def save_adapter(model: PreTrainedModel, folder: str | Path) -> None:
    """Save the parameters of an exchanged attention alone, beside the name of the model that they belong to."""
    folder = Path(folder)
    weights = {name: part.contiguous() for name, part in model.state_dict().items() if f".{SUBMODULE}." in f".{name}"}
    exchanged = {name: model.config.exchanged[name] for name in ("attention", "modules")}
    text = {
        "base_model": getattr(model, "base_name", model.name_or_path),
        "base_class": model.base_class.__name__,
        **exchanged,
        "sites": _sites(model),
    }
    # An earlier JSON is removed first and the new one written last, so that it never stands beside unfinished or other
    # weights.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADAPTER_CONFIG).unlink(missing_ok=True)
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    write_json(folder / ADAPTER_CONFIG, text)


def load_adapter(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Exchange the attention of a model as `save_adapter` saved it.

    Raises:
        ValueError: the adapter belongs to a model of another class or of other layers.
        RuntimeError: its weights are not those of its attention.
    """
    folder = Path(folder)
    saved = read_json(folder / ADAPTER_CONFIG)
    sites = saved.get("sites", list(saved["modules"]))
    own = _sites(model)
    if (saved["base_class"], sites) != (type(model).__name__, own):
        raise ValueError(f"{folder} belongs to a {saved['base_class']} of {len(sites)} attention modules, not to this")
    weights = load_file(folder / ADAPTER_WEIGHTS)
    exchange_attention(model, saved["attention"], saved["modules"])
    others = {name: part for name, part in model.state_dict().items() if SUBMODULE not in name.split(".")}
    # Loading is strict about names and shapes; weights of the model itself stay, whatever is in the file.
    try:
        model.load_state_dict({**weights, **others})
    except RuntimeError:
        restore_attention(model)
        raise
    return model


def _sites(model: PreTrainedModel) -> list[str]:
    """Names of all modules whose attention can be exchanged."""
    return [name for name, module in model.named_modules() if calls_interface(type(module))]


def _chosen(model: PreTrainedModel, patterns: list[str], config: AttentionConfig) -> dict[str, nn.Module]:
    """The attention modules whose names fit one of the patterns, each of which must fit one."""
    sites = _sites(model)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in sites):
            raise ValueError(
                f"sites has {pattern!r}, which fits no attention module, such as {next(iter(sites), '-')}"
            )
    chosen = [name for name in sites if any(fnmatchcase(name, pattern) for pattern in patterns)]
    modules = {name: model.get_submodule(name) for name in chosen}
    for name, module in modules.items():
        if config.exclusive_output and not getattr(module, "is_causal", False):
            raise ValueError(f"{name} is not causal, as exclusive_output needs it: give the sites of a decoder")
    return modules


def _parts_of(model: PreTrainedModel) -> list[PreTrainedModel]:
    """The parts of a model that are models, the first of each configuration."""
    parts: dict[int, PreTrainedModel] = {}
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            parts.setdefault(id(part.config), part)
    return list(parts.values())


def _configs_of(model: PreTrainedModel) -> list:
    """The configurations of all parts of a model, each once."""
    return [part.config for part in _parts_of(model)]


def _place_of(module: nn.Module) -> dict[str, Any]:
    """Device and type of a module's numbers; float32 where all of them are packed integers."""
    tensors = [*module.parameters(), *module.buffers()]
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    if tensors:
        return {"device": tensors[0].device, "dtype": dtype}
    return {}


def _scalings_of(module: nn.Module) -> tuple[float, float]:
    """What an attention module has scaled its queries by, and what it multiplies their dot products by."""
    code = inspect.unwrap(type(module).forward).__code__
    has_one = any(type(constant) is float and constant == 1 for constant in code.co_consts)
    if has_one and type(module).__name__ not in _ADDS_ONE:  # It is the scale of the call.
        own = getattr(module, "scaling", 1.0)
        is_normed = getattr(module, SUBMODULE).query_norm is not None  # The norm takes the scale off again.
        return (1.0, own) if is_normed else (own, 1.0)
    name = next((name for name in ("scaling", "scale") if name in code.co_names), "scaling")
    scaling = getattr(module, name, None)
    return 1.0, scaling if isinstance(scaling, float) else getattr(module, SUBMODULE).scale.item()


def _sizes(module: nn.Module) -> list[int]:
    """Number of heads, width of a head, and width of all outputs of an attention module."""
    linear = [part for name in _OUTPUTS if hasattr(part := getattr(module, name, None), "in_features")]
    output = linear[0].in_features if linear else None
    if output is None and isinstance(getattr(module, "c_proj", None), nn.Module):  # GPT-2 stores weights transposed.
        output = module.c_proj.weight.shape[0]
    config = getattr(module, "config", None)
    heads = next((getattr(owner, part) for owner in (module, config) for part in _HEADS if hasattr(owner, part)), None)
    width = next((getattr(module, part) for part in _HEAD_DIM if hasattr(module, part)), None)
    if output is None and heads is not None and width is not None:
        output = heads * width
    if heads is None and output is not None and width is not None:
        heads = output // width
    return [int(heads), int(width or output // heads), int(output)]
