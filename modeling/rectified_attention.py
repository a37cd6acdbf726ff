"""Attention with an elementwise φ as one fused operation, exact and in memory linear in the length.

`rectified_attention` is the function for everyone, `attend` the part of it that the models' backend `fused` calls. It
is one operator of PyTorch, so that `torch.compile` takes it whole.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..configuration.fields import check_choice
from .attention_functions import ATTENTION_ACTIVATIONS, ELEMENTWISE_GRADIENTS, length_divisor
from .blockwise_attention import blockwise_backward, blockwise_forward
from .masks import AttentionMask
from .normalization import wide_dtype

# the others normalise a row and need it whole
ELEMENTWISE_ACTIVATIONS = tuple(ELEMENTWISE_GRADIENTS)


@dataclass
class RowStatistics:
    r"""Sums over the weights s_ij of each row, before dropout, in at least float32 [batch, heads, query_len].

    Args:
        row_sums: Σ_j s_ij.
        weighted_logs: Σ_j s_ij·log s_ij, with 0·log 0 = 0; the entropy of p = s/Σs is log Σs − Σ s·log s / Σs.
        nonzeros: number of weights that are not 0; not differentiable.
    """

    row_sums: Tensor
    weighted_logs: Tensor | None = None
    nonzeros: Tensor | None = None


# Two checkpoints in one process may carry two versions of this code: each has operators of its own.
_NAMESPACE = f"reluformers_{hashlib.sha256(__name__.encode()).hexdigest()[:16]}"


def _uses_triton(query: Tensor, value: Tensor, activation: str) -> bool:
    """Whether Triton's kernels compute this; else it is done block by block."""
    if query.device.type != "cuda":
        return False
    from .triton_attention import can_take  # only where there is a GPU: triton takes long to import

    return can_take(query, value, activation)


def _passes(query: Tensor, value: Tensor, activation: str) -> tuple[Callable, Callable]:
    """The forward and the backward pass that suit these tensors."""
    if _uses_triton(query, value, activation):
        from .triton_attention import triton_backward, triton_forward

        return triton_forward, triton_backward
    return blockwise_forward, blockwise_backward


@torch.library.custom_op(f"{_NAMESPACE}::rectified_attention", mutates_args=())
def _operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor | None,
    row_factors: Tensor | None,
    key_mask: Tensor | None,
    seed: Tensor | None,
    activation: str,
    scale: float,
    fixed_threshold: float,
    causal_offset: int | None,
    dropout: float,
    statistics: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The forward pass; statistics that are not asked for are empty."""
    forward, _ = _passes(query, value, activation)
    with torch.autocast(query.device.type, enabled=False):
        output, *sums = forward(
            query,
            key,
            value,
            activation=activation,
            scale=scale,
            threshold=fixed_threshold if threshold is None else threshold,
            row_factors=row_factors,
            key_mask=key_mask,
            causal_offset=causal_offset,
            dropout=dropout,
            seed=seed,
            statistics=statistics,
        )
    return output, *(query.new_empty(0, dtype=wide_dtype(query.dtype)) if total is None else total for total in sums)


@_operator.register_fake
def _(
    query, key, value, threshold, row_factors, key_mask, seed, activation, scale, fixed, offset, dropout, statistics
):
    batch, heads, query_len, _ = query.shape
    output = query.new_empty(batch, query_len, heads, value.shape[-1]).transpose(1, 2)
    row = (batch, heads, query_len)
    shapes = {"none": [(0,)] * 3, "sums": [row, (0,), (0,)], "all": [row] * 3}[statistics]
    return output, *(query.new_empty(shape, dtype=wide_dtype(query.dtype)) for shape in shapes)


@torch.library.custom_op(f"{_NAMESPACE}::rectified_attention_backward", mutates_args=())
def _backward_operator(
    grad_output: Tensor,
    grad_row_sums: Tensor | None,
    grad_weighted_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor | None,
    row_factors: Tensor | None,
    key_mask: Tensor | None,
    seed: Tensor | None,
    activation: str,
    scale: float,
    fixed_threshold: float,
    causal_offset: int | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and θ."""
    _, backward = _passes(query, value, activation)
    with torch.autocast(query.device.type, enabled=False):
        return backward(
            grad_output,
            grad_row_sums,
            grad_weighted_logs,
            query,
            key,
            value,
            activation=activation,
            scale=scale,
            threshold=fixed_threshold if threshold is None else threshold,
            row_factors=row_factors,
            key_mask=key_mask,
            causal_offset=causal_offset,
            dropout=dropout,
            seed=seed,
        )


