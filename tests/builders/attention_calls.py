"""Calls of `rectified_attention` as other models make them, with groups of heads, and the same in float64."""

import random

import torch
from torch import Tensor

import reference
from reluformers import rectified_attention
from reluformers_kernels import SPARSE_DISTRIBUTIONS

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2}  # of the norm


def draw_call(
    seed: int, dtype: torch.dtype, activations: tuple[str, ...], lengths: tuple[int, ...] = (1, 5, 17, 97)
) -> tuple[list[Tensor], dict]:
    """Query, key and value of any shape and layout, and options."""
    rng = random.Random(seed)
    batch, key_heads, group = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([1, 2, 3, 7])
    query_len, key_len = rng.choice(lengths), rng.choice(lengths)
    width = rng.choice([3, 8, 33])

    def states(length: int, heads: int) -> Tensor:
        made = torch.randn(batch, length, heads, width, dtype=torch.float64).to(dtype).transpose(1, 2)
        return rng.choice([made, made.contiguous()]).requires_grad_()

    ragged = torch.arange(key_len) < torch.randint(0, key_len + 1, (batch, 1))
    options = {
        "activation": rng.choice(activations),
        "scale": rng.choice([None, 0.7]),
        "threshold": rng.choice([0.0, 0.2, torch.tensor([0.1], dtype=torch.float64).requires_grad_()]),
        "length_exponent": rng.choice([0.0, 0.5, torch.tensor([0.5], dtype=torch.float64).requires_grad_()]),
        "key_padding_mask": rng.choice([None, ragged, ragged.flip(1), torch.rand(batch, key_len) > 0.4]),
        "is_causal": rng.choice([True, True, False]),
        "causal_offset": rng.choice([None, 0, 7, -3]),
    }
    steps = torch.randint(-3, 6, (rng.choice([1, batch]), query_len))  # windows, and pieces of every length
    options["first_keys"] = rng.choice([None, steps + torch.arange(query_len) - 9, steps * 9])
    if options["first_keys"] is not None:
        options["first_keys"] = options["first_keys"].cummax(-1).values
    options["last_keys"] = rng.choice([None, (steps[:1] + torch.arange(query_len)).cummax(-1).values, steps[:1] * 9])
    if options["last_keys"] is not None:
        options["last_keys"] = options["last_keys"].cummax(-1).values
    if options["activation"] in SPARSE_DISTRIBUTIONS:
        options["threshold"] = 0.0
    if options["activation"] == "relu_power":
        powers = [0.5, 1.5, 2, 3.0] if dtype == torch.float64 else [1, 2, 1.5]
        options |= {"power": rng.choice(powers), "normalizer": rng.choice(["none", "sum"])}
    if options["activation"] in ("relu", "relu2", "relu6", "softplus", "sigmoid"):
        options["normalizer"] = rng.choice(["none", "sum"])
    return [states(query_len, key_heads * group), states(key_len, key_heads), states(key_len, key_heads)], options


def visible_pairs(query: Tensor, key: Tensor, options: dict) -> Tensor:
    """Bool [batch, 1, query_len, key_len]."""
    query_len, key_len = query.shape[2], key.shape[2]
    visible = torch.ones(len(query), 1, query_len, key_len, dtype=torch.bool)
    if options["is_causal"]:
        offset = key_len - query_len if options["causal_offset"] is None else options["causal_offset"]
        visible = visible.tril(offset)
    if options["first_keys"] is not None:
        visible = visible & (torch.arange(key_len) >= options["first_keys"][:, None, :, None])
    if options.get("last_keys") is not None:
        visible = visible & (torch.arange(key_len) <= options["last_keys"][:, None, :, None])
    if options["key_padding_mask"] is not None:
        visible = visible & options["key_padding_mask"][:, None, None]
    return visible


def naive(query: Tensor, key: Tensor, value: Tensor, options: dict) -> tuple[Tensor, Tensor]:
    """Output and weights, all of them, with keys and values repeated."""
    group = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(group, 1) for states in (key, value))
    scale = query.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
    visible = visible_pairs(query, key, options).expand(-1, query.shape[1], -1, -1)
    scores = scale * query @ key.mT - options["threshold"]
    if options["activation"] in SPARSE_DISTRIBUTIONS:
        weights = torch.zeros_like(scores)
        for place in visible.any(-1).nonzero().tolist():
            seen = visible[tuple(place)]
            row = reference.ACTIVATIONS[options["activation"]](scores[tuple(place)][seen])
            weights = weights.index_put((*map(torch.tensor, place), seen.nonzero().flatten()), row)
    elif options["activation"] == "relu_power":
        weights = torch.where((scores > 0) & visible, torch.where(scores > 0, scores, 1.0) ** options["power"], 0.0)
    else:
        weights = reference.ACTIVATIONS[options["activation"]](scores).masked_fill(~visible, 0.0)
    weights = weights / visible.sum(-1, keepdim=True).clamp_min(1).double() ** options["length_exponent"]
    if options.get("normalizer") == "sum":
        sums = weights.sum(-1, keepdim=True)
        weights = weights / sums.masked_fill(sums == 0, 1.0)
    return weights @ value, weights


def check_call(states: list[Tensor], options: dict) -> None:
    """Compare output, statistics and gradients."""
    tolerance = TOLERANCES[states[0].dtype]
    trained = [*states, *(given for given in options.values() if isinstance(given, Tensor) and given.requires_grad)]
    exact = {id(part): part.detach().double().requires_grad_() for part in trained}
    expected, weights = naive(
        *(exact[id(part)] for part in states), {name: exact.get(id(part), part) for name, part in options.items()}
    )
    direction, other = torch.randn_like(expected), torch.randn_like(expected[..., 0])
    is_sparse = options["activation"] in SPARSE_DISTRIBUTIONS
    for has_statistics in (False,) if is_sparse else (False, True):
        found = rectified_attention(*states, **options, return_stats=has_statistics)
        output, wanted = found, (expected * direction).sum()
        if has_statistics:
            output, statistics = found
            wanted = wanted + (weights.sum(-1) * other).sum()
            near(statistics.row_sums, weights.sum(-1), tolerance, "row sums")
            if (weights >= 0).all():
                near(statistics.weighted_logs, torch.special.xlogy(weights, weights).sum(-1), tolerance, "logs")
            if options["activation"].startswith("relu"):  # others fade away earlier in float32
                assert ((statistics.nonzeros - (weights != 0).sum(-1)).abs() <= 0.02 * weights.shape[-1] + 1).all()
        assert output.dtype == states[0].dtype
        assert output.transpose(1, 2).is_contiguous()
        near(output, expected, tolerance, "output")
        total = (output * direction).sum()
        if has_statistics:
            total = total + (statistics.row_sums * other).sum()
        got = torch.autograd.grad(total, trained, materialize_grads=True, retain_graph=True)
        right = torch.autograd.grad(wanted, list(exact.values()), materialize_grads=True, retain_graph=True)
        for part, gradient, exact_gradient in zip(trained, got, right, strict=True):
            # one sum of numbers of both signs, or what cancels out but for 1 / sum of the row
            is_delicate = part.numel() == 1 or options.get("normalizer") == "sum"
            allowed = (20 if is_delicate else 2) * tolerance
            near(gradient, exact_gradient, allowed, f"gradient {list(part.shape)}")


def near(found: Tensor, expected: Tensor, tolerance: float, name: str) -> None:
    assert found.shape == expected.shape, name
    error = (found.double() - expected).norm()
    assert error <= tolerance * max(1.0, expected.norm()), (name, error, expected.norm())
