# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention of every variant: projections, heads, q/k normalisation, cache and output norm.

`AttentionConfig` says which mathematics, `ATTENTION_ACTIVATIONS` how scores become weights, `ATTENTION_BACKENDS` how
both are computed. Reads top to bottom; the encoder–decoder families and the vision models share it.
"""

import math
import torch
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import Cache, EncoderDecoderCache, initialization as init
from types import ModuleType
from typing import Any, NamedTuple, TYPE_CHECKING
from .configuration_seq2seq import AttentionConfig, TransformerConfig, check_choice

# ---------------------------------------------------------------------------------------------------------------------
# modeling/kernels.py
# The one door to code that is faster than plain PyTorch and gives the same: that of the installed library.


INTERFACE = 4  # The models' code was written for this version of the interface of `reluformers_kernels`.


def _find_kernels() -> ModuleType | None:
    """Find `reluformers_kernels`; None where it is not installed, of another interface, or does not load here."""
    try:
        import reluformers_kernels
    except ImportError:
        return None
    # Kernels of another interface are not used: the code of an old folder must not call functions that have changed
    # since.
    return reluformers_kernels if getattr(reluformers_kernels, "INTERFACE", None) == INTERFACE else None


kernels = _find_kernels()


def apply_dropout(states: Tensor, probability: float, training: bool = True) -> Tensor:
    """Set a share of the states to 0 in training and scale up the others (Srivastava et al. 2014)."""
    if not training or probability == 0:
        return states
    # On CPUs PyTorch's dropout draws more random bits than it needs, which takes longer than the product.
    dropped = None if kernels is None else kernels.dropout(states, probability)
    return functional.dropout(states, probability) if dropped is None else dropped


# ---------------------------------------------------------------------------------------------------------------------
# modeling/normalization.py
# Normalisation layers that torch does not have, and the table of those a residual block may use.


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that norms and sums are computed in: fp32 for bf16 and fp16, else the same."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def at_least_float32(states: Tensor) -> Tensor:
    """The tensor in its `wide_dtype`."""
    return states.to(wide_dtype(states.dtype))


def _norm(states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool) -> Tensor:
    """y = σ(w⊙x) ⊙ g ⊙ x / ρ over the last dimension, in at least fp32, with gain g and gate w if they are given.

    ρ = √(mean(x²) + ε) if `is_mean`, else max(‖x‖₂, ε), or 1 at x = 0.
    """
    # A compiled norm is one pass over memory. If it returns None, plain PyTorch computes the norm.
    arguments = (states, gain, gate, eps, is_mean)
    output = None if kernels is None else kernels.norm(*arguments, _plain_norm)
    return _plain_norm(*arguments) if output is None else output


def _plain_norm(states, gain, gate, eps, is_mean) -> Tensor:
    wide = at_least_float32(states)
    gain, gate = (None if vector is None else vector.to(wide.dtype) for vector in (gain, gate))
    if is_mean:
        output = functional.rms_norm(wide, wide.shape[-1:], gain, eps)
    else:
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        # At x = 0 the norm divides by 1, because a division by ε would make the gradient 1/ε, which is huge.
        output = wide / norm.clamp_min(eps).masked_fill(norm == 0, 1.0)
        output = output if gain is None else gain * output
    return (output if gate is None else torch.sigmoid(gate * wide) * output).to(states.dtype)


def unit_length(states: Tensor, eps: float = 1e-12, gain: Tensor | None = None) -> Tensor:
    """g ⊙ x / max(‖x‖₂, ε) over the last dimension, in at least fp32, as ε would be 0 in fp16; x = 0 stays 0."""
    return _norm(states, gain, None, eps, is_mean=False)


class RMSNorm(nn.RMSNorm):
    """RMS normalisation y = g ⊙ x / √(mean(x²) + ε), in at least fp32 also under autocast (ReLA, eq. 4)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps=eps)

    def forward(self, hidden_states: Tensor) -> Tensor:  # RMSNorm takes and returns states [..., dim].
        return _norm(hidden_states, self.weight, None, self.eps, is_mean=True)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation y = g ⊙ (x − mean(x)) / √(var(x) + ε), without bias, in at least fp32 (Ba et al. 2016)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps=eps, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:  # LayerNorm takes and returns states [..., dim].
        states = at_least_float32(hidden_states)
        weight = self.weight.to(states.dtype)
        return functional.layer_norm(states, self.normalized_shape, weight, None, self.eps).to(hidden_states.dtype)


