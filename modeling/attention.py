# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention of every variant: projections, heads, q/k normalisation, cache and output norm.

`AttentionConfig` says which mathematics, `ATTENTION_ACTIVATIONS` how scores become weights, `ATTENTION_BACKENDS` how
both are computed. Reads top to bottom; the encoder–decoder families and the vision models share it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import Cache, EncoderDecoderCache
from transformers import initialization as init

from ..configuration.configuration_attention import AttentionConfig
from ..configuration.configuration_base import TransformerConfig
from ..configuration.field_checks import check_choice
from .attention_functions import ATTENTION_ACTIVATIONS, length_divisor, length_factor, sum_to_one
from .context_parallel import all_rows, number_of_processes
from .kernels import apply_dropout, kernels
from .masks import AttentionMask
from .normalization import OUTPUT_NORMS, at_least_float32, unit_length, wide_dtype
from .regularization import RowStatistics

SHORT_KEYS = 128  # With at most `SHORT_KEYS` keys, softmax in bfloat16 is faster written out on a CPU.
BLOCK_WEIGHTS = 2**22  # Without the library's kernels, at most `BLOCK_WEIGHTS` weights are in memory at a time.

# An output gate is a function ψ of a linear map, chosen by the name of ψ.
OUTPUT_GATES = {"linear": lambda gate: gate, "silu": functional.silu, "sigmoid": torch.sigmoid}

# A backend returns the output [batch, query_len, heads, head_dim], the weights if they are kept, and their sums if
# needed.
AttentionOutput = tuple[Tensor, Tensor | None, RowStatistics]


@dataclass(frozen=True)
class AttentionFormula:
    r"""Formula that a backend computes from queries, keys and values: s_ij = φ(a·q_i·k_j + b_ij − θ_i) / (c·n_i^α).

    Args:
        attention: φ, c, α, θ and their forms.
        scaling: a.
        dropout: share of dropped weights, 0 outside of training.
        threshold, length_exponent: θ, of one element or one for each head, and α that are trained; None for the
            numbers of `attention`.
        activation: φ as a function of scores and mask; None for the one that `attention` names.
        bias: b [batch or 1, heads or 1, query_len, key_len], or None for 0.
    """

    attention: AttentionConfig
    scaling: float
    dropout: float = 0.0
    threshold: Tensor | None = None
    length_exponent: Tensor | None = None
    activation: Callable[[Tensor, Tensor | None], Tensor] | None = None
    bias: Tensor | None = None

    def current_threshold(self, mask: AttentionMask, query: Tensor) -> Tensor | float:
        """θ_i: one number, or a tensor [batch or 1, heads or 1, query_len or 1, 1]."""
        if self.threshold is None and self.attention.threshold == 0:
            return 0.0
        numbers = self.attention.threshold_form, query.shape[-1], query.dtype
        # A learned threshold θ is a parameter of one layer, so other layers cannot share its product with the length.
        if self.threshold is not None:
            return self.threshold.view(1, -1, 1, 1) * length_factor(mask.key_counts, *numbers)
        threshold = self.attention.threshold
        return mask.once((threshold, *numbers), lambda: threshold * length_factor(mask.key_counts, *numbers))

    def length_divisor(self, mask: AttentionMask, dtype: torch.dtype) -> Tensor | float | None:
        """c·n_i^α, once for all layers if α is no parameter."""
        coefficient, exponent = self.attention.length_coefficient, self.length_exponent
        if exponent is not None:
            return length_divisor(mask.key_counts, coefficient, exponent, dtype)
        numbers = coefficient, self.attention.length_exponent, dtype
        return mask.once(numbers, lambda: length_divisor(mask.key_counts, *numbers))

    def row_factors(self, divisor: Tensor | float | None, mask: AttentionMask, query: Tensor) -> Tensor | None:
        """1/(c·n_i^α) [batch or 1, query_len], once for all layers; None where it is one number, or is trained."""
        if self.length_exponent is not None or not isinstance(divisor, Tensor):
            return None
        numbers = "row_factors", self.attention.length_coefficient, self.attention.length_exponent, query.dtype
        return mask.once(numbers, lambda: kernels.factors_of_rows(divisor, query))