@_backward_operator.register_fake
def _(
    grad_output, grad_row_sums, grad_weighted_logs, query, key, value, threshold, factors, mask, seed, activation, *_
):
    grad_query = _empty_heads_inside(query)
    if _uses_triton(query, value, activation):
        grads = [_empty_heads_inside(states) for states in (key, value)]
    else:  # made lying down, [width, length]
        grads = [torch.empty_like(states.mT, memory_format=torch.contiguous_format).mT for states in (key, value)]
    return grad_query, *grads, query.new_empty((), dtype=wide_dtype(query.dtype))


def _empty_heads_inside(states: Tensor) -> Tensor:
    """Memory [batch, length, heads, width], seen as [batch, heads, length, width]."""
    return torch.empty_like(states.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _save_for_backward(ctx, inputs, output) -> None:
    *tensors, ctx.activation, ctx.scale, ctx.fixed_threshold, ctx.causal_offset, ctx.dropout, ctx.statistics = inputs
    ctx.save_for_backward(*tensors)
    ctx.mark_non_differentiable(output[3])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_output, grad_row_sums, grad_weighted_logs, _) -> tuple[Tensor | None, ...]:
    query, key, value, threshold, *tensors = ctx.saved_tensors
    if grad_output is None:
        grad_output = torch.zeros_like(query[..., :1]).expand(*query.shape[:-1], value.shape[-1])
    if ctx.statistics == "none":
        grad_row_sums = None
    if ctx.statistics != "all":
        grad_weighted_logs = None
    options = (ctx.activation, ctx.scale, ctx.fixed_threshold, ctx.causal_offset, ctx.dropout)
    *grads, grad_threshold = _backward_operator(
        grad_output, grad_row_sums, grad_weighted_logs, query, key, value, threshold, *tensors, *options
    )
    grad_threshold = None if threshold is None else grad_threshold.to(threshold.dtype).view(threshold.shape)
    return *grads, grad_threshold, *[None] * 9


_operator.register_autograd(_backward, setup_context=_save_for_backward)


def rectified_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    activation: str = "relu",
    scale: float | Tensor | None = None,
    threshold: float | Tensor = 0.0,
    length_exponent: float | Tensor = 0.0,
    length_coefficient: float = 1.0,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    causal_offset: int | None = None,
    dropout: float = 0.0,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, RowStatistics]:
    r"""Attention without softmax: out_i = Σ_j s_ij v_j with s_ij = φ(a·q_i·k_j − θ) / (c·n_i^α).

    The sum runs over the n_i keys that query i may see. Nothing of the size query_len × key_len is ever held, neither
    here nor in the backward pass, which computes the weights again. A query that sees no key gives 0.

    Args:
        query: [batch, heads, query_len, head_dim], of any strides.
        key, value: [batch, heads, key_len, head_dim].
        activation: φ, a name of `ELEMENTWISE_ACTIVATIONS`.
        scale: a, a number or a tensor of one element; 1/√head_dim if None.
        threshold: θ, a number or a tensor of one element.
        length_exponent, length_coefficient: α, a number or a tensor of one element, and c > 0.
        key_padding_mask: bool [batch, key_len], True = real key; None if all are.
        is_causal: whether query i sees only the keys j ≤ i + causal_offset.
        causal_offset: None for key_len − query_len: the queries are the last tokens, as with a cache.
        dropout: share of weights dropped, in [0, 1), drawn anew at each call from torch's random numbers.
        return_stats: also return the `RowStatistics` of s.

    Returns:
        out, of the shape and dtype of the queries (with the width of the values), and the statistics if asked for.

    Raises:
        ValueError: shapes or dtypes do not fit, or a value is not allowed.
    """
    _check(query, key, value, key_padding_mask)
    check_choice("rectified_attention", "activation", activation, ELEMENTWISE_ACTIVATIONS)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}, but must be a number in [0, 1)")
    offset = None
    if is_causal:
        offset = key.shape[2] - query.shape[2] if causal_offset is None else causal_offset
    mask = AttentionMask(query.shape[2], key.shape[2], query.device, key_padding_mask, offset)
    output, statistics = attend(
        query,
        key,
        value,
        mask,
        activation=activation,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        threshold=threshold,
        divisor=length_divisor(mask.key_counts(), length_coefficient, length_exponent, query.dtype),
        dropout=dropout,
        statistics="all" if return_stats else "none",
    )
    return (output, statistics) if return_stats else output


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    *,
    activation: str,
    scale: float | Tensor,
    threshold: float | Tensor,
    divisor: float | Tensor | None,
    dropout: float = 0.0,
    statistics: str = "none",
) -> tuple[Tensor, RowStatistics | None]:
    """`rectified_attention` for a structured mask and a divisor c·n_i^α that are made already.

    Args:
        query, key, value, activation, scale, threshold, dropout: as there.
        mask: `is_structured`.
        divisor: [batch or 1, 1, query_len or 1, 1] or of one element, a number, or None for 1.
        statistics: `"none"`, `"sums"` for the row sums alone, or `"all"`.
    """
    query, key, value = in_one_dtype(query, key, value)
    if isinstance(scale, Tensor):
        query, scale = (query * scale).to(query.dtype), 1.0
    if isinstance(threshold, Tensor):
        threshold = threshold.reshape(())
    if mask.query_len == 1 and dropout == 0 and statistics == "none":
        return _attend_once(query, key, value, mask, activation, scale, threshold, divisor), None
    is_learned = isinstance(divisor, Tensor) and divisor.requires_grad
    seed = torch.randint(2**62, (), device=query.device) if dropout > 0 else None
    output, row_sums, weighted_logs, nonzeros = _operator(
        query,
        key,
        value,
        threshold if isinstance(threshold, Tensor) else None,
        None if divisor is None else _row_factors(divisor, query),
        None if mask.real_keys is None else mask.real_keys.expand(query.shape[0], -1),
        seed,
        activation,
        scale,
        0.0 if isinstance(threshold, Tensor) else threshold,
        mask.causal_offset if mask.is_causal else None,
        dropout,
        statistics,
    )
    if is_learned:  # a factor of 1 with the gradient of 1 / divisor: fp16 could not hold what is not divided yet
        output = (output * (divisor.detach() / divisor)).to(output.dtype)
    if statistics == "none":
        return output, None
    rows = RowStatistics(row_sums)
    if divisor is not None:
        divisor = torch.as_tensor(divisor, dtype=row_sums.dtype, device=row_sums.device).squeeze(-1)
        rows.row_sums = row_sums / divisor
    if statistics == "all":
        rows.nonzeros = nonzeros
        rows.weighted_logs = weighted_logs
        if divisor is not None:
            rows.weighted_logs = weighted_logs / divisor - rows.row_sums * divisor.log()
    return output, rows


