# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Layers: attention and feed-forward branches around the residual stream."""

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ..configuration.configuration_base import TransformerConfig
from .attention import MultiHeadAttention
from .feed_forward import FeedForward
from .kernels import apply_dropout
from .normalization import build_norm


def drop_path(branch: Tensor, probability: float) -> Tensor:
    """Leave out a residual branch of some rows of the batch, the others over 1 − p (Huang et al. 2016, section 3)."""
    # In stochastic depth one random number decides whether a row keeps the whole branch.
    keeps = torch.rand(branch.shape[0], *[1] * (branch.dim() - 1), device=branch.device) >= probability
    return branch * (keeps / (1 - probability)).to(branch.dtype)


class TransformerLayer(GradientCheckpointingLayer):
    """Base of encoder and decoder layers: how a branch is normalised, dropped and added."""

    def __init__(self, config: TransformerConfig, ffn_dim: int, drop_path_rate: float = 0.0):
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.dropout, self.drop_path_rate = config.dropout, drop_path_rate
        self.mlp = FeedForward(config, ffn_dim)
        self.mlp_norm = build_norm(config)

    def branch_input(self, norm: nn.Module, hidden_states: Tensor) -> Tensor:
        """Input of a branch: normalised with PreNorm."""
        return norm(hidden_states) if self.is_pre_norm else hidden_states

    def add_branch(self, norm: nn.Module, hidden_states: Tensor, branch: Tensor) -> Tensor:
        """Residual sum of a branch: normalised with PostNorm."""
        branch = apply_dropout(branch, self.dropout, self.training)
        if self.training and self.drop_path_rate > 0:
            branch = drop_path(branch, self.drop_path_rate)
        hidden_states = hidden_states + branch
        return hidden_states if self.is_pre_norm else norm(hidden_states)


class EncoderLayer(TransformerLayer):
    """Self-attention and feed-forward network."""

    def __init__(self, config: TransformerConfig, layer_idx: int, drop_path_rate: float = 0.0):
        super().__init__(config, config.intermediate_size, drop_path_rate)
        self.self_attn = MultiHeadAttention.from_config(config, "encoder", config.num_attention_heads, layer_idx)
        self.self_attn_norm = build_norm(config)

    def forward(self, hidden_states: Tensor, attention_options: dict) -> tuple[Tensor, ...]:
        """Hidden states [batch, length, hidden_size] after the layer, and the tensors of `RowStatistics` if needed."""
        branch, _, rows = self.self_attn(self.branch_input(self.self_attn_norm, hidden_states), **attention_options)
        hidden_states = self.add_branch(self.self_attn_norm, hidden_states, branch)
        branch = self.mlp(self.branch_input(self.mlp_norm, hidden_states))
        return self.add_branch(self.mlp_norm, hidden_states, branch), *rows
