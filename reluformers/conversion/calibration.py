"""Starts for an exchanged attention: what theory leaves free is set so that each module gives what softmax gave.

What the softmax model's modules get for a few batches is recorded; then each module of the other model is fitted to
the outputs of its counterpart for these inputs, in closed form. Nothing is trained.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from reluformers.modeling.attention import MultiHeadAttention
from reluformers.modeling.attention_functions import sparsemax
from reluformers.modeling.masks import AttentionMask
from reluformers.modeling.normalization import NormGate

# For these φ, φ(κz) = κ^degree · φ(z): scaled queries scale the weights.
DEGREES = {"relu": 1, "relu2": 2}
# The fit tries to shift keys by the thresholds of sparsemax(t·z) with each of these t.
TEMPERATURES = tuple(2.0**power for power in range(-6, 2))
# The fit of cosine attention tries these multiples of the scales that follow from covariances.
SCALE_FACTORS = tuple(2.0 ** (step / 2) for step in range(-3, 5))
_RIDGE = 1e-3


@dataclass
class RecordedCall:
    """What a module was called with, and what its heads gave.

    Args:
        hidden_states, key_value_states, mask: as in `MultiHeadAttention.forward`.
        real: bool, True = real query [batch, query_len].
        joined: outputs of the heads before the output projection [batch, query_len, embed_dim].
    """

    hidden_states: Tensor
    key_value_states: Tensor | None
    mask: AttentionMask | Tensor | None
    real: Tensor
    joined: Tensor


@torch.no_grad()
def calibrate(
    model: PreTrainedModel, original: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]
) -> tuple[dict[str, float], dict[str, float]]:
    r"""Fit the attention modules of a model, in place, to those of the one whose other weights it has.

    - φ = relu or relu2 (θ = 0, dot score): queries of each head are scaled so that the row sums are 1 on average.
      Before that, keys are shifted by the δ whose q_i·δ is nearest to the thresholds of sparsemax(t·z_i), by least
      squares: softmax gives the same whatever δ is, relu cuts off there. t, or no shift, by the smallest error.
    - Cosine score with a learned g: g = Cov(z, cos) / Var(cos) within rows, evenly or by softmax's weights, times the
      factor of `SCALE_FACTORS` that has the smallest error.
    - Output norm: the gain of each channel by least squares; the gate of a gated norm starts at σ(0) = 1/2.

    Everything else, and every module that computes the same as before, stays.

    Args:
        model: of ours, with the weights of `original`; its parameters get new storage where they change.
        original: of ours, with softmax at the sites that the model exchanged it.
        batches: arguments of `forward`; a few hundred sentences or some dozen images.

    Returns:
        Relative squared error of each exchanged module's outputs before the output projection, by the module's name:
        as it was, and fitted.

    Raises:
        ValueError: there is no batch.
    """
    pairs = exchanged_modules(model, original)
    with recording({name: pair[1] for name, pair in pairs.items()}) as calls:
        read_batches(original, batches)
    training = model.training
    model.eval()
    before = {}
    after = {}
    for name, (module, reference) in pairs.items():
        before[name] = relative_error(_pairs(module, calls[name]))
        attention = module.attention
        is_plain = attention.query_key_norm == "none" and attention.scale_form == "constant"
        if is_plain and attention.score == "dot" and attention.activation in DEGREES and attention.threshold == 0:
            _fit_rectified(module, reference, calls[name])
        if is_plain and attention.score == "cosine" and module.scale is not None:
            _fit_scale(module, reference, calls[name])
        if module.output_norm is not None:
            fit_gain(module.output_norm, _pairs(module, calls[name], module.output_norm))
        after[name] = relative_error(_pairs(module, calls[name]))
    model.train(training)
    return before, after


def exchanged_modules(
    model: PreTrainedModel, original: PreTrainedModel
) -> dict[str, tuple[MultiHeadAttention, MultiHeadAttention]]:
    """Modules that compute another attention than their counterparts, with these, by their names."""
    names = [name for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)]
    pairs = {name: (model.get_submodule(name), original.get_submodule(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0].attention != pair[1].attention}


def read_batches(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> None:
    """Let a model read batches, one at least, in evaluation mode; each of its modules gets its own mode back."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        count = sum(1 for batch in batches if model(**batch) is not None)
    finally:
        for part, mode in modes.items():
            part.training = mode
    if not count:
        raise ValueError("there is no batch to fit the attention on")