def _attend_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    activation: str,
    scale: float,
    threshold: float | Tensor,
    divisor: float | Tensor | None,
) -> Tensor:
    """The same for a single query, as in decoding with a cache: one row of weights is nothing to save on."""
    scores = (query * scale) @ key.transpose(-1, -2)
    if isinstance(threshold, Tensor) or threshold:
        scores = scores - threshold
    weights = ATTENTION_ACTIVATIONS[activation](scores, mask.matrix())
    return (weights if divisor is None else weights / divisor).to(value.dtype) @ value


def _row_factors(divisor: float | Tensor, query: Tensor) -> Tensor:
    """1/(c·n_i^α), without its gradient    [batch or 1, query_len]."""
    if not isinstance(divisor, Tensor):
        return query.new_full((1, query.shape[2]), 1 / divisor, dtype=wide_dtype(query.dtype))
    divisor = divisor.detach()
    divisor = divisor[:, 0, :, 0] if divisor.dim() == 4 else divisor.reshape(1, 1)
    return divisor.reciprocal().expand(-1, query.shape[2])


def in_one_dtype(*states: Tensor) -> list[Tensor]:
    """That of autocast, as matrix products have it, else the widest."""
    device_type, dtype = states[0].device.type, states[0].dtype
    if torch.is_autocast_enabled(device_type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device_type)
    else:
        for other in states[1:]:
            dtype = torch.promote_types(dtype, other.dtype)
    return [tensor.to(dtype) for tensor in states]


def _check(query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> None:
    shapes = [list(states.shape) for states in (query, key, value)]
    batch_and_heads = {tuple(shape[:2]) for shape in shapes}
    fits = all(len(shape) == 4 for shape in shapes) and len(batch_and_heads) == 1
    if not fits or query.shape[3] != key.shape[3] or key.shape[2] != value.shape[2]:
        raise ValueError(
            f"query, key and value are {shapes}, but must be [batch, heads, length, width] with the same batch and "
            "heads, keys as wide as queries, and as many values as keys"
        )
    if not all(states.is_floating_point() for states in (query, key, value)):
        raise ValueError(f"query, key and value are {query.dtype}, {key.dtype}, {value.dtype}, but must be floats")
    expected = [query.shape[0], key.shape[2]]
    if key_padding_mask is not None and (
        key_padding_mask.dtype != torch.bool or list(key_padding_mask.shape) != expected
    ):
        raise ValueError(
            f"key_padding_mask is {key_padding_mask.dtype} {list(key_padding_mask.shape)}, but must be torch.bool "
            f"{expected}, True = real key"
        )
