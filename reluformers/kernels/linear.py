# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers for inference on CPUs: weights in the order in which few rows read them fastest, and int8 products.

torchao, which PyTorch names as the successor of its eager quantisation, keeps and saves int8 weights, but multiplies
them by several operators a layer unless the model is compiled: on CPUs a third as fast as float32 for one sentence
(pytorch/ao#4365). So its weights are read here, and PyTorch's packed ones compute.
"""

import warnings

import torch
from torch import nn


def store_by_columns(model: nn.Module) -> nn.Module:
    """Store the matrices of a model column by column, in place; shapes and values stay, strides change.

    A step of a search multiplies few rows by all weights, and is bound by reading them: x·Wᵀ of one row reads a W that
    lies in columns from memory in about half of the time, by the same function of PyTorch.

    Args:
        model: on the CPU; another one stays as it is, and so do weights that torchao has quantised.

    Returns:
        The same model.
    """
    with torch.no_grad():
        for parameter in model.parameters():  # a tied one is there once
            is_plain = type(parameter) is nn.Parameter and parameter.is_contiguous()
            if is_plain and parameter.dim() == 2 and parameter.device.type == "cpu":
                parameter.data = parameter.t().contiguous().t()
    return model


def quantize_int8(model: nn.Module) -> nn.Module:
    """Replace the linear layers of a model, in place, by packed ones that multiply in int8; embeddings stay.

    x ↦ s_x·s_w,i·Σ_j q(x)_j·q(w)_ij + b_i: weights have 8 bits and one scale a row i, activations 7 bits, one
    scale a call and a zero point.
    Weights that torchao has quantised (`TorchAoConfig(Int8DynamicActivationInt8WeightConfig())`) keep their integers.
    The result is for inference on CPUs and cannot be saved; what is saved is a model that torchao has quantised.

    Args:
        model: in float32 on the CPU; it is put in evaluation mode.

    Returns:
        The same model.

    Raises:
        ValueError: it is elsewhere, in another data type, or a linear layer itself, which nothing holds.
        ImportError: this build of PyTorch has no int8 kernels.
    """
    if isinstance(model, nn.Linear):
        raise ValueError("model is a linear layer, but must hold those that are replaced")
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    for tensor in weights:
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
            raise ValueError(f"int8 needs a model in float32 on the CPU, got {tensor.dtype} on {tensor.device}")
    try:
        from torch.ao.nn.quantized.dynamic import Linear as PackedLinear
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
    except ImportError as error:
        raise ImportError(f"PyTorch {torch.__version__} has no eager quantisation any more: {error}") from error
    model.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of its end, which the message above then says
        for parent in list(model.modules()):
            for name, layer in list(parent.named_children()):
                if hasattr(layer, "unit_weight"):  # FixNorm's output layer: its rows are final in inference
                    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
                    plain.weight, plain.bias = nn.Parameter(layer.unit_weight(), requires_grad=False), layer.bias
                    setattr(parent, name, plain)
                elif hasattr(getattr(layer, "weight", None), "qdata"):
                    setattr(parent, name, _packed(layer, PackedLinear))
        quantize_dynamic(model, {nn.Linear: per_channel_dynamic_qconfig}, inplace=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained = _refuse_saving
    return model


def _refuse_saving(*_, **__) -> None:
    raise ValueError("an int8 model is packed for this processor: save the one that it was made of, or one of torchao")


def is_quantized(model: nn.Module) -> bool:
    """Whether torchao has quantised linear layers of a model to int8."""
    return any(hasattr(parameter, "qdata") and parameter.qdata.dtype == torch.int8 for parameter in model.parameters())


def _packed(layer: nn.Linear, packed_class: type[nn.Module]) -> nn.Module:
    """The layer with the integers and scales that torchao has chosen, packed."""
    weight = layer.weight
    scales = weight.scale.flatten().double()
    if weight.qdata.dtype != torch.int8 or len(scales) != layer.out_features:
        raise ValueError(f"weights are quantised to {weight.qdata.dtype}, but must have int8 and a scale for each row")
    zeros = torch.zeros(len(scales), dtype=torch.long)
    integers = torch._make_per_channel_quantized_tensor(weight.qdata, scales, zeros, 0)
    packed = packed_class(layer.in_features, layer.out_features, layer.bias is not None)
    packed.set_weight_bias(integers, layer.bias)
    return packed