@contextmanager
def recording(modules: Mapping[str, MultiHeadAttention]) -> Iterator[dict[str, list[RecordedCall]]]:
    """Record what each module, by its name, is called with in a block, in order."""
    calls: dict[str, list[RecordedCall]] = {name: [] for name in modules}
    inputs: dict[str, tuple] = {}

    def before(name: str, module: nn.Module, given: tuple, options: dict[str, Any]) -> None:
        hidden_states = given[0]
        key_value_states = given[1] if len(given) > 1 else None
        mask = options.get("attention_mask")
        real = getattr(mask, "query_mask", None)  # A mask that is a tensor has no query mask.
        if real is None:
            real = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device)
        inputs[name] = (hidden_states, key_value_states, mask, real)

    def after(name: str, module: nn.Module, given: tuple) -> None:
        calls[name].append(RecordedCall(*inputs.pop(name), joined=given[0]))

    hooks = []
    for name, module in modules.items():
        hooks.append(module.register_forward_pre_hook(partial(before, name), with_kwargs=True))
        hooks.append(module.out_proj.register_forward_pre_hook(partial(after, name)))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _run(module: MultiHeadAttention, call: RecordedCall, before: nn.Module | None = None) -> tuple[Tensor, Tensor]:
    """What goes into the output norm, if there is one, or into `before`, and the weights, for a recorded call."""
    seen: list[Tensor] = []
    hooked = before or module.output_norm or module.out_proj
    hook = hooked.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    try:
        _, weights, _ = module(call.hidden_states, call.key_value_states, call.mask, attn_implementation="eager")
    finally:
        hook.remove()
    return seen[0], weights


def _pairs(module: MultiHeadAttention, calls: list[RecordedCall], norm: nn.Module | None = None) -> Iterator[tuple]:
    """What a module gives, and what it should, of each call: before the output projection, or behind a norm of gain 1.

    Both are [real queries, embed_dim]; a gate of the norm starts at σ(0) = 1/2.
    """
    if norm is not None:
        reset_norm(norm)
    for call in calls:
        output = _run(module, call, module.out_proj)[0] if norm is None else norm(_run(module, call)[0])
        yield output[call.real].double(), call.joined[call.real].double()


def relative_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Σ‖o − o_softmax‖² / Σ‖o_softmax‖² of pairs of what is given and what is wanted."""
    wrong = right = 0.0
    for given, wanted in pairs:
        wrong += (given - wanted).square().sum().item()
        right += wanted.square().sum().item()
    return wrong / max(right, 1e-30)


def reset_norm(norm: nn.Module) -> None:
    """Give an output norm, in memory of its own, the gain 1 and the gate σ(0)."""
    norm.weight.data = torch.ones_like(norm.weight)
    if isinstance(norm, NormGate):
        norm.gate.data = torch.zeros_like(norm.gate)


def fit_gain(norm: nn.Module, pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Set the gain of an output norm by least squares, by channel; a channel that is always 0 keeps 1.

    Args:
        norm: out of `reset_norm`.
        pairs: what it gives and what is wanted, of each call [rows, channels].

    Returns:
        The gain [channels].
    """
    products = sum(torch.stack([(given * wanted).sum(0), given.square().sum(0)]) for given, wanted in pairs)
    gain = torch.where(products[1] > 0, products[0] / products[1].clamp_min(1e-30), 1.0)
    norm.weight.data = gain.to(norm.weight)
    return gain


def _fit_rectified(module: MultiHeadAttention, reference: MultiHeadAttention, calls: list[RecordedCall]) -> None:
    """Fit a rectified attention to softmax: shift the keys and scale the queries of each head."""
    head_dim = module.head_dim
    degree = DEGREES[module.attention.activation]
    heads = module.q_proj.out_features // head_dim
    shifts = [torch.zeros(heads, head_dim)]
    bias = None
    if module.k_proj.bias is not None:
        bias = module.k_proj.bias.data
        shifts += [_key_shift(reference, calls, temperature) for temperature in TEMPERATURES]
    best_error = torch.full((heads,), torch.inf)
    best_shift = shifts[0]
    best_scale = torch.ones(heads)
    for shift in shifts:
        if bias is not None:
            module.k_proj.bias.data = bias - shift.flatten().to(bias)
        scale, error = _row_scale(module, calls, heads)
        is_better = error < best_error
        best_error = torch.where(is_better, error, best_error)
        best_shift = torch.where(is_better[:, None], shift, best_shift)
        best_scale = torch.where(is_better, scale, best_scale)
    if bias is not None:
        module.k_proj.bias.data = bias - best_shift.flatten().to(bias)
    factor = best_scale.pow(1 / degree).repeat_interleave(head_dim).to(module.q_proj.weight)
    module.q_proj.weight.data = module.q_proj.weight.data * factor[:, None]
    if module.q_proj.bias is not None:
        module.q_proj.bias.data = module.q_proj.bias.data * factor


