# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Attention with an elementwise φ as one fused operation, exact and in memory linear in the length.

`rectified_attention` is the function for everyone, `attention` the one that the models' backend `fused` calls. It is
one operator of PyTorch, so that `torch.compile`, `torch.vmap` and dispatch modes take it whole; for plain tensors its
two passes are called past the dispatch of operators, which takes longer than a small attention.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from .activations import (
    ACTIVATIONS,
    NOT_NEGATIVE,
    NUMBER_OF_SUMS,
    RECTIFIED,
    SLOPES,
    SPARSE_DISTRIBUTIONS,
    TENSORS,
    PassOptions,
    activate,
    can_scale_weights,
)
from .blockwise_attention import blockwise_backward, blockwise_forward, blockwise_thresholds
from .compiled import native
from .computation import choose_computation
from .tensors import (
    NAMESPACE,
    are_plain,
    at_least_float32,
    empty_heads_inside,
    in_one_dtype,
    is_differentiated,
    is_dispatched,
    wide_dtype,
    without_autocast,
)


def _passes(computation: str) -> tuple[Callable, Callable, Callable]:
    """The forward and the backward pass of a fused computation, and what finds the thresholds of rows."""
    if computation == "triton":
        # Triton is imported only where there is a GPU, because the import is slow.
        from .triton_attention import triton_backward, triton_forward, triton_thresholds

        return triton_forward, triton_backward, triton_thresholds
    if computation == "native":
        return native.forward, native.backward, native.find_thresholds
    return blockwise_forward, blockwise_backward, blockwise_thresholds


_INPUTS = "Tensor query, Tensor key, Tensor value, str computation"
_OPTIONS = (  # The arguments of the operator after `computation` are the fields of `PassOptions`.
    "Tensor? learned_threshold, Tensor? row_factors, Tensor? key_padding_mask, Tensor? seed, "
    "Tensor? first_keys, Tensor? last_keys, Tensor? row_thresholds, str activation, float scale, float threshold, "
    "SymInt? causal_offset, float dropout, str needed_statistics"
)
_OUTPUTS = "Tensor, Tensor, Tensor, Tensor"


def _rectified(options: PassOptions, thresholds: Tensor | None = None) -> PassOptions:
    """A sparse distribution as relu or relu² behind a threshold of each row, which the same kernels compute."""
    activation, factor = RECTIFIED[options.activation][:2]
    changes = {"activation": activation, "scale": factor * options.scale, "row_thresholds": thresholds}
    return options._replace(learned_threshold=None, threshold=0.0, **changes)


def _run_forward(query, key, value, computation, options) -> tuple[Tensor | None, ...]:
    """The output, the statistics that are needed, and the thresholds that were solved for."""
    forward, _, find_thresholds = _passes(computation)
    # Autocast is off, because the operands have one dtype by now, and it would also round the sums inside.
    with without_autocast(query.device.type):
        thresholds = None
        if options.activation in RECTIFIED:
            thresholds = find_thresholds(query, key, _rectified(options))
            options = _rectified(options, thresholds)
        return *forward(query, key, value, options), thresholds


@torch.library.custom_op(
    f"{NAMESPACE}::rectified_attention", mutates_args=(), schema=f"({_INPUTS}, {_OPTIONS}) -> ({_OUTPUTS}, Tensor)"
)
def _operator(query, key, value, computation, *options) -> tuple[Tensor, ...]:
    """Run the forward pass as an operator; what is not needed is empty."""
    output, *sums = _run_forward(query, key, value, computation, PassOptions(*options))
    return output, *(query.new_empty(0, dtype=wide_dtype(query.dtype)) if total is None else total for total in sums)


@_operator.register_fake
def _(query, key, value, computation, *options):
    batch, heads, query_len, _ = query.shape
    output = query.new_empty(batch, query_len, heads, value.shape[-1]).transpose(1, 2)
    row = (batch, heads, query_len)
    options = PassOptions(*options)
    shapes = [row if index < NUMBER_OF_SUMS[options.needed_statistics] else (0,) for index in range(3)]
    shapes = [*shapes, row if options.activation in RECTIFIED else (0,)]
    return output, *(query.new_empty(shape, dtype=wide_dtype(query.dtype)) for shape in shapes)