class NormGate:
    """w of σ(w⊙o) ⊙ Norm(o): what the gated norms of ReLA add to a norm; the zeros of a null row stay (eq. 5)."""

    def __init__(self, dim: int, eps: float = 1e-8):
        super().__init__(dim, eps=eps)
        self.gate = nn.Parameter(torch.empty(dim))  # The gate's vector is w in σ(w⊙o).
        self.reset_gate()

    def reset_gate(self) -> None:
        """Draw w from U(±√(3/d)), as the released code does."""
        bound = math.sqrt(3 / self.gate.numel())
        init.uniform_(self.gate, -bound, bound)


class GatedRMSNorm(NormGate, RMSNorm):
    """Gated RMS normalisation y = σ(w⊙o) ⊙ g ⊙ o / √(mean(o²) + ε), in at least fp32 (ReLA, eq. 5)."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # GatedRMSNorm takes and returns states [..., dim].
        return _norm(hidden_states, self.weight, self.gate, self.eps, is_mean=True)


class GatedLayerNorm(NormGate, LayerNorm):
    """Gated layer normalisation y = σ(w⊙o) ⊙ LayerNorm(o), the same with another norm (ReLA, table 1, row 8)."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # GatedLayerNorm takes and returns states [..., dim].
        states = at_least_float32(hidden_states)
        gate = torch.sigmoid(self.gate.to(states.dtype) * states)
        return (gate * super().forward(states)).to(hidden_states.dtype)


class ScaleNorm(nn.Module):
    r"""Length normalisation y = g·x / max(‖x‖₂, ε), one g from √dim or 1/√dim (Nguyen and Salazar 2019, eq. 5)."""

    def __init__(self, dim: int, eps: float = 1e-5, initial: str = "sqrt_dim"):
        super().__init__()
        self.dim, self.eps, self.initial = dim, eps, initial
        self.weight = nn.Parameter(torch.empty(1))  # The weight of ScaleNorm is its gain g.
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set g to its `initial`: `"sqrt_dim"` or `"inverse_sqrt_dim"`."""
        init.constant_(self.weight, self.dim ** (0.5 if self.initial == "sqrt_dim" else -0.5))

    def forward(self, hidden_states: Tensor) -> Tensor:  # ScaleNorm takes and returns states [..., dim].
        return self.weight * unit_length(hidden_states, self.eps)


class UnitLinear(nn.Linear):
    """Linear map whose rows have unit length, y = x·ŵᵀ + b: the output layer of FixNorm (Nguyen and Chiang 2018)."""

    def unit_weight(self) -> Tensor:
        """ŵ; a search makes it once for all its steps."""
        return unit_length(self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:  # States [..., in_features] become [..., out_features].
        return functional.linear(hidden_states, self.unit_weight(), self.bias)


NORMS: dict[str, type[nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": RMSNorm, "scale_norm": ScaleNorm}
OUTPUT_NORMS: dict[str, type[nn.Module]] = {
    "rms_norm": RMSNorm,
    "gated_rms_norm": GatedRMSNorm,
    "layer_norm": LayerNorm,
    "gated_layer_norm": GatedLayerNorm,
}


def build_norm(config: TransformerConfig) -> nn.Module:
    """The normalisation of a model's residual blocks, over the last dimension."""
    if config.norm_type == "none":
        return nn.Identity()
    options = {"initial": config.scale_norm_init} if config.norm_type == "scale_norm" else {}
    return NORMS[config.norm_type](config.hidden_size, eps=config.norm_eps, **options)


