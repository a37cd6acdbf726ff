"""Multi-head attention of every variant: projections, heads, q/k normalisation, cache and output norm.

Which mathematics is asked of `AttentionConfig`, how weights are made of `ATTENTION_ACTIVATIONS`, how it is computed of
`ATTENTION_BACKENDS`. Reads top to bottom; the encoder–decoder families and the vision models share it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, EncoderDecoderCache
from transformers import initialization as init

from ..configuration.configuration_attention import AttentionConfig
from ..configuration.fields import check_choice
from .attention_functions import ATTENTION_ACTIVATIONS
from .masks import count_visible_keys
from .normalization import GatedRMSNorm, RMSNorm, at_least_float32, unit_length
from .regularization import attention_statistics


def eager_attention(
    module: "MultiHeadAttention",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | Tensor = 1.0,
    dropout: float = 0.0,
    key_counts: Tensor | int | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    r"""The reference: o_i = Σ_j s_ij v_j with s_ij = φ(a·q_i·k_j − θ) / (c·n_i^α), every weight kept.

    Args:
        module: holds φ, θ, c and α.
        query: [batch, heads, query_len, head_dim], of any strides.
        key, value: [batch, heads, key_len, head_dim].
        attention_mask: bool, True = may attend, broadcasting to [batch, heads, query_len, key_len]; None = all may.
        scaling: a.
        dropout: share of weights dropped, 0 outside of training.
        key_counts: n_i, counted from the mask if not given.

    Returns:
        output [batch, query_len, heads, head_dim] and the weights before dropout [batch, heads, query_len, key_len].
    """
    scores = query @ key.transpose(-1, -2) * scaling
    threshold = module.current_threshold()
    if threshold is not None:
        scores = scores - threshold
    weights = ATTENTION_ACTIVATIONS[module.attention.activation](scores, attention_mask)
    if key_counts is None:
        key_counts = count_visible_keys(attention_mask, key.shape[-2])
    divisor = module.length_divisor(key_counts, weights.dtype)
    if divisor is not None:
        weights = weights / divisor
    dropped = functional.dropout(weights, dropout) if dropout > 0 else weights
    return (dropped @ value).transpose(1, 2), weights


ATTENTION_BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {"eager": eager_attention}


def attention_backend(name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function behind an `attn_implementation`.

    Only those of this file: the registry of transformers belongs to the process, where another checkpoint's code may
    have put its own functions, and what transformers itself holds there computes softmax.

    Raises:
        ValueError: the name is not in `ATTENTION_BACKENDS`.
    """
    check_choice("attention", "attn_implementation", name, tuple(ATTENTION_BACKENDS))
    return ATTENTION_BACKENDS[name]


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention for self- and cross-attention, with or without a cache.

    Args:
        embed_dim: width of the hidden states; a multiple of `num_heads`.
        num_heads: number of heads of width embed_dim / num_heads.
        attention: the mathematics: a preset's name, a dict or an `AttentionConfig`.
        bias: whether the projections add a bias.
        dropout: share of weights dropped in training.
        layer_idx: place in the cache; needed only with one.

    Raises:
        ValueError: `embed_dim` is not a multiple of `num_heads`, or `attention` is not valid.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: str | dict[str, Any] | AttentionConfig = "softmax",
        *,
        bias: bool = True,
        dropout: float = 0.0,
        layer_idx: int | None = None,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}, but must divide embed_dim ({embed_dim})")
        self.attention = AttentionConfig.parse(attention)
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self._build_variant(embed_dim, bias)
        self.reset_parameters()

    def _build_variant(self, embed_dim: int, bias: bool) -> None:
        """Norms, scalars and gates that only some variants have; what a variant lacks is None."""
        config = self.attention
        # one element and not a scalar, as FSDP cannot shard scalars
        self.scale = nn.Parameter(torch.empty(1)) if config.learned_scale else None
        self.length_exponent = nn.Parameter(torch.empty(1)) if config.learned_length_exponent else None
        self.threshold = nn.Parameter(torch.empty(1)) if config.learned_threshold else None
        self.query_norm = self.key_norm = self.output_norm = None
        if config.query_key_norm == "layer_norm":
            self.query_norm = nn.LayerNorm(self.head_dim, eps=1e-6, bias=False)
            self.key_norm = nn.LayerNorm(self.head_dim, eps=1e-6, bias=False)
        if config.output_norm == "rms_norm":
            self.output_norm = RMSNorm(embed_dim, eps=config.output_norm_eps)
        elif config.output_norm == "gated_rms_norm":
            self.output_norm = GatedRMSNorm(embed_dim, eps=config.output_norm_eps)
        self.gate_proj = nn.Linear(embed_dim, embed_dim, bias=bias) if config.output_gate != "none" else None

    def reset_parameters(self) -> None:
        """Scalars as configured and the gain of the output norm; the projections keep the model's initialisation."""
        config = self.attention
        if self.scale is not None:
            init.constant_(self.scale, config.initial_scale(self.head_dim))
        if self.length_exponent is not None:
            init.constant_(self.length_exponent, config.length_exponent)
        if self.threshold is not None:
            init.constant_(self.threshold, config.threshold)
        if self.output_norm is not None and config.output_norm_init == "uniform":
            bound = math.sqrt(3 / self.output_norm.weight.numel())  # ReLA-i
            init.uniform_(self.output_norm.weight, -bound, bound)

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        key_counts: Tensor | int | None = None,
        query_mask: Tensor | None = None,
        entropy_bound: float | None = None,
        attn_implementation: str = "eager",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        r"""Attend from `hidden_states` to `key_value_states`, or to themselves and the cache.

        Args:
            hidden_states: [batch, query_len, embed_dim].
            key_value_states: [batch, key_len, embed_dim] for cross-attention.
            attention_mask: bool, True = may attend, broadcasting to [batch, heads, query_len, key_len].
            past_key_values: keys (normalised) and values of earlier steps.
            key_counts: n_i, if the caller has counted them.
            query_mask: bool, True = real query [batch, query_len]; only for the statistics.
            entropy_bound: C_i / log n_i of the regulariser; None leaves its terms out.
            attn_implementation: backend.

        Returns:
            output [batch, query_len, embed_dim]; weights before dropout [batch, heads, query_len, key_len], or None
            from a backend that keeps none; in training the statistics of `attention_statistics` if there are weights.
        """
        query = self._normalize(self._split_heads(self.q_proj(hidden_states)), self.query_norm)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        if key_counts is None:
            key_counts = count_visible_keys(attention_mask, key.shape[-2])
        output, weights = attention_backend(attn_implementation)(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.attention.initial_scale(self.head_dim) if self.scale is None else self.scale,
            dropout=self.dropout if self.training else 0.0,
            key_counts=key_counts,
        )
        output = output.flatten(2)  # heads joined: [batch, query_len, embed_dim]
        if self.output_norm is not None:
            output = self.output_norm(output)
        if self.gate_proj is not None:
            gate = self.gate_proj(hidden_states)
            output = output * (functional.silu(gate) if self.attention.output_gate == "silu" else gate)
        statistics = None
        if self.training and weights is not None:
            statistics = attention_statistics(weights, key_counts, query_mask, entropy_bound)
        return self.out_proj(output), weights, statistics

    def length_divisor(self, key_counts: Tensor | int, dtype: torch.dtype) -> Tensor | float | None:
        """c·n_i^α in that dtype, or None where it is 1. A row without keys counts as one: its weights are 0 anyway."""
        coefficient, exponent = self.attention.length_coefficient, self.attention.length_exponent
        if self.length_exponent is not None:
            exponent = at_least_float32(self.length_exponent)
        elif exponent == 0:
            return None if coefficient == 1 else coefficient
        if isinstance(key_counts, Tensor):
            key_counts = key_counts.clamp_min(1).to(torch.promote_types(dtype, torch.float32))
        divisor = coefficient * key_counts**exponent
        return divisor.to(dtype) if isinstance(divisor, Tensor) else divisor

    def current_threshold(self) -> Tensor | float | None:
        """θ, or None where it is 0 and fixed."""
        if self.threshold is not None:
            return self.threshold
        return self.attention.threshold or None

    def _keys_and_values(
        self, hidden_states: Tensor, key_value_states: Tensor | None, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, heads, key_len, head_dim], from the cache where it has them."""
        is_cross = key_value_states is not None
        cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            cache = past_key_values.cross_attention_cache if is_cross else past_key_values.self_attention_cache
            if is_cross and past_key_values.is_updated.get(self.layer_idx):
                return self._cross_states(cache, key_value_states.shape[1])
        source = key_value_states if is_cross else hidden_states
        key = self._normalize(self._split_heads(self.k_proj(source)), self.key_norm)
        value = self._split_heads(self.v_proj(source))
        if self.attention.value_norm == "l2":
            value = unit_length(value)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if is_cross and isinstance(past_key_values, EncoderDecoderCache):
                past_key_values.is_updated[self.layer_idx] = True
                return self._cross_states(cache, key_value_states.shape[1])
        return key, value

    def _cross_states(self, cache: Cache, source_len: int) -> tuple[Tensor, Tensor]:
        """Cached keys and values of the source; a static cache may have more places than the source has tokens."""
        layer = cache.layers[self.layer_idx]
        return layer.keys[:, :, :source_len], layer.values[:, :, :source_len]

    def _normalize(self, states: Tensor, norm: nn.Module | None) -> Tensor:
        """Queries or keys as the score takes them: LayerNorm per head, unit length for cosine."""
        if norm is not None:
            states = norm(states)
        return unit_length(states) if self.attention.score == "cosine" else states

    def _split_heads(self, states: Tensor) -> Tensor:  # [batch, length, embed_dim] → [batch, heads, length, head_dim]
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