def _row_scale(module: MultiHeadAttention, calls: list[RecordedCall], heads: int) -> tuple[Tensor, Tensor]:
    """1 / mean row sum of each head [heads], and the squared error of its outputs with that scale [heads]."""
    sums = torch.zeros(heads, dtype=torch.float64)
    rows = 0
    products = torch.zeros(3, heads, dtype=torch.float64)  # They are o·o, o·o_softmax and o_softmax·o_softmax.
    for call in calls:
        output, weights = _run(module, call)
        sums += weights.sum(-1).transpose(1, 2)[call.real].double().sum(0).cpu()
        rows += int(call.real.sum())
        ours, theirs = (
            states[call.real].double().unflatten(-1, (heads, -1)).cpu() for states in (output, call.joined)
        )
        products += torch.stack([(a * b).sum((0, 2)) for a, b in ((ours, ours), (ours, theirs), (theirs, theirs))])
    scale = torch.where(sums > 0, rows / sums, 1.0)
    error = scale.square() * products[0] - 2 * scale * products[1] + products[2]
    return scale.float(), torch.where(sums > 0, error, torch.inf).float()


def _key_shift(reference: MultiHeadAttention, calls: list[RecordedCall], temperature: float) -> Tensor:
    """The δ of each head whose a·q_i·δ is nearest to the threshold of row i under sparsemax(t·z) [heads, head_dim]."""
    gram = moment = 0.0
    for call in calls:
        query, scores, visible = _scores(reference, call)
        threshold = sparsemax_threshold(temperature * scores, visible) / temperature  # [batch, heads, query_len]
        scaled = query * reference.attention.initial_scale(reference.head_dim)
        real = (call.real & visible.any(-1).squeeze(1)).unsqueeze(1).double()  # [batch, 1, query_len]
        scaled = scaled.double()
        threshold = threshold.double() * real
        gram = gram + torch.einsum("bhid,bhie,bki->hde", scaled, scaled, real)
        moment = moment + torch.einsum("bhid,bhi->hd", scaled, threshold)
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + (_RIDGE * mean + 1e-12) * eye, moment).float().cpu()


def sparsemax_threshold(scores: Tensor, visible: Tensor) -> Tensor:
    """τ with Σ_j max(z_j − τ, 0) = 1 over the visible scores of each row [..., key_len], 0 of a row without one."""
    largest = scores.masked_fill(~visible, -torch.inf).amax(-1)
    return torch.where(visible.any(-1), largest - sparsemax(scores, visible).amax(-1), 0.0)


def _scores(reference: MultiHeadAttention, call: RecordedCall) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [batch, heads, query_len, head_dim], scores [batch, heads, query_len, key_len] and who sees whom."""
    source = call.hidden_states if call.key_value_states is None else call.key_value_states
    query, key = (
        projection(states).unflatten(-1, (-1, reference.head_dim)).transpose(1, 2)
        for projection, states in ((reference.q_proj, call.hidden_states), (reference.k_proj, source))
    )
    scores = query @ key.transpose(-1, -2) * reference.attention.initial_scale(reference.head_dim)
    dense = AttentionMask.of(call.mask, query.shape[2], key.shape[2], query.device).dense
    visible = torch.ones_like(scores[:, :1], dtype=torch.bool)
    return query, scores, visible if dense is None else visible & dense


def _fit_scale(module: MultiHeadAttention, reference: MultiHeadAttention, calls: list[RecordedCall]) -> None:
    """Start g where the scores' differences are those of softmax's."""
    sums = torch.zeros(2, 2, dtype=torch.float64)  # Rows: uniform and softmax-weighted. Columns: covariance, variance.
    for call in calls:
        _, scores, visible = _scores(reference, call)
        source = call.hidden_states if call.key_value_states is None else call.key_value_states
        query = module._heads(module.q_proj(call.hidden_states), module.query_norm, has_unit_length=True)
        key = module._heads(module.k_proj(source), module.key_norm, has_unit_length=True)
        cosines = query @ key.transpose(-1, -2)
        seen = visible & call.real[:, None, :, None]
        even = seen / seen.sum(-1, keepdim=True).clamp_min(1)
        weighted = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1) * seen
        for row, share in enumerate((even.to(scores.dtype), weighted)):
            z, c = (states - (share * states).sum(-1, keepdim=True) for states in (scores, cosines))
            sums[row] += torch.stack([(share * z * c).double().sum(), (share * c * c).double().sum()]).cpu()
    starts = [covariance / variance for covariance, variance in sums.tolist() if variance > 0 and covariance > 0]
    candidates = [module.scale.item(), *(start * factor for start in starts for factor in SCALE_FACTORS)]
    errors = []
    for candidate in candidates:
        module.scale.data = torch.full_like(module.scale, candidate)
        errors.append(relative_error(_pairs(module, calls)))
    module.scale.data = torch.full_like(module.scale, candidates[errors.index(min(errors))])
