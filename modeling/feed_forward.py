# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The feed-forward network, which ReLUFormer reads as a key–value memory, with its activations and gated forms."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from ..configuration.configuration_base import FEED_FORWARD_ACTIVATIONS, TransformerConfig
from ..configuration.field_checks import check_choice
from .dropout import apply_dropout

# name → φ; swish takes β in the module
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softmax": lambda x: functional.softmax(x, dim=-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
_GATES = {"glu": "sigmoid", "bilinear": "identity", "reglu": "relu", "geglu": "gelu", "swiglu": "swish"}


class FeedForward(nn.Module):
    r"""Position-wise feed-forward network H = φ(X·W1ᵀ)·W2, or gated, H = (φ(X·W1ᵀ) ⊗ X·Vᵀ)·W2.

    With φ = softmax it is the key–value memory of ReLUFormer eq. 2. Gated forms take 2/3 of the inner width, so that
    parameters stay equal (Shazeer 2020, section 3).

    Args:
        embed_dim: width of input and output.
        ffn_dim: inner width, before the cut of gated forms.
        activation_function: relu, gelu, gelu_pytorch_tanh, silu, swish, softmax; gated: glu (sigmoid), bilinear,
            reglu, geglu, swiglu.
        bias: whether the linear maps add a bias.
        dropout: share of inner activations dropped in training.
        norm: `"layer_norm"` on the output (ReLUFormer, section 3.2) or `"none"`.
        norm_eps: ε of that norm.
        temperature: τ of softmax(x / τ).
        swish_beta: β of swish(x) = x·σ(βx).
        learned_swish_beta: train β, one scalar per module.

    Raises:
        ValueError: there is no activation or norm of that name.
    """

    def __init__(
        self,
        embed_dim: int,
        ffn_dim: int,
        activation_function: str = "relu",
        *,
        bias: bool = True,
        dropout: float = 0.0,
        norm: str = "none",
        norm_eps: float = 1e-5,
        temperature: float = 1.0,
        swish_beta: float = 1.0,
        learned_swish_beta: bool = False,
    ):
        super().__init__()
        check_choice("FeedForward", "activation_function", activation_function, FEED_FORWARD_ACTIVATIONS)
        check_choice("FeedForward", "norm", norm, ("none", "layer_norm"))
        is_gated = activation_function in _GATES
        inner_dim = round(ffn_dim * 2 / 3) if is_gated else ffn_dim
        self.activation_name = _GATES.get(activation_function, activation_function)
        self.dropout, self.temperature = dropout, temperature
        self.initial_swish_beta = swish_beta
        self.fc1 = nn.Linear(embed_dim, inner_dim, bias=bias)
        self.fc_linear = nn.Linear(embed_dim, inner_dim, bias=bias) if is_gated else None
        self.fc2 = nn.Linear(inner_dim, embed_dim, bias=bias)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps) if norm == "layer_norm" else None
        learns_beta = learned_swish_beta and self.activation_name == "swish"
        self.swish_beta = nn.Parameter(torch.empty(1)) if learns_beta else None
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: TransformerConfig, ffn_dim: int) -> "FeedForward":
        """The network that a model's configuration describes, of the given inner width."""
        return cls(
            config.hidden_size,
            ffn_dim,
            config.activation_function,
            bias=config.ffn_bias,
            dropout=config.activation_dropout,
            norm=config.feed_forward_norm,
            norm_eps=config.norm_eps,
            temperature=config.feed_forward_temperature,
            swish_beta=config.swish_beta,
            learned_swish_beta=config.learned_swish_beta,
        )

    def reset_parameters(self) -> None:
        """β as given; the linear maps keep the initialisation of the model they stand in."""
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

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., embed_dim]
        inner_states = self.activation(self.fc1(hidden_states))  # [..., inner_dim]
        if self.fc_linear is not None:
            inner_states = inner_states * self.fc_linear(hidden_states)
        inner_states = apply_dropout(inner_states, self.dropout, self.training)
        output = self.fc2(inner_states)
        return output if self.norm is None else self.norm(output)