_GRADIENTS = "Tensor grad_output, Tensor? grad_row_sums, Tensor? grad_weighted_logs"


def _run_backward(
    grad_output, grad_row_sums, grad_weighted_logs, query, key, value, computation, options
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value and θ, which may be None where θ is a number."""
    forward, backward, _ = _passes(computation)
    with without_autocast(query.device.type):
        # As the sum of a row's weights stays 1, dθ_i = Σ_j φ′(z_ij)·dz_ij / Σ_j φ′(z_ij).
        if options.row_thresholds is not None:
            slopes = options._replace(activation=SLOPES[options.activation], needed_statistics="sums")
            output, sums, *_ = forward(query, key, value, slopes)
            grad_row_sums = -(at_least_float32(grad_output) * output).sum(-1) * _shares(sums)
        return backward(grad_output, grad_row_sums, grad_weighted_logs, query, key, value, options)


@torch.library.custom_op(
    f"{NAMESPACE}::rectified_attention_backward",
    mutates_args=(),
    schema=f"({_GRADIENTS}, {_INPUTS}, {_OPTIONS}) -> ({_OUTPUTS})",
)
def _backward_operator(
    grad_output, grad_row_sums, grad_weighted_logs, query, key, value, computation, *options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = grad_output, grad_row_sums, grad_weighted_logs, query, key, value, computation
    *grads, grad_threshold = _run_backward(*inputs, PassOptions(*options))
    if grad_threshold is None:
        grad_threshold = query.new_zeros((), dtype=wide_dtype(query.dtype))
    return *grads, grad_threshold


@_backward_operator.register_fake
def _(grad_output, grad_row_sums, grad_weighted_logs, query, key, value, computation, threshold, *_):
    grad_query = empty_heads_inside(query)
    if computation in ("native", "triton"):
        grads = [empty_heads_inside(states) for states in (key, value)]
    else:  # PyTorch's blocks make gradients of keys and values transposed, [width, length].
        grads = [torch.empty_like(states.mT, memory_format=torch.contiguous_format).mT for states in (key, value)]
    shape = query.shape[:3] if threshold is not None and threshold.dim() == 3 else ()
    return grad_query, *grads, query.new_empty(shape, dtype=wide_dtype(query.dtype))


def _save_for_backward(ctx, inputs, output) -> None:
    query, key, value, ctx.computation, *options = inputs
    options = PassOptions(*options)
    nonzeros, thresholds = output[3:]
    if options.activation in RECTIFIED:
        options = _rectified(options, thresholds)
    tensors = options[:TENSORS]
    ctx.others = options[TENSORS:]
    ctx.save_for_backward(query, key, value, *tensors)
    ctx.mark_non_differentiable(*(part for part in (nonzeros, thresholds) if part is not None))
    # A gradient that nobody asked for stays None instead of zeros.
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_output, grad_row_sums, grad_weighted_logs, *_) -> tuple[Tensor | None, ...]:
    """Gradients in the order of the operator's arguments."""
    query, key, value, *tensors = ctx.saved_tensors
    options = PassOptions(*tensors, *ctx.others)
    # A loss may depend on the statistics alone, and then the output has no gradient.
    if grad_output is None:
        grad_output = torch.zeros_like(query[..., :1]).expand(*query.shape[:-1], value.shape[-1])
    if options.needed_statistics == "none":
        grad_row_sums = None
    if options.needed_statistics != "all":
        grad_weighted_logs = None
    is_plain = not torch.is_grad_enabled() and are_plain(
        query, key, value, grad_output, grad_row_sums, grad_weighted_logs
    )
    inputs = (grad_output, grad_row_sums, grad_weighted_logs, query, key, value, ctx.computation)
    *grads, grad_threshold = _run_backward(*inputs, options) if is_plain else _backward_operator(*inputs, *options)
    threshold = options.learned_threshold
    if threshold is not None:
        grad_threshold = grad_threshold.to(threshold.dtype).sum_to_size(threshold.shape)
    return *grads, None, None if threshold is None else grad_threshold, *[None] * (len(options) - 1)


_operator.register_autograd(_backward, setup_context=_save_for_backward)


class _Function(torch.autograd.Function):
    """The operator with its gradients, for plain tensors; it hands every argument on, so there are few of them."""

    @staticmethod
    def forward(ctx, query, key, value, threshold, computation, options):
        output = _run_forward(query, key, value, computation, options)
        _save_for_backward(ctx, (query, key, value, computation, *options), output)
        return output

    @staticmethod
    def backward(ctx, *grads):
        *grads, _, grad_threshold = _backward(ctx, *grads)[:5]
        return *grads, grad_threshold, None, None


class _SumToOne(torch.autograd.Function):
    """u / t of each row, and 0 where the sum t is, in half as many operations as derivatives one by one take."""

    @staticmethod
    def forward(ctx, output, row_sums):
        # A row whose weights sum to 0 has the output 0 and a gradient of 0.
        divisor = row_sums.masked_fill(row_sums == 0, torch.inf)[..., None]
        output = (output / divisor).to(output.dtype)
        ctx.save_for_backward(output, divisor)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        output, divisor = ctx.saved_tensors
        grad = grad_output / divisor
        return grad.to(output.dtype), -(grad * output).sum(-1)


@dataclass
class RowStatistics:
    r"""Sums over the weights s_ij of each row, before dropout, in at least float32 [batch, heads, query_len].

    Args:
        row_sums: Σ_j s_ij.
        weighted_logs: Σ_j s_ij·log s_ij, with 0·log 0 = 0; the entropy of p = s/Σs is log Σs − Σ s·log s / Σs.
        nonzeros: number of weights that are not 0; not differentiable.
    """

    row_sums: Tensor
    weighted_logs: Tensor
    nonzeros: Tensor


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
    first_keys: Tensor | None = None,
    last_keys: Tensor | None = None,
    normalizer: str = "none",
    dropout: float = 0.0,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, RowStatistics]:
    r"""Compute attention without softmax: out_i = Σ_j s_ij v_j with s_ij = φ(a·q_i·k_j − θ) / (c·n_i^α).

    The sum runs over the n_i keys that query i may see. Nothing of the size query_len × key_len is ever held, neither
    here nor in the backward pass, which computes the weights again. A query that sees no key gives 0. Gradients of
    gradients are not there: models have them with `attn_implementation="eager"`.

    Args:
        query: [batch, heads, query_len, head_dim], of any strides.
        key, value: [batch, key_heads, key_len, head_dim]; key_heads divides heads, and query head h has those of
            h // (heads / key_heads).
        activation: φ, a name of `ACTIVATIONS`; or one of `SPARSE_DISTRIBUTIONS`, whose rows sum to 1 before the
            division by c·n_i^α and in which θ cancels.
        scale: a, a number or a tensor of one element; 1/√head_dim if None.
        threshold: θ, a number or a tensor of one element.
        length_exponent, length_coefficient: α, a number or a tensor of one element, and c > 0.
        key_padding_mask: bool [batch, key_len], True = real key; None if all are.
        is_causal: whether query i sees only the keys j ≤ i + causal_offset.
        causal_offset: None for key_len − query_len: the queries are the last tokens, as with a cache.
        first_keys, last_keys: integers [batch or 1, query_len] that never decrease along the queries: query i sees
            only the keys first_keys_i ≤ j ≤ last_keys_i, others are skipped: i + causal_offset − w + 1 is the first of
            a window of w keys; first and last position of its text where a row is packed with texts. None for no such
            bound.
        normalizer: `"sum"` for s_ij / Σ_j s_ij in place of s_ij, of which c·n_i^α is no part any more; for φ ≥ 0
            alone. A row whose sum is 0 gives 0.
        dropout: share of weights dropped, in [0, 1), drawn anew at each call from torch's random numbers.
        return_stats: also return the `RowStatistics` of s; of `SPARSE_DISTRIBUTIONS` only without gradients.

    Returns:
        out, of the shape and dtype of the queries (with the width of the values), and the statistics if asked for.

    Raises:
        ValueError: shapes or dtypes do not fit, or a value is not allowed.
    """
    # Arguments are checked by code that torch.compile can trace.
    known = (*ACTIVATIONS, *SPARSE_DISTRIBUTIONS)
    if activation not in known:
        raise ValueError(f"activation is {activation!r}, but must be one of {', '.join(map(repr, known))}")
    if normalizer not in ("none", "sum") or (normalizer == "sum" and activation not in NOT_NEGATIVE):
        raise ValueError(f"normalizer is {normalizer!r} with {activation!r}, but must be 'none', or 'sum' with φ ≥ 0")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}, but must be a number in [0, 1)")
    if not length_coefficient > 0:
        raise ValueError(f"length_coefficient is {length_coefficient}, but must be a number above 0")
    for name, given in (("scale", scale), ("threshold", threshold), ("length_exponent", length_exponent)):
        if isinstance(given, Tensor) and given.numel() != 1:
            raise ValueError(f"{name} is a tensor {list(given.shape)}, but must have one element")
    needs_gradients = return_stats and activation in SPARSE_DISTRIBUTIONS and torch.is_grad_enabled()
    if needs_gradients and any(isinstance(given, Tensor) and given.requires_grad for given in (query, key, scale)):
        raise ValueError(f"statistics of {activation!r} have no gradients: ask for them in torch.no_grad()")
    if is_differentiated():
        raise NotImplementedError(
            "fused attention has no derivatives of forward mode or of torch.func: take a model's "
            "attn_implementation='eager'"
        )
    if isinstance(scale, Tensor):
        query = (query * scale).to(query.dtype)
        scale = 1.0
    offset = None
    if is_causal:
        offset = key.shape[2] - query.shape[2] if causal_offset is None else causal_offset
        # With a causal offset so large every query sees every key.
        offset = None if offset >= key.shape[2] - 1 else offset
    is_learned = isinstance(threshold, Tensor)
    options = PassOptions(
        learned_threshold=threshold.reshape(()) if is_learned else None,
        key_padding_mask=key_padding_mask,
        first_keys=first_keys,
        last_keys=last_keys,
        activation=activation,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        threshold=0.0 if is_learned else threshold,
        causal_offset=offset,
        dropout=dropout,
        needed_statistics="all" if return_stats else "none",
    )
    divisor = None if length_coefficient == 1 or normalizer == "sum" else length_coefficient
    if normalizer == "none" and (isinstance(length_exponent, Tensor) or length_exponent != 0):
        if isinstance(length_exponent, Tensor):
            length_exponent = length_exponent.to(wide_dtype(length_exponent.dtype))
        counts = _key_counts(query, key, options)
        # An exponent of 1 is left out, because x¹ would start one more kernel on a GPU.
        if isinstance(length_exponent, Tensor) or length_exponent != 1:
            counts = counts**length_exponent
        divisor = counts if divisor is None else length_coefficient * counts
    result = None
    if query.is_floating_point():
        result = fastest_attention(query, key, value, options, divisor, normalizer, may_write_out=False)
    if result is None:
        raise ValueError("shapes, dtypes or devices of query, key, value, key_padding_mask or bounds do not fit")
    output, *statistics = result
    return (output, RowStatistics(*statistics)) if return_stats else output


