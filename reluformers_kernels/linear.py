# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers for inference on CPUs: int8 products.

torchao, which PyTorch names as the successor of its eager quantisation, keeps and saves int8 weights, but multiplies
them by several operators a layer unless the model is compiled: on CPUs a third as fast as float32 for one sentence
(pytorch/ao#4365). So its weights are read here, and PyTorch's packed ones compute.
"""

import functools
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional


class PackedLinear(nn.Module):
    """A linear layer whose weights are int8 and packed, and whose activations become 7 bits, by a scale a row.

    x ↦ r·(Σ_j q(y)_j·q(w)_ij·s_w,i/127) + l·Σ_j w_ij + b_i with l = min x, r = max x − l and y = (x − l)/r: PyTorch
    takes one scale for all rows of a call, but each y goes from 0 to 1 exactly, so that no row hangs on the others.
    The weight is one of PyTorch's, quantised by a scale a row, and the bias in float32, if there is one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.quantized.linear_prepack(weight, None)
        self.register_buffer("sums", weight.dequantize().sum(1), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    @functools.cached_property
    def blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Integers, scales and sums as the compiled decoder reads them."""
        from reluformers_native.decoder import pack

        weight, _ = torch.ops.quantized.linear_unpack(self.packed)
        padding = 0, -self.out_features % 16
        vectors = (weight.q_per_channel_scales().float(), self.sums)
        return pack(weight.int_repr()), *(functional.pad(vector, padding) for vector in vectors)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x [..., in_features]."""
        low = x.amin(-1, keepdim=True)
        span = (x.amax(-1, keepdim=True) - low).clamp_min_(torch.finfo(x.dtype).tiny)
        product = torch.ops.quantized.linear_dynamic((x - low).div_(span), self.packed, True)
        product = product.mul_(span).addcmul_(low, self.sums)
        if self.bias is None:
            return product
        return product.add_(self.bias)


@torch.no_grad()
def quantize_int8(model: nn.Module) -> nn.Module:
    """Replace the linear layers of a model, in place, by `PackedLinear`, which multiplies in int8; embeddings stay.

    Weights that torchao has quantised (`TorchAoConfig(Int8DynamicActivationInt8WeightConfig())`) keep their integers.
    The result is for inference on CPUs and cannot be saved; what is saved is a model that torchao has quantised.

    Args:
        model: in float32 on the CPU, and no linear layer itself; it is put in evaluation mode.

    Returns:
        The same model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that its quantised tensors are deprecated.
        for parent in list(model.modules()):
            for name, layer in list(parent.named_children()):
                is_torchao = hasattr(getattr(layer, "weight", None), "qdata")
                # Only `nn.Linear` itself is packed: a subclass may compute something else, so `isinstance` would be
                # wrong.
                if type(layer) is nn.Linear or hasattr(layer, "unit_weight") or is_torchao:
                    setattr(parent, name, PackedLinear(_quantized_weight(layer), layer.bias))
    if hasattr(model, "save_pretrained"):
        # Saving a quantised model is refused, because its packed weights are for one kind of CPU and would open on no
        # other.
        model.save_pretrained = _refuse_saving
    return model.eval()


def _refuse_saving(*_, **__) -> None:
    raise ValueError("an int8 model is packed for this processor: save the one that it was made of, or one of torchao")


def is_quantized(model: nn.Module) -> bool:
    """Whether torchao has quantised linear layers of a model to int8."""
    return any(hasattr(parameter, "qdata") and parameter.qdata.dtype == torch.int8 for parameter in model.parameters())


def _quantized_weight(layer: nn.Module) -> Tensor:
    """The weights as integers with a scale a row, which torchao may have chosen."""
    zeros = torch.zeros(layer.out_features, dtype=torch.long)
    if hasattr(layer.weight, "qdata"):
        integers = layer.weight.qdata
        scales = layer.weight.scale.flatten().double()
        if integers.dtype != torch.int8 or len(scales) != layer.out_features:
            raise ValueError(f"weights are quantised to {integers.dtype}, but must have int8 and a scale for each row")
        return torch._make_per_channel_quantized_tensor(integers, scales, zeros, 0)
    # Rows of FixNorm's output layer do not change in inference.
    weight = layer.unit_weight() if hasattr(layer, "unit_weight") else layer.weight
    scales = (weight.abs().amax(1).double() / 127.5).clamp_min(torch.finfo(weight.dtype).eps)
    return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