# ---------------------------------------------------------------------------------------------------------------------
# modeling/attention_functions.py
# How attention weights are made from scores: one pure function per φ, the only place where a variant's maths lives.
#
# Every function maps scores z [batch, heads, query_len, key_len] and a boolean mask that broadcasts to them (True = may
# attend; None = all may) to weights of the same shape and dtype, before they are divided by c·n^α. A masked weight is
# exactly 0 and gets no gradient; a row without a visible key is all 0.


SOFTPICK_EPS = 1e-6


def apply_masked(function: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    """φ on each score by itself; masked weights are set to 0 afterwards, so that no −∞ meets φ."""
    weights = function(scores)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _normalize(function: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    """φ that makes a row a distribution over its visible keys."""
    logits = at_least_float32(scores)
    if mask is None:
        return function(logits).to(scores.dtype)
    # Hidden scores get the lowest finite number: −∞ would make a row without a visible key NaN before it is set to 0.
    weights = function(logits.masked_fill(~mask, torch.finfo(logits.dtype).min))
    return weights.masked_fill(~mask, 0.0).to(scores.dtype)


def _sparse_distribution(logits: Tensor, power: int) -> Tensor:
    """max(z_j/p − τ, 0)^p, whose sum is 1 for p 1 or 2, exactly: of the k largest z, τ is a function of their sums."""
    scores = logits / power
    # Scores are clamped, because the threshold τ is never below −1.
    scores = (scores - scores.amax(-1, keepdim=True).detach()).clamp_min(-2)

    def threshold(sums: Tensor, squares: Tensor, counts: Tensor) -> Tensor:
        means = sums / counts
        return means - (1 / counts if power == 1 else ((1 - squares + sums * means) / counts).clamp_min(0).sqrt())

    # The choice of keys with a weight above 0 has no gradient. Given these keys, the threshold τ is a smooth function
    # of their scores.
    with torch.no_grad():
        ordered = scores.sort(-1, descending=True).values
        counts = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        is_kept = ordered > threshold(ordered.cumsum(-1), ordered.square().cumsum(-1), counts)
        smallest = ordered.gather(-1, is_kept.sum(-1, keepdim=True).clamp_min(1) - 1)
        # Keys whose score equals the smallest one kept stay too, because rounding decided about them before.
        kept = (scores >= smallest).to(scores.dtype)
    sums = ((scores**exponent * kept).sum(-1, keepdim=True) for exponent in (1, 2, 0))
    return functional.relu(scores - threshold(*sums)) ** power


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = exp(z_ij) / Σ_k exp(z_ik), summed in fp32 (Vaswani et al. 2017, eq. 1)."""
    return _normalize(lambda logits: functional.softmax(logits, dim=-1), scores, mask)


def softmax1(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = exp(z_ij) / (1 + Σ_k exp(z_ik)): softmax off by one, whose rows may be near 0 (Miller 2023)."""

    def normalize(logits: Tensor) -> Tensor:
        # The 1 in the denominator of softmax1 is a key of score 0, whose weight is left out again.
        return functional.softmax(functional.pad(logits, (0, 1)), dim=-1)[..., :-1]

    return _normalize(normalize, scores, mask)


def softpick(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(exp(z_ij) − 1, 0) / (Σ_k |exp(z_ik) − 1| + 10⁻⁶) over the visible keys (Zuhri et al. 2025)."""
    logits = at_least_float32(scores)
    # A hidden key adds nothing, because exp(0) − 1 = 0.
    shown = logits if mask is None else logits.masked_fill(~mask, 0.0)
    largest = shown.amax(-1, keepdim=True).clamp_min(0).detach()
    # With m = max z, (exp z − 1)·exp(−m) is finite for every z.
    powers = torch.exp(shown - largest) - torch.exp(-largest)
    weights = functional.relu(powers) / (powers.abs().sum(-1, keepdim=True) + SOFTPICK_EPS * torch.exp(-largest))
    return weights.to(scores.dtype)


def sparsemax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_i = argmin over distributions p of ‖p − z_i‖² (Martins and Astudillo 2016, eq. 1)."""
    return _normalize(partial(_sparse_distribution, power=1), scores, mask)


def entmax15(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(z_ij/2 − τ_i, 0)², τ_i so that the row sums to 1 (Peters et al. 2019, α = 1.5)."""
    return _normalize(partial(_sparse_distribution, power=2), scores, mask)


# Elementwise activations φ take each score z by itself.
_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,  # ReLU is max(z, 0) (ReLUFormer, eq. 5; ReLA, eq. 3).
    "relu2": lambda z: functional.relu(z).square(),  # Squared ReLU is max(z, 0)² (ReLU in ViT, figure 2).
    "relu6": functional.relu6,  # ReLU6 is min(max(z, 0), 6) (ReLU in ViT, figure 2).
    "leaky_relu": functional.leaky_relu,  # Leaky ReLU is max(z, 0) + 0.01·min(z, 0).
    "gelu": functional.gelu,  # GELU is z·Φ(z), Φ the normal distribution (ReLA, table 1; ReLU in ViT, figure 2).
    "softplus": functional.softplus,  # Softplus is log(1 + exp(z)) (ReLU in ViT, figure 2).
    "sigmoid": torch.sigmoid,  # The sigmoid is 1 / (1 + exp(−z)) (ReLU in ViT, figure 2).
    "identity": lambda z: z,  # The identity is z (ReLU in ViT, figure 2).
}

ATTENTION_ACTIVATIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "softmax": softmax,
    "softmax1": softmax1,
    "softpick": softpick,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    **{name: partial(apply_masked, function) for name, function in _ELEMENTWISE.items()},
}


def sum_to_one(weights: Tensor) -> Tensor:
    """s_ij = w_ij / Σ_k w_ik in at least fp32; a row whose sum is 0 stays 0, with no gradient."""
    wide = at_least_float32(weights)
    sums = wide.sum(-1, keepdim=True)
    # A sum of 0 is replaced before the division: 0/0 would have a NaN as gradient, even where the second fill hides
    # the value.
    return (wide / sums.masked_fill(sums == 0, 1.0)).masked_fill(sums == 0, 0.0).to(weights.dtype)


def length_divisor(
    key_counts: Tensor | int, coefficient: float, exponent: float | Tensor, dtype: torch.dtype
) -> Tensor | float | None:
    """c·n_i^α in at least fp32 for weights of this dtype, or None where it is 1; a row without keys counts as one."""
    if not isinstance(exponent, Tensor) and exponent == 0:
        # A divisor of None saves a division in every layer.
        return None if coefficient == 1 else coefficient
    if isinstance(exponent, Tensor):
        exponent = at_least_float32(exponent)
    if isinstance(key_counts, Tensor):
        key_counts = key_counts.clamp_min(1).to(wide_dtype(dtype))
    else:
        key_counts = max(key_counts, 1)
    return coefficient * key_counts**exponent


def length_factor(key_counts: Tensor | int, form: str, head_dim: int, dtype: torch.dtype) -> Tensor | float:
    """Factor of a scale or a threshold for each query; as for one key where there is none.

    `form`: `"constant"` 1, `"log_length"` log n_i, `"sqrt_log_length"` √(2 · log n_i / d_h).
    """
    if form == "constant":
        return 1.0
    if isinstance(key_counts, Tensor):
        logs = key_counts.clamp_min(1).to(wide_dtype(dtype)).log()
    else:
        logs = math.log(max(key_counts, 1))
    return logs if form == "log_length" else (2 * logs / head_dim) ** 0.5


# ---------------------------------------------------------------------------------------------------------------------
# modeling/masks.py
# Which keys a query may see, and how many they are.
#
# Masks are boolean, True = may attend. They are described by padding, causality and windows, and only made dense, query
# by key, for a computation that needs them so.


def differ(length: Any, other: Any) -> bool:
    """Whether two lengths differ; those of an exporter are no int, and it may not know."""
    return isinstance(length, int) and isinstance(other, int) and length != other


@dataclass(frozen=True)
class AttentionMask:
    """Query i sees key j if the key is real, j ≤ i + causal_offset, and first_keys_i ≤ j ≤ last_keys_i.

    All layers of a site share one mask: what they need of it is computed for the first one.

    Args:
        query_len, key_len: number of queries and of keys, cached ones included.
        device: where the queries are.
        key_padding_mask: bool [batch, key_len]; None if all are real.
        causal_offset: number of keys before the first query; a tensor where a static cache counts on the device; None
            if the future is visible.
        first_keys, last_keys: int [batch or 1, query_len], not decreasing along the queries: the first and the last
            key of a window, or of the text in a packed row; None for no such bound.
        given: bool, broadcasting to [batch, heads, query_len, key_len]: a ready mask; all others are then None.
        query_mask: bool, True = real query [batch, query_len], for the statistics of rows; None if all are real.
    """

    query_len: int
    key_len: int
    device: torch.device
    key_padding_mask: Tensor | None = None
    causal_offset: int | Tensor | None = None
    first_keys: Tensor | None = None
    last_keys: Tensor | None = None
    given: Tensor | None = None
    query_mask: Tensor | None = None

    def __post_init__(self):
        # Lengths of masks are checked, because a fused computation reads as many entries of a row as there are keys,
        # whatever the row's length.
        for mask, lengths in ((self.key_padding_mask, [self.key_len]), (self.given, [self.key_len, 1])):
            if mask is not None and (mask.shape[-1] not in lengths or mask.dtype != torch.bool):
                raise ValueError(
                    f"the mask is {mask.dtype} {list(mask.shape)}, but must be bool, of {self.key_len} keys"
                )

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "AttentionMask":
        """The mask on another device, where accelerate's hooks carry the inputs of a layer."""
        if torch.device(device) == self.device:
            return self
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()}
        return replace(self, device=torch.device(device), **moved)

    @classmethod
    def of(cls, mask: "Tensor | AttentionMask | None", query_len: int, key_len: int, device: torch.device):
        """A mask as it is, or that of a bool tensor that broadcasts to [batch, heads, query_len, key_len]."""
        # The mask's class may come from another copy of this code.
        if mask is not None and not isinstance(mask, Tensor):
            if differ(mask.query_len, query_len) or differ(mask.key_len, key_len):
                raise ValueError(
                    f"the mask is of {mask.query_len} queries and {mask.key_len} keys, but there are {query_len} and "
                    f"{key_len}"
                )
            return mask
        if mask is not None:
            # A mask with fewer than four dimensions lacks the first ones, as PyTorch broadcasts.
            mask = mask[(None,) * (4 - mask.dim())]
        # A mask of keys alone is padding in another form, and kernels take padding but no dense masks.
        if mask is not None and mask.shape[1:] == (1, 1, key_len):
            return cls(query_len, key_len, device, key_padding_mask=mask[:, 0, 0])
        return cls(query_len, key_len, device, given=mask)

    def of_rows(self, rows: Tensor | slice) -> "AttentionMask":
        """The mask of queries at these indices, which rise."""

        def of(part: Tensor | None, dim: int = 1) -> Tensor | None:
            return part if part is None or part.shape[dim] == 1 else part[(slice(None),) * dim + (rows,)]

        places = torch.arange(self.query_len, device=self.device)[rows]
        last = of(self.last_keys)
        if self.causal_offset is not None:
            causal = places[None] + self.causal_offset
            last = causal if last is None else last.minimum(causal)
        return replace(
            self,
            query_len=len(places),
            causal_offset=None,
            first_keys=of(self.first_keys),
            last_keys=last,
            given=of(self.given, 2),
            query_mask=of(self.query_mask),
        )

    @property
    def is_structured(self) -> bool:
        """Whether there is no ready mask, and causality is known on the host."""
        return self.given is None and not isinstance(self.causal_offset, Tensor)

    @property
    def is_causal(self) -> bool:
        """Whether some key is in the future of some query, as far as the host knows."""
        if isinstance(self.causal_offset, Tensor):
            return True
        return self.causal_offset is not None and self.causal_offset < self.key_len - 1

    @property
    def is_triangle(self) -> bool:
        """Whether the mask is plain causal self-attention: no padding, no window, no cache."""
        bounds = (self.key_padding_mask, self.first_keys, self.last_keys)
        is_plain = self.is_structured and all(bound is None for bound in bounds)
        return is_plain and self.is_causal and self.causal_offset == 0 and self.query_len == self.key_len

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Make a value once for all layers; `torch.compile`, which cannot trace it, merges equal values by itself."""
        if torch.compiler.is_compiling():
            return make()
        kept = self.__dict__.setdefault("_kept", {})
        if name not in kept:
            kept[name] = make()
        return kept[name]

    @property
    def dense(self) -> Tensor | None:
        """Bool [batch or 1, heads or 1, query_len or 1, key_len], or None if every query sees every key."""
        return self.once("dense", self._make_dense)

    def _make_dense(self) -> Tensor | None:
        if self.given is not None:
            return self.given
        mask = None if self.key_padding_mask is None else self.key_padding_mask[:, None, None, :]
        keys = torch.arange(self.key_len, device=self.device)
        if self.is_causal:
            last = torch.arange(self.query_len, device=self.device)[:, None] + self.causal_offset
            causal = (keys <= last)[None, None]
            mask = causal if mask is None else causal & mask
        if self.first_keys is not None:
            window = keys >= self.first_keys[:, None, :, None]
            mask = window if mask is None else window & mask
        if self.last_keys is not None:
            window = keys <= self.last_keys[:, None, :, None]
            mask = window if mask is None else window & mask
        return mask

    @property
    def key_counts(self) -> Tensor | int:
        """n_i: one number if all queries see every key, else [batch or 1, heads or 1, query_len or 1, 1]."""
        return self.once("key_counts", self._count_keys)

    def _count_keys(self) -> Tensor | int:
        # A dense mask may be anything, so its visible keys are counted.
        if not self.is_structured:
            return self.dense.expand(*self.dense.shape[:-1], self.key_len).sum(-1, keepdim=True)
        padding, first, last = self.key_padding_mask, self.first_keys, self.last_keys
        if not self.is_causal and first is None and last is None:
            return self.key_len if padding is None else padding.sum(-1)[:, None, None, None]
        seen = torch.full((1, self.query_len), self.key_len, device=self.device)
        if self.is_causal:
            places = torch.arange(self.query_len, device=self.device)[None]
            seen = (places + (self.causal_offset + 1)).clamp(0, self.key_len)
        if last is not None:
            seen = seen.minimum(last + 1).clamp_min(0)
        # `real` counts the keys before each position that are no padding; n_i is the difference of two counts, without
        # a matrix.
        real = None if padding is None else functional.pad(padding.cumsum(-1), (1, 0))
        counts = seen if real is None else real.gather(1, seen.expand(len(real), -1))
        if first is not None:
            first = first.clamp(0, self.key_len).minimum(seen)
            counts = counts - (first if real is None else real.gather(1, first.expand(len(real), -1)))
        return counts[:, None, :, None]


# ---------------------------------------------------------------------------------------------------------------------
# modeling/context_parallel.py
# Context parallelism: each process has some rows of a sequence, and attends to the keys of all processes.
#
# Of 2n pieces of a sequence, process r of n has piece r and piece 2n − 1 − r: with causality all have equal work.


if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The innermost mesh of processes is the last. Threads share the list, as the backward pass may run in one of its own.
_MESHES: "list[DeviceMesh]" = []


@contextmanager
def sequence_on(mesh: "DeviceMesh") -> Iterator[None]:
    """Let the processes of a mesh of one dimension share every sequence."""
    _MESHES.append(mesh)
    try:
        yield
    finally:
        _MESHES.pop()


def number_of_processes() -> int:
    """How many processes share a sequence; 1 outside of `sequence_on`."""
    return _MESHES[-1].size() if _MESHES else 1


def own_rows(states: Tensor, dim: int = 1, mesh: "DeviceMesh | None" = None) -> Tensor:
    """The rows of this process.

    Raises:
        ValueError: twice the number of processes does not divide the length.
    """
    if mesh is None and not _MESHES:
        return states
    mesh = _MESHES[-1] if mesh is None else mesh
    number, length = 2 * mesh.size(), states.shape[dim]
    if length % number:
        raise ValueError(f"a sequence has {length} tokens, but must have a multiple of {number} to be shared")
    pieces = states.chunk(number, dim)
    rank = mesh.get_local_rank()
    return torch.cat([pieces[rank], pieces[number - 1 - rank]], dim)


def all_rows(states: Tensor, dim: int = 1) -> Tensor:
    """The rows of all processes in their order; the backward pass adds up what all processes have of a gradient."""
    if not _MESHES:
        return states
    pieces = [piece for part in _gather(states).chunk(number_of_processes()) for piece in part.chunk(2, dim)]
    return torch.cat([*pieces[::2], *pieces[::-2]], dim)


def _gather(states: Tensor) -> Tensor:
    # Not every build of torch has collective operations.
    from torch.distributed import _functional_collectives as collectives

    # torch calls the differentiable gather `all_gather_tensor_autograd` until 2.12.
    gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
    return gather(states.contiguous(), 0, _MESHES[-1])


def sum_of_processes(states: Tensor) -> Tensor:
    """Sum over all processes; so is its gradient."""
    return _gather(states[None]).sum(0) if _MESHES else states


def own_mask(mask: AttentionMask) -> AttentionMask:
    """The mask of the rows of this process."""
    if not _MESHES:
        return mask
    return mask.of_rows(own_rows(torch.arange(mask.query_len, device=mask.device), 0))


# ---------------------------------------------------------------------------------------------------------------------
# modeling/regularization.py
# Row statistics of attention weights: the regulariser of ReLUFormer and the null rate of ReLA.


class RowStatistics(NamedTuple):
    r"""Sums over the weights s_ij of each row, before dropout, in at least float32 [batch, heads, query_len].

    Layers return them one by one: reentrant checkpoints see flat tuples of tensors alone. What nobody needs is None.

    Args:
        row_sums: Σ_j s_ij.
        weighted_logs: Σ_j s_ij·log s_ij, with 0·log 0 = 0; the entropy of p = s/Σs is log Σs − Σ s·log s / Σs.
    """

    row_sums: Tensor | None = None
    weighted_logs: Tensor | None = None

    @classmethod
    def of(cls, weights: Tensor, needed: str) -> "RowStatistics":
        """Sum what is needed, `"none"`, `"sums"` or `"all"`, of weights [batch, heads, query_len, key_len]."""
        if needed == "none":
            return cls()
        weights = at_least_float32(weights)
        if needed == "sums":
            return cls(weights.sum(-1))
        # Attention weights are clamped before their log, because the gradient of xlogy is not finite at s = 0.
        logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
        return cls(weights.sum(-1), (weights * logs).sum(-1))

    @classmethod
    def join(cls, parts: "list[RowStatistics]") -> "RowStatistics":
        """Join the statistics of queries that were computed in parts."""
        columns = zip(*parts, strict=True)
        return cls(*(None if column[0] is None else torch.cat(column, dim=-1) for column in columns))


@dataclass
class SiteRows:
    """Statistics of the rows of all layers of one site of a model, and what the regulariser has to know of these.

    Args:
        layers: `RowStatistics` of each layer that has some; the weighted logs are needed with an entropy bound.
        key_counts: n_i, one number or broadcasting to [batch, heads, query_len, 1].
        query_mask: bool, True = real query [batch, query_len], or None for all.
        coefficient, exponent: c and α of weights that are not divided by c·n_i^α yet; H(p) does not depend on it.
    """

    layers: list[tuple[Tensor, Tensor | None]]
    key_counts: Tensor | int
    query_mask: Tensor | None
    coefficient: float = 1.0
    exponent: float = 0.0

    def of_rows(self, numbers: Tensor | float) -> Tensor:
        """Repeat what broadcasts to [batch, heads, query_len] for the rows of all layers."""
        row_sums = self.layers[0][0]
        if not isinstance(numbers, Tensor):
            numbers = row_sums.new_full((), numbers)
        return numbers.expand(len(self.layers), *row_sums.shape).flatten()


def regularizer_sums(sites: list[SiteRows], entropy_bound: float | None) -> Tensor:
    r"""Sum the terms of ReLUFormer's attention regulariser over real queries of all layers and sites.

    With p = s_i / Σ_j s_ij the terms are |log Σ_j s_ij| and max(H(p) − C_i, 0), C_i = entropy_bound · log n_i
    (ReLUFormer, eq. 7 and App. A.2). A null row (Σ = 0) gives 0 to both and has no gradient.

    Args:
        sites: at least one; those that differ in c or α are summed apart.
        entropy_bound: C_i / log n_i; None leaves both terms 0 and counts rows only.

    Returns:
        [4], at least float32, on the device of the last layer: Σ normalisation term, Σ entropy term, number of null
        rows, number of rows.
    """
    divisors = {(site.coefficient, site.exponent) for site in sites}
    if len(divisors) > 1:
        parts = ([site for site in sites if (site.coefficient, site.exponent) == divisor] for divisor in divisors)
        return torch.stack([regularizer_sums(part, entropy_bound) for part in parts]).sum(0)
    device = sites[-1].layers[-1][0].device

    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.flatten().to(device) for part in parts])

    sums, logs = zip(*(layer for site in sites for layer in site.layers), strict=True)
    row_sums = joined(sums)
    is_used, number = row_sums != 0, row_sums.new_full((), row_sums.numel())
    if any(site.query_mask is not None for site in sites):
        masks = [True if site.query_mask is None else site.query_mask[:, None] for site in sites]
        is_real = joined([site.of_rows(mask) for site, mask in zip(sites, masks, strict=True)]).bool()
        is_used, number = is_used & is_real, is_real.sum(dtype=row_sums.dtype)
    used = is_used.to(row_sums.dtype)
    if entropy_bound is None:
        normalization = entropy_excess = row_sums.new_zeros(())
    else:
        counts = [length_factor(site.key_counts, "log_length", 1, row_sums.dtype) for site in sites]
        counts = [part.squeeze(-1) if isinstance(part, Tensor) else part for part in counts]
        log_counts = joined([site.of_rows(part) for site, part in zip(sites, counts, strict=True)])
        safe_sums = row_sums.masked_fill(~is_used, 1.0)
        log_sums = safe_sums.log()
        excess = log_sums - joined(logs) / safe_sums - entropy_bound * log_counts
        coefficient, exponent = divisors.pop()
        if (coefficient, exponent) != (1, 0):
            log_sums = log_sums - (exponent * log_counts + math.log(coefficient))
        normalization = torch.dot(log_sums.abs(), used)
        entropy_excess = torch.dot(functional.relu(excess), used)
    return torch.stack([normalization, entropy_excess, number - used.sum(), number])


# ---------------------------------------------------------------------------------------------------------------------
# modeling/attention.py


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