def fastest_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: PassOptions,
    divisor: float | Tensor | None = None,
    normalizer: str = "none",
    divide_statistics: bool = True,
    may_write_out: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] | None:
    """Compute attention without softmax by the fastest code: C, Triton or blocks. The arguments are checked before.

    Args:
        query, key, value: as there.
        options: of the call, without seed and thresholds of rows, and with an activation of `rectified_attention`. Its
            `row_factors` are used where they are there already, as all layers of a site share them.
        divisor: c·n_i^α, a number, a tensor of one element or of [batch or 1, 1, query_len or 1, 1]; None for 1, and
            with the normalizer `"sum"`, in which it would cancel.
        normalizer: as there.
        divide_statistics: False for sums over φ(…) in place of s_ij: a caller divides those of all layers at once.
        may_write_out: whether None may be returned, where it is as fast to keep every weight, or code is missing.

    Returns:
        output like `query`, and Σ_j s_ij, Σ_j s_ij·log s_ij and the number of s_ij ≠ 0 or None; or None, see above.
    """
    query, key, value = in_one_dtype(query, key, value)
    computation = choose_computation(query, key, value, options, may_write_out)
    if computation is None:
        return None
    needed = options.needed_statistics
    # If weights are divided by their sum, another divisor cancels, but keeps sums within the range of float16.
    if normalizer == "sum" and query.dtype == torch.float16:
        divisor = float(max(1, key.shape[2]))
    if computation == "single_query":
        return _attend_single_query(query, key, value, options, divisor, normalizer), None, None, None
    is_sparse = options.activation in RECTIFIED
    divides_sums = divide_statistics or normalizer == "sum"
    # torch.compile would take a number that depends on the length for a constant, and compile anew for each length.
    is_number = isinstance(divisor, float | int) and not torch.compiler.is_compiling()
    is_number = is_number and (divides_sums or needed == "none")
    changes = {}
    if is_number and can_scale_weights(options, query.dtype):
        # φ(a·q·k) / c = φ((a/c)·q·k), so the divisor c becomes part of the scale, and no row has to be divided.
        changes = {"scale": options.scale / divisor}
        divisor = None
    is_learned = isinstance(divisor, Tensor) and divisor.requires_grad
    if divisor is not None and options.row_factors is None:
        changes["row_factors"] = factors_of_rows(divisor, query)
    if options.key_padding_mask is not None and len(options.key_padding_mask) < query.shape[0]:
        changes["key_padding_mask"] = options.key_padding_mask.expand(query.shape[0], -1)
    if options.dropout > 0:  # The backward pass draws the same dropout from the seed, so no mask is kept.
        changes["seed"] = torch.randint(2**62, (), device=query.device)
    if needed == "none" and (is_sparse or normalizer == "sum"):
        changes["needed_statistics"] = "sums"
    if changes:
        options = options._replace(**changes)
    is_plain = are_plain(query, key, value)
    # Compilers and dispatch modes need a registered operator. Plain tensors skip it, because its dispatch costs time.
    trained = (query, key, value, options.learned_threshold)
    if not is_plain:
        outputs = _operator(query, key, value, computation, *options)
    elif torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in trained):
        outputs = _Function.apply(*trained, computation, options)
    else:  # Calls without gradients go past autograd, because most of them are short.
        outputs = _run_forward(query, key, value, computation, options)
    output, row_sums, weighted_logs, nonzeros, _ = outputs
    # A learned divisor gets its gradient by a factor of 1 with the gradient of 1 / divisor, because fp16 could not
    # hold undivided sums.
    if is_learned:
        output = (output * (divisor.detach() / divisor)).to(output.dtype)
    if options.needed_statistics == "none":
        return output, None, None, None
    if divisor is not None and divides_sums:
        if isinstance(divisor, Tensor):
            divisor = divisor.to(row_sums.dtype).squeeze(-1)
        row_sums = row_sums / divisor
        if needed == "all":
            log_divisor = divisor.log() if isinstance(divisor, Tensor) else math.log(divisor)
            weighted_logs = weighted_logs / divisor - row_sums * log_divisor
    if normalizer == "sum" and needed == "none" and (is_plain or is_dispatched()):
        return _SumToOne.apply(output, row_sums), None, None, None
    if normalizer == "sum":
        shares = _shares(row_sums)
        output = (output * shares[..., None]).to(output.dtype)
        if needed == "all":  # The weights w divided by their sum t need Σ w/t·log(w/t).
            weighted_logs = weighted_logs * shares + shares.masked_fill(shares == 0, 1.0).log()
        row_sums = (shares != 0).to(row_sums.dtype)
    number = NUMBER_OF_SUMS[needed]
    return output, *(row_sums, weighted_logs, nonzeros)[:number], *[None] * (3 - number)


