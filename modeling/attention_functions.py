"""How attention weights are made from scores: one pure function per φ, the only place where a variant's maths lives.

Every function maps scores z [batch, heads, query_len, key_len] and a boolean mask that broadcasts to them (True = may
attend; None = all may) to weights of the same shape and dtype, before they are divided by c·n^α. A masked weight is
exactly 0 and gets no gradient; a row without a visible key is all 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .normalization import at_least_float32

try:
    from entmax import entmax15 as _entmax15
    from entmax import sparsemax as _sparsemax
except ImportError:
    _entmax15 = _sparsemax = None


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = exp(z_ij) / Σ_k exp(z_ik), summed in fp32 (Vaswani et al. 2017, eq. 1)."""
    return _normalize(lambda logits: functional.softmax(logits, dim=-1), scores, mask)


def sparsemax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_i = argmin over distributions p of ‖p − z_i‖² (Martins and Astudillo 2016, eq. 1); needs `entmax`."""
    return _normalize(_require_entmax(_sparsemax, "sparsemax"), scores, mask)


def entmax15(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(z_ij/2 − τ_i, 0)², τ_i so that the row sums to 1 (Peters et al. 2019, α = 1.5); needs `entmax`."""
    return _normalize(_require_entmax(_entmax15, "entmax15"), scores, mask)


def relu(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(z_ij, 0) (ReLUFormer, eq. 5; ReLA, eq. 3)."""
    return _apply(functional.relu, scores, mask)


def relu2(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(z_ij, 0)² (ReLU in ViT, figure 2)."""
    return _apply(lambda z: functional.relu(z).square(), scores, mask)


def relu6(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = min(max(z_ij, 0), 6) (ReLU in ViT, figure 2)."""
    return _apply(functional.relu6, scores, mask)


def leaky_relu(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = max(z_ij, 0) + 0.01·min(z_ij, 0)."""
    return _apply(functional.leaky_relu, scores, mask)


def gelu(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = z_ij·Φ(z_ij), Φ the normal distribution function (ReLA, table 1; ReLU in ViT, figure 2)."""
    return _apply(functional.gelu, scores, mask)


def softplus(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = log(1 + exp(z_ij)) (ReLU in ViT, figure 2)."""
    return _apply(functional.softplus, scores, mask)


def sigmoid(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = 1 / (1 + exp(−z_ij)) (ReLU in ViT, figure 2)."""
    return _apply(torch.sigmoid, scores, mask)


def identity(scores: Tensor, mask: Tensor | None) -> Tensor:
    """s_ij = z_ij (ReLU in ViT, figure 2)."""
    return _apply(lambda z: z, scores, mask)


ATTENTION_ACTIVATIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "relu": relu,
    "relu2": relu2,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "gelu": gelu,
    "softplus": softplus,
    "sigmoid": sigmoid,
    "identity": identity,
}


def _apply(function: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    """φ on each score by itself; masked weights are set to 0 afterwards, so that no −∞ meets φ."""
    weights = function(scores)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _normalize(function: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    """φ that makes a row a distribution over its visible keys."""
    logits = at_least_float32(scores)
    if mask is None:
        return function(logits).to(scores.dtype)
    # the lowest finite value, not −∞: a row without a visible key must stay finite until it is set to 0
    weights = function(logits.masked_fill(~mask, torch.finfo(logits.dtype).min))
    return weights.masked_fill(~mask, 0.0).to(scores.dtype)


def _require_entmax(function: Callable | None, name: str) -> Callable[[Tensor], Tensor]:
    if function is None:
        raise ImportError(f"attention with activation {name!r} needs the package entmax: run `pip install entmax`")
    return lambda logits: function(logits, dim=-1)