def eager_attention(
    formula: AttentionFormula, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, statistics: str
) -> AttentionOutput:
    r"""Compute attention o_i = Σ_j s_ij v_j with every weight s_ij kept: the reference in plain PyTorch.

    Args:
        formula: how weights follow from scores.
        query: [batch, heads, query_len, head_dim].
        key, value: [batch, heads, key_len, head_dim], or fewer heads, each for as many heads of the queries.
        mask: which keys a query may see, and n_i.
        statistics: of the rows: `"none"`, `"sums"`, or `"all"` for Σ_j s_ij·log s_ij too.

    Returns:
        output [batch, query_len, heads, head_dim], the weights before dropout [batch, heads, query_len, key_len], and
        the `RowStatistics`, of weights before they are divided by c·n_i^α unless the attention `has_late_statistics`.
    """
    key, value = repeat_heads(key, query), repeat_heads(value, query)
    scores = query @ key.transpose(-1, -2) * formula.scaling
    if formula.bias is not None:
        scores = (scores + formula.bias).to(scores.dtype)
    threshold = formula.current_threshold(mask, query)
    if isinstance(threshold, Tensor) or threshold != 0:
        scores = (scores - threshold).to(scores.dtype)
    weights = (formula.activation or ATTENTION_ACTIVATIONS[formula.attention.activation])(scores, mask.dense)
    # Statistics are taken from undivided weights where no part of the divisor is trained, so that a model divides the
    # sums of all layers of a site at once.
    is_late = formula.attention.has_late_statistics
    rows = RowStatistics.of(weights, "none" if is_late else statistics)
    divisor = formula.length_divisor(mask, weights.dtype)
    if divisor is not None:
        weights = (weights / divisor).to(weights.dtype)
    if formula.attention.normalizer == "sum":
        weights = sum_to_one(weights)
    if is_late:
        rows = RowStatistics.of(weights, statistics)
    # Dropout comes after the statistics, because statistics and returned weights must not depend on chance.
    output = apply_dropout(weights, formula.dropout) @ value
    return output.transpose(1, 2), weights, rows