def _shares(row_sums: Tensor) -> Tensor:
    """1/t, and 0 where t is."""
    is_null = row_sums == 0
    return row_sums.masked_fill(is_null, 1.0).reciprocal().masked_fill(is_null, 0.0)


def _attend_single_query(
    query: Tensor, key: Tensor, value: Tensor, options: PassOptions, divisor: float | Tensor | None, normalizer: str
) -> Tensor:
    """Attend from one query to all keys at once, instead of in blocks; φ is elementwise or divided by its sum."""
    # Query heads are grouped by the head of keys that they share.
    shape = (len(query), key.shape[1], query.shape[1] // max(1, key.shape[1]))
    scores = (query * options.scale).reshape(*shape, -1) @ key.transpose(-1, -2)
    if options.learned_threshold is not None:
        scores = scores - options.learned_threshold.expand(query.shape[:3]).reshape(*shape, 1)
    elif options.threshold != 0:
        scores = scores - options.threshold
    weights = activate(options.activation, scores)
    hidden = []
    if options.key_padding_mask is not None:
        hidden.append(~options.key_padding_mask[:, None, None])
    if options.causal_offset is not None:
        hidden.append(torch.arange(key.shape[2], device=key.device) > options.causal_offset)
    if options.first_keys is not None:
        hidden.append(torch.arange(key.shape[2], device=key.device) < options.first_keys[:, None, :, None])
    if options.last_keys is not None:
        hidden.append(torch.arange(key.shape[2], device=key.device) > options.last_keys[:, None, :, None])
    for keys in hidden:
        weights = weights.masked_fill(keys, 0.0)
    if normalizer == "sum":
        weights = weights * _shares(weights.sum(-1, keepdim=True, dtype=wide_dtype(weights.dtype)))
        divisor = None
    output = (weights if divisor is None else weights / divisor).to(value.dtype) @ value
    return output.reshape(*query.shape[:3], -1)


def _key_counts(query: Tensor, key: Tensor, options: PassOptions) -> Tensor | int:
    """Count the visible keys n_i, at least 1: a number, or at least float32 [batch or 1, 1, query_len or 1, 1]."""
    key_len = key.shape[2]
    offset = options.causal_offset
    padding = options.key_padding_mask
    if options.first_keys is None and options.last_keys is None:
        if offset is None:
            counts = key_len if padding is None else padding.sum(-1)[:, None, None, None]
            if padding is None:
                return max(counts, 1)
            return counts.clamp_min(1).to(wide_dtype(query.dtype))
        if padding is None:  # Without padding, few operations count the keys, because GPUs wait for each start.
            places = (offset + 1, offset + 1 + query.shape[2])
            counts = torch.arange(*places, dtype=wide_dtype(query.dtype), device=query.device)
            return counts.clamp_(1, max(key_len, 1))[None, None, :, None]
    seen = torch.arange(query.shape[2], device=query.device)
    seen = seen.add(key_len if offset is None else offset + 1).clamp(0, key_len)[None]
    if options.last_keys is not None:
        seen = seen.minimum(options.last_keys + 1).clamp_min(0)
    real = None if padding is None else pad(padding.cumsum(-1), (1, 0))
    counts = seen if real is None else real.gather(1, seen.expand(len(real), -1))
    if options.first_keys is not None:
        past = options.first_keys.long().clamp(0, key_len).minimum(seen)
        counts = counts - (past if real is None else real.gather(1, past.expand(len(real), -1)))
    return counts[:, None, :, None].clamp_min(1).to(wide_dtype(query.dtype))


def factors_of_rows(divisor: float | Tensor, query: Tensor) -> Tensor:
    """1/(c·n_i^α), without its gradient    [batch or 1, query_len]."""
    if not isinstance(divisor, Tensor):
        return query.new_full((1, query.shape[2]), 1 / divisor, dtype=wide_dtype(query.dtype))
    divisor = divisor.detach()
    divisor = divisor[:, 0, :, 0] if divisor.dim() == 4 else divisor.reshape(1, 1)
    return divisor.reciprocal().expand(-1, query.shape[2]).contiguous()
