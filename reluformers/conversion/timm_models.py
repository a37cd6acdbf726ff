"""Vision Transformers in timm's names, those of big_vision among them: their configuration and weights in ours."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from reluformers.configuration.field_checks import check_choice

from .names import TIMM_NAMES, rename
from .sources import ACTIVATIONS, distinct_names, square_side
from .weights import State

# The second word of a model's name says what shapes do not tell.
HEADS = {"tiny": 3, "small": 6, "medium": 8, "base": 12, "large": 16, "huge": 16, "giant": 16, "gigantic": 16}
_ACTIVATIONS = ACTIVATIONS | {"gelu_tanh": ACTIVATIONS["gelu_pytorch_tanh"]}  # transformers has another name for it.
_POOLING = {"token": "cls", "avg": "mean"}
_PREFIX = ("cls_token", "reg_token", "dist_token")


def is_timm(config: Mapping[str, Any]) -> bool:
    """Whether the content of a config.json is that of a model of timm."""
    return "architecture" in config and config.get("model_type", "timm_wrapper") == "timm_wrapper"


def timm_fields(config: Mapping[str, Any], weights: State, given: Mapping[str, Any]) -> dict[str, Any]:
    """Find the fields of our configuration for a Vision Transformer of timm; sizes are read from its weights.

    Args:
        config: content of its config.json: `architecture`, `global_pool`, `model_args` and `pretrained_cfg`.
        weights: by timm's names.
        given: fields that the user gives, such as `num_attention_heads`, which shapes do not tell.

    Raises:
        LookupError: it is no plain Vision Transformer, or its heads cannot be told.
    """
    options = config.get("model_args") or {}
    pretrained = config.get("pretrained_cfg") or {}
    width, channels, *sides = weights["patch_embed.proj.weight"].shape
    patch_size = square_side(sides)
    pool = config.get("global_pool", options.get("global_pool", "token"))
    activation_fields = dict(_ACTIVATIONS[options.get("act_layer", "gelu")])
    prefix = sum(weights[name].shape[1] for name in _PREFIX if name in weights)
    image_size = _image_size(pretrained, options)
    grid = math.prod(side // patch_size for side in image_size)
    heads = given.get("num_attention_heads") or options.get("num_heads")
    labels = config.get("label_names") or [f"LABEL_{i}" for i in range(len(weights["head.weight"]))]
    return {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": patch_size,
        "image_size": image_size[0] if len(set(image_size)) == 1 else image_size,
        "num_hidden_layers": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "num_attention_heads": heads or HEADS[config["architecture"].split("_")[1]],
        "intermediate_size": len(weights["blocks.0.mlp.fc1.weight"]),
        "qkv_bias": "blocks.0.attn.qkv.bias" in weights,
        "attention_output_bias": "blocks.0.attn.proj.bias" in weights,
        "pooling": _POOLING[pool],
        "num_register_tokens": prefix - (pool == "token"),
        "prefix_positions": bool(prefix) and weights["pos_embed"].shape[1] == grid + prefix,
        "position_embedding_type": "learned",
        "norm_after_pooling": "fc_norm.weight" in weights,
        "norm_position": "pre",
        "norm_type": "layer_norm",
        "layer_norm_eps": 1e-6,
        "initialization": "normal",
        "label_smoothing": 0.0,
        "multi_label_reduction": "mean",
        "id2label": distinct_names(dict(enumerate(labels))),
        "hidden_act": activation_fields.pop("activation_function"),
        **activation_fields,
    }


def from_timm(weights: State, pooling: str) -> State:
    """Weights of a Vision Transformer of timm under our names; joined queries, keys and values are parted.

    Args:
        weights: by timm's names; moved out of this dict.
        pooling: of our configuration; with `"mean"` the class token is a register among others.
    """
    registers = [weights.pop(name) for name in _PREFIX[pooling == "cls" :] if name in weights]
    if registers:
        weights["reg_token"] = torch.cat(registers, dim=1) if len(registers) > 1 else registers[0]
    renamed: State = {}
    for name in list(weights):
        tensor = weights.pop(name)
        ours = rename(name, TIMM_NAMES)
        if ".qkv_proj." in ours:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                renamed[ours.replace(".qkv_proj.", f".{part}_proj.")] = piece
        else:
            renamed[ours] = tensor
    return renamed


def timm_image_processor(config: Mapping[str, Any]) -> ViTImageProcessorPil:
    """The stock image processor that does what timm does before an evaluation: resize, crop the centre, normalise."""
    pretrained = config.get("pretrained_cfg") or {}
    height, width = _image_size(pretrained, config.get("model_args") or {})
    mode = pretrained.get("crop_mode") or "center"
    share = pretrained.get("crop_pct", 0.875)
    check_choice("pretrained_cfg", "crop_mode", mode, ("center", "squash") if share == 1 else ("center",))
    mean, std = ([float(number) for number in pretrained.get(name, (0.5, 0.5, 0.5))] for name in ("mean", "std"))
    target = {"height": height, "width": width}
    options = {}
    if height == width and mode == "center":
        options = {"do_center_crop": True, "crop_size": target}
        target = {"shortest_edge": math.floor(height / share)}
    return ViTImageProcessorPil(
        size=target,
        resample=Image.Resampling[pretrained.get("interpolation", "bicubic").upper()],
        image_mean=mean,
        image_std=std,
        do_convert_rgb=True,
        **options,
    )


def _image_size(pretrained: Mapping[str, Any], options: Mapping[str, Any]) -> list[int]:
    size = options.get("img_size")
    if size is None:
        return list(pretrained.get("input_size", (3, 224, 224)))[1:]
    if isinstance(size, int):
        return [size, size]
    return list(size)