def repeat_heads(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values [batch, heads, key_len, head_dim] for every head of the queries, where groups share them."""
    groups = query.shape[1] // states.shape[1]
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


# These fields of a formula and of its `AttentionConfig` are read by `fused_attention` or computed outside of it. Where
# there is any other field, the reference computes, because the fast paths would leave it out.
FUSED_FIELDS = """
attention scaling dropout threshold length_exponent activation bias
normalizer length_coefficient threshold_form score scale learned_scale scale_form scale_length query_key_norm
value_norm learned_length_exponent learned_threshold threshold_per_head exclusive_output output_norm output_norm_init
output_norm_eps output_gate
"""
KNOWS_FIELDS = {
    kind: {field.name for field in fields(kind)} <= set(FUSED_FIELDS.split())
    for kind in (AttentionFormula, AttentionConfig)
}


def fused_attention(
    formula: AttentionFormula, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, statistics: str
) -> AttentionOutput:
    """Compute attention by the fastest exact way, mostly in memory linear in the length, and keep no weights."""
    attention = formula.attention
    arguments = (formula, query, key, value, mask, statistics)
    # An exported program must hold plain operators of PyTorch alone, so it has the reference.
    is_known = KNOWS_FIELDS.get(type(formula), False) and KNOWS_FIELDS.get(type(attention), False)
    if not is_known or torch.compiler.is_exporting() or formula.bias is not None or formula.activation is not None:
        return attention_in_blocks(*arguments)
    if attention.activation == "softmax":
        # On CPUs PyTorch's softmax attention writes the weights out for dropout too, and draws dropout slower.
        is_short = mask.query_len == 1 or (query.dtype == torch.bfloat16 and mask.key_len <= SHORT_KEYS)
        is_written_out = query.device.type == "cpu" and (is_short or formula.dropout > 0)
        # The entropy of weights needs whole rows, which PyTorch's fused softmax never holds.
        if statistics != "all" and not is_written_out:
            return attention_by_sdpa(*arguments)
    elif attention.activation == "softmax1":
        if statistics == "none" and mask.query_len > 1:
            return attention_by_sdpa(*arguments)
    # Attention from one query gains from kernels only if these save copies of keys, which several heads share or which
    # lie in pages.
    elif (
        kernels is not None
        and mask.is_structured
        and (mask.query_len > 1 or key.shape[1] < query.shape[1] or hasattr(key, "pages"))
    ):
        result = attention_by_kernels(*arguments)
        if result is not None:
            return result
    return attention_in_blocks(*arguments)


def attention_by_kernels(
    formula: AttentionFormula, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, statistics: str
) -> AttentionOutput | None:
    """Compute attention by the library's kernels; None where they have none, or are no faster than the reference."""
    threshold, normalizer = formula.current_threshold(mask, query), formula.attention.normalizer
    # A divisor of a whole row cancels if the row is divided by its sum.
    divisor = None if normalizer == "sum" else formula.length_divisor(mask, query.dtype)
    is_tensor = isinstance(threshold, Tensor)
    if is_tensor:
        threshold = threshold.reshape(()) if threshold.numel() == 1 else threshold.squeeze(-1)
    options = kernels.PassOptions(
        learned_threshold=threshold if is_tensor else None,
        row_factors=formula.row_factors(divisor, mask, query),
        key_padding_mask=mask.key_padding_mask,
        first_keys=mask.first_keys,
        last_keys=mask.last_keys,
        activation=formula.attention.activation,
        scale=formula.scaling,
        threshold=0.0 if is_tensor else threshold,
        causal_offset=mask.causal_offset if mask.is_causal else None,
        dropout=formula.dropout,
        needed_statistics=statistics,
    )
    result = kernels.fastest_attention(
        query, key, value, options, divisor, normalizer, formula.attention.has_late_statistics
    )
    if result is None:
        return None
    output, row_sums, weighted_logs, _ = result
    return output.transpose(1, 2), None, RowStatistics(row_sums, weighted_logs)


def attention_in_blocks(
    formula: AttentionFormula, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, statistics: str
) -> AttentionOutput:
    """The reference for some queries at a time; the backward pass makes the weights of each block again."""
    number = max(1, BLOCK_WEIGHTS // max(1, query.shape[0] * query.shape[1] * mask.key_len))
    # torch.compile chooses itself which weights to keep.
    if mask.query_len <= number or torch.compiler.is_compiling():
        output, _, rows = eager_attention(formula, query, key, value, mask, statistics)
        return output, None, rows
    outputs, sums = [], []
    for start in range(0, mask.query_len, number):
        queries = slice(start, start + number)
        part_formula = formula
        # A bias of scores with one row serves all queries.
        if formula.bias is not None and formula.bias.shape[-2] > 1:
            part_formula = replace(formula, bias=formula.bias[..., queries, :])
        arguments = (part_formula, query[:, :, queries], key, value, mask.of_rows(queries), statistics)
        # Each block is checkpointed, because autograd would keep its weights, and blocks are there to avoid that.
        output, _, rows = checkpoint(eager_attention, *arguments, use_reentrant=False)
        outputs.append(output)
        sums.append(rows)
    return torch.cat(outputs, dim=1), None, RowStatistics.join(sums)


def attention_by_sdpa(
    formula: AttentionFormula, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, statistics: str
) -> AttentionOutput:
    """Compute softmax, in which θ cancels, or softmax1 without statistics, by `scaled_dot_product_attention`.

    softmax1 has one more key of value 0, whose score is θ: exp(z) / (exp(θ) + Σ exp(z)). The library's kernels leave
    this sink key out where they can.
    """
    key = repeat_heads(key, query)
    value = repeat_heads(value, query)
    is_causal = mask.is_triangle
    dense = None if is_causal else mask.dense
    options = {"is_causal": is_causal, "scale": formula.scaling}
    output = None
    if formula.attention.activation == "softmax":
        output = functional.scaled_dot_product_attention(query, key, value, dense, formula.dropout, **options)
    else:
        threshold = formula.current_threshold(mask, query)
        if kernels is not None:
            output = kernels.softmax1(query, key, value, threshold, mask=dense, dropout=formula.dropout, **options)
        if output is None:
            threshold = torch.as_tensor(threshold, dtype=query.dtype, device=query.device)
            states = with_sink_key(query, key, value, threshold / formula.scaling, is_causal)
            if dense is not None:
                dense = functional.pad(dense.expand(*dense.shape[:-1], mask.key_len), (1, 0), value=True)
            output = functional.scaled_dot_product_attention(*states, dense, formula.dropout, **options)
            output = output[:, :, int(is_causal) :, :-1]
    divisor = formula.length_divisor(mask, query.dtype)
    if divisor is not None:
        output = (output / divisor).to(output.dtype)
    rows = RowStatistics()
    if statistics != "none":
        # Sums of softmax are known without adding up: a row sums to 1, or to 0 if it sees no key.
        is_used = torch.as_tensor(mask.key_counts, device=query.device) > 0
        row_sums = is_used.expand(*query.shape[:3], 1).to(wide_dtype(query.dtype))
        if formula.attention.has_late_statistics and divisor is not None:
            row_sums = row_sums / divisor
        rows = RowStatistics(row_sums.squeeze(-1))
    return output.transpose(1, 2), None, rows


def with_sink_key(
    query: Tensor, key: Tensor, value: Tensor, product: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Put a key of value 0 before the others, whose q·k is `product`; every state gets one more channel.

    With causality one more query goes in front too. It sees the new key alone, so that the mask stays a triangle.
    """
    # A new channel holds `product` in the queries, 1 in the new key and 0 in the other keys.
    last = product.expand(*query.shape[:-1], 1).to(query.dtype)
    query = functional.pad(torch.cat([query, last], dim=-1), (0, 0, int(is_causal), 0))
    key = functional.pad(key, (0, 1, 1, 0))
    key[:, :, 0, -1] = 1
    return query, key, functional.pad(value, (0, 1, 1, 0))


def without_own_values(output: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    """u − (u·v̂) v̂ of the output u [batch, query_len, heads, head_dim], v̂ the unit value of the query's own token."""
    if mask.causal_offset is None and mask.query_len != mask.key_len:
        raise ValueError(f"exclusive_output: which of {mask.key_len} values belong to {mask.query_len} queries?")
    first = 0 if mask.causal_offset is None else mask.causal_offset
    places = slice(first, first + mask.query_len)
    # A static cache counts tokens on the device, so the queries' own values are taken by an index, which copies.
    if isinstance(first, Tensor):
        places = first + torch.arange(mask.query_len, device=value.device)
    own = repeat_heads(value[:, :, places], output.transpose(1, 2)).transpose(1, 2)
    whole, own = at_least_float32(output), unit_length(at_least_float32(own))
    rest = whole - (whole * own).sum(-1, keepdim=True) * own
    # In exclusive attention a query that sees its own token alone keeps nothing but rounding, which an output norm
    # would make large: half an ε of bfloat16, whose sums are float32, and up to 5 ε of other types. So small a rest
    # becomes 0.
    units = 2 if output.dtype == torch.bfloat16 else 8
    least = units * torch.finfo(output.dtype).eps * whole.norm(dim=-1, keepdim=True)
    return rest.masked_fill(rest.norm(dim=-1, keepdim=True) < least, 0.0).to(output.dtype)


ATTENTION_BACKENDS: dict[str, Callable[..., AttentionOutput]] = {"eager": eager_attention, "fused": fused_attention}
DEFAULT_BACKEND = "fused"


def attention_backend(name: str) -> Callable[..., AttentionOutput]:
    """The function behind an `attn_implementation`, of this file alone.

    The registry of transformers belongs to the process, where another checkpoint's code may have put its own
    functions, and what transformers itself holds there computes softmax.
    """
    check_choice("attention", "attn_implementation", name, tuple(ATTENTION_BACKENDS))
    return ATTENTION_BACKENDS[name]


class AttentionVariant(nn.Module):
    """Parts of an attention between its projections: scalars, norms and the formula of `AttentionConfig`."""

    attention: AttentionConfig
    head_dim: int

    def _build_variant(self, num_heads: int, output_dim: int) -> None:
        """Norms and scalars that only some variants have, else None."""
        config = self.attention
        # A learned scale has one element, because FSDP cannot shard scalars.
        self.scale = nn.Parameter(torch.empty(1)) if config.learned_scale else None
        self.length_exponent = nn.Parameter(torch.empty(1)) if config.learned_length_exponent else None
        thresholds = num_heads if config.threshold_per_head else 1
        self.threshold = nn.Parameter(torch.empty(thresholds)) if config.learned_threshold else None
        self.query_norm = self.key_norm = self.output_norm = None
        if config.query_key_norm == "layer_norm":
            self.query_norm = nn.LayerNorm(self.head_dim, eps=1e-6, bias=False)
            self.key_norm = nn.LayerNorm(self.head_dim, eps=1e-6, bias=False)
        if config.output_norm != "none":
            self.output_norm = OUTPUT_NORMS[config.output_norm](output_dim, eps=config.output_norm_eps)

    def reset_parameters(self) -> None:
        """Scalars and the gain of the output norm; the model initialises the projections."""
        config = self.attention
        if self.scale is not None:
            init.constant_(self.scale, config.initial_scale(self.head_dim))
        if self.length_exponent is not None:
            init.constant_(self.length_exponent, config.length_exponent)
        if self.threshold is not None:
            init.constant_(self.threshold, config.threshold)
        if self.output_norm is not None and config.output_norm_init == "uniform":
            bound = math.sqrt(3 / self.output_norm.weight.numel())
            init.uniform_(self.output_norm.weight, -bound, bound)

    def formula(self, scaling: float, dropout: float, **changes: Any) -> AttentionFormula:
        """Describe the attention to a backend, with a = `scaling` where it is not learned."""
        # A learned scale a multiplies the queries, so the formula has a = 1.
        scaling = scaling if self.scale is None else 1.0
        fields = {"attention": self.attention, "threshold": self.threshold, "length_exponent": self.length_exponent}
        return AttentionFormula(scaling=scaling, dropout=dropout, **{**fields, **changes})

    def attend(
        self,
        formula: AttentionFormula,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask,
        statistics: str = "none",
        attn_implementation: str = "eager",
        is_cross: bool = False,
        is_scaled: bool = False,
    ) -> AttentionOutput:
        """Attend from queries to keys by a backend, to the normalised output [batch, query_len, heads · head_dim]."""
        form = self.attention.scale_form
        if form != "constant":
            # The scale multiplies the queries, because there are fewer of them than scores.
            query = (query * length_factor(mask.key_counts, form, query.shape[-1], query.dtype)).to(query.dtype)
        if self.scale is not None and not is_scaled:
            query = (query * self.scale).to(query.dtype)
        if not is_cross:
            key = all_rows(key, 2)
            value = all_rows(value, 2)
        output, weights, rows = attention_backend(attn_implementation)(formula, query, key, value, mask, statistics)
        # In cross-attention no value belongs to the query itself, so none is removed.
        if self.attention.exclusive_output and not is_cross:
            output = without_own_values(output, value, mask)
        output = output.flatten(2)
        return (output if self.output_norm is None else self.output_norm(output)), weights, rows


class MultiHeadAttention(AttentionVariant):
    r"""Multi-head attention for self- and cross-attention, with or without a cache.

    Args:
        embed_dim: width of the hidden states; a multiple of `num_heads`.
        num_heads: number of heads of width embed_dim / num_heads.
        attention: the mathematics: a preset's name, a dict or an `AttentionConfig`.
        bias: whether the projections add a bias.
        output_bias: whether that of the output does; None for `bias`.
        dropout: share of weights dropped in training.
        layer_idx: index of the layer in the cache; needed only with one.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: str | dict[str, Any] | AttentionConfig = "softmax",
        *,
        bias: bool = True,
        output_bias: bool | None = None,
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
        self.scaling = self.attention.initial_scale(self.head_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias if output_bias is None else output_bias)
        self._build_variant(num_heads, embed_dim)
        self.gate_proj = None
        if self.attention.output_gate != "none":
            self.gate_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: TransformerConfig, site: str, num_heads: int, layer_idx: int | None = None):
        """Build the attention of one of the model's sites."""
        return cls(
            config.hidden_size,
            num_heads,
            config.attention_for(site),
            bias=config.attention_bias,
            output_bias=config.attention_output_bias,
            dropout=config.attention_dropout,
            layer_idx=layer_idx,
        )

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Tensor | AttentionMask | None = None,
        past_key_values: Cache | None = None,
        statistics: str = "none",
        attn_implementation: str = "eager",
    ) -> AttentionOutput:
        r"""Attend from `hidden_states` to `key_value_states`, or to themselves and the cache.

        Args:
            hidden_states: [batch, query_len, embed_dim].
            key_value_states: [batch, key_len, embed_dim] for cross-attention.
            attention_mask: an `AttentionMask`, or bool, True = may attend, broadcasting to [batch, heads, query_len,
                key_len].
            past_key_values: keys (normalised) and values of earlier steps.
            statistics: of the rows of weights: `"none"`, `"sums"` or `"all"`, as in `eager_attention`.
            attn_implementation: backend.

        Returns:
            output [batch, query_len, embed_dim]; weights before dropout [batch, heads, query_len, key_len], or None
            from a backend that keeps none; the `RowStatistics`, not yet divided by c·n_i^α if α is no parameter.
        """
        # In cosine attention the learned scale is the gain of the norm that gives queries unit length.
        is_cosine = self.attention.score == "cosine"
        is_gain = is_cosine and self.scale is not None and self.attention.scale_form == "constant"
        gain = self.scale if is_gain else None
        query = self._heads(self.q_proj(hidden_states), self.query_norm, is_cosine, gain)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        key_len = key.shape[2] if key_value_states is not None else key.shape[2] * number_of_processes()
        mask = AttentionMask.of(attention_mask, query.shape[2], key_len, query.device)
        formula = self.formula(self.scaling, self.dropout if self.training else 0.0)
        output, weights, rows = self.attend(
            formula, query, key, value, mask, statistics, attn_implementation, key_value_states is not None, is_gain
        )
        # The output gate reads the input of the layer, as in the papers, and not the output of attention.
        if self.gate_proj is not None:
            output = output * OUTPUT_GATES[self.attention.output_gate](self.gate_proj(hidden_states))
        return self.out_proj(output), weights, rows

    def _keys_and_values(
        self, hidden_states: Tensor, key_value_states: Tensor | None, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, heads, key_len, head_dim], from the cache where it has them."""
        is_cross, cache, is_updated = key_value_states is not None, past_key_values, {}
        if isinstance(past_key_values, EncoderDecoderCache):
            cache = past_key_values.cross_attention_cache if is_cross else past_key_values.self_attention_cache
            is_updated = past_key_values.is_updated if is_cross else {}
        elif is_cross and cache is not None:
            raise ValueError(f"the cache is a {type(cache).__name__}, but must be an EncoderDecoderCache here")
        # The source does not change while a target is written, so its keys and values are made once.
        if not is_updated.get(self.layer_idx):
            source = key_value_states if is_cross else hidden_states
            key = self._heads(self.k_proj(source), self.key_norm, self.attention.score == "cosine")
            value = self._heads(self.v_proj(source), None, self.attention.value_norm == "l2")
            if cache is None:
                return key, value
            key, value = cache.update(key, value, self.layer_idx)
            is_updated[self.layer_idx] = True
        if is_cross:  # The cached keys of a source are cut to its length, because a static cache may be longer.
            layer, length = cache.layers[self.layer_idx], key_value_states.shape[1]
            return layer.keys[:, :, :length], layer.values[:, :, :length]
        return key, value

    def _heads(
        self, states: Tensor, norm: nn.Module | None, has_unit_length: bool, gain: Tensor | None = None
    ) -> Tensor:
        """[batch, length, embed_dim] → [batch, heads, length, head_dim], normalised while rows lie side by side."""
        states = states.unflatten(-1, (-1, self.head_dim))
        if norm is not None:
            states = norm(states)
        if has_unit_length:
            states = unit_length(states, gain=gain)
        return states.transpose(1, 2)
