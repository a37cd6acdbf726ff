# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The feed-forward network, which ReLUFormer reads as a key–value memory, with its activations and gated forms."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from ..configuration.configuration_base import TransformerConfig
from .kernels import apply_dropout

# A configuration chooses the activation φ of the feed-forward network by name. For swish, x·σ(βx), the module itself
# multiplies by β.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softmax": lambda x: functional.softmax(x, dim=-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
_GATES = {"glu": "sigmoid", "bilinear": "identity", "geglu": "gelu", "swiglu": "swish"}
_GATES |= dict.fromkeys(("reglu", "drelu"), "relu")


class FeedForward(nn.Module):
    r"""Position-wise feed-forward network H = φ(X·W1ᵀ)·W2, or gated, H = (φ(X·W1ᵀ) ⊗ X·Vᵀ)·W2.

    With φ = softmax it is the key–value memory of ReLUFormer eq. 2. Gated forms take 2/3 of the inner width, so that
    parameters stay equal (Shazeer 2020, section 3); dReLU has ReLU on both sides (TurboSparse, Song et al. 2024).
    """

    def __init__(self, config: TransformerConfig, ffn_dim: int):
        super().__init__()
        name, width, bias = config.activation_function, config.hidden_size, config.ffn_bias
        inner_dim = round(ffn_dim * 2 / 3) if name in _GATES else ffn_dim
        self.activation_name = _GATES.get(name, name)
        self.has_rectified_values = name == "drelu"
        self.dropout, self.temperature = config.activation_dropout, config.feed_forward_temperature
        self.initial_swish_beta = config.swish_beta
        self.fc1 = nn.Linear(width, inner_dim, bias=bias)
        self.fc_linear = nn.Linear(width, inner_dim, bias=bias) if name in _GATES else None
        self.fc2 = nn.Linear(inner_dim, width, bias=bias)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.feed_forward_norm == "layer_norm" else None
        learns_beta = config.learned_swish_beta and self.activation_name == "swish"
        self.swish_beta = nn.Parameter(torch.empty(1)) if learns_beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set β; the model initialises the maps."""
        if self.swish_beta is not None:
            init.constant_(self.swish_beta, self.initial_swish_beta)

    def activation(self, states: Tensor) -> Tensor:
        """φ of the inner states."""
        if self.activation_name == "softmax" and self.temperature != 1:
            states = states / self.temperature
        if self.activation_name != "swish":
            return _ACTIVATIONS[self.activation_name](states)
        beta = self.initial_swish_beta if self.swish_beta is None else self.swish_beta
        return states * torch.sigmoid(beta * states)

    # The feed-forward network takes and returns states [..., embed_dim].
    def forward(self, hidden_states: Tensor) -> Tensor:
        inner_states = self.activation(self.fc1(hidden_states))  # The inner states have the shape [..., inner_dim].
        if self.fc_linear is not None:
            values = self.fc_linear(hidden_states)
            inner_states = inner_states * (functional.relu(values) if self.has_rectified_values else values)
        inner_states = apply_dropout(inner_states, self.dropout, self.training)
        output = self.fc2(inner_states)
        return output if self.norm is None else self.norm(output)
