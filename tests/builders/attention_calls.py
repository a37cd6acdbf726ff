"""Calls of `rectified_attention` as models make them, with groups of heads and windows, and the same in float64."""

import torch
from torch import Tensor

import reference
from reluformers import rectified_attention
from reluformers_kernels import SPARSE_DISTRIBUTIONS
from reluformers_kernels.activations import NOT_NEGATIVE

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # of the norm
# what calls differ in; a computation takes the values that it has
FACTORS = {
    "lengths": ((1, 17), (5, 1), (17, 40), (40, 17)),  # of queries and keys
    "heads": ((1, 1), (2, 1), (2, 2), (1, 7)),  # of keys, and how many of queries share one
    "widths": ((3, 3), (8, 10), (33, 33), (2, 1)),  # of keys and values
    "layout": ("heads first", "length first", "transposed", "sliced"),
    "scale": (None, 2.0, -0.3, "learned"),  # 2: some scores are above the 6 of relu6
    "threshold": (0.0, 0.2, 1.5, "learned"),
    "length_exponent": (0.0, 0.5, 1.0, "learned"),
    "length_coefficient": (1.0, 0.7),
    "padding": ("none", "right", "left", "random"),
    "causal_offset": ("none", None, 0, 7, -3, -(2**31), 2**31),
    "first_keys": ("none", "window", "chunks"),
    "last_keys": ("none", "window", "chunks"),
    "normalizer": ("none", "sum"),
    "has_statistics": (False, True),
    "threads": (1, 2),
}


def lay_out(layout: str, batch: int, heads: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    """Numbers [batch, heads, length, width] that lie in memory in another order."""
    make = {
        "heads first": lambda: torch.randn(batch, heads, length, width),
        "length first": lambda: torch.randn(batch, length, heads, width).transpose(1, 2),
        "transposed": lambda: torch.randn(batch, heads, width, length).mT,
        "sliced": lambda: torch.randn(batch, heads, 2 * length, width)[:, :, ::2],
    }
    return make[layout]().to(dtype).requires_grad_()


def draw_call(case: dict) -> tuple[list[Tensor], dict]:
    """Query, key and value, and the options of a case of `FACTORS`, its `activation` and `dtype`."""
    (query_len, key_len), (key_heads, group), (width, value_width) = case["lengths"], case["heads"], case["widths"]
    batch = 2
    activation = case["activation"]
    dtype = case["dtype"]
    shapes = ((key_heads * group, query_len, width), (key_heads, key_len, width), (key_heads, key_len, value_width))
    states = [lay_out(case["layout"], batch, *shape, dtype) for shape in shapes]
    ragged = torch.arange(key_len) < torch.randint(0, key_len + 1, (batch, 1))
    paddings = {"none": None, "right": ragged, "left": ragged.flip(1), "random": torch.rand(batch, key_len) > 0.4}
    learned = {"scale": ((), 0.6), "threshold": ((1, 1, 1, 1), 0.1), "length_exponent": ((1,), 0.5)}
    numbers = {
        name: torch.full(*start, dtype=torch.float64).requires_grad_() if case[name] == "learned" else case[name]
        for name, start in learned.items()
    }
    if isinstance(numbers["scale"], float):  # a row of sigmoid(-90) alone has no sum in float32
        numbers["scale"] *= min(1.0, 33 / width)
    steps = torch.randint(-3, 6, (batch, query_len))  # windows, and pieces of every length

    def bounds(kind: str, shift: int, steps: Tensor) -> Tensor | None:
        kinds = {"none": None, "window": steps + torch.arange(query_len) - shift, "chunks": steps * 9}
        return None if kinds[kind] is None else kinds[kind].cummax(-1).values

    options = {
        **numbers,
        "activation": activation,
        "length_coefficient": case["length_coefficient"],
        "key_padding_mask": paddings[case["padding"]],
        "is_causal": case["causal_offset"] != "none",
        "causal_offset": None if case["causal_offset"] == "none" else case["causal_offset"],
        "first_keys": bounds(case["first_keys"], 9, steps),
        "last_keys": bounds(case["last_keys"], 0, steps[:1]),
        "normalizer": case["normalizer"] if activation in NOT_NEGATIVE else "none",
    }
    if activation in SPARSE_DISTRIBUTIONS:
        options["threshold"] = 0.0
    return states, options


def visible_pairs(query: Tensor, key: Tensor, options: dict) -> Tensor:
    """Bool [batch, 1, query_len, key_len]."""
    query_len = query.shape[2]
    key_len = key.shape[2]
    visible = torch.ones(len(query), 1, query_len, key_len, dtype=torch.bool, device=query.device)
    rows, places = (torch.arange(length, device=query.device) for length in (query_len, key_len))
    if options.get("is_causal"):
        offset = key_len - query_len if options.get("causal_offset") is None else options["causal_offset"]
        visible = visible & (places <= rows[:, None] + offset)
    if options.get("first_keys") is not None:
        visible = visible & (places >= options["first_keys"][:, None, :, None])
    if options.get("last_keys") is not None:
        visible = visible & (places <= options["last_keys"][:, None, :, None])
    if options.get("key_padding_mask") is not None:
        visible = visible & options["key_padding_mask"][:, None, None]
    return visible


def naive(query: Tensor, key: Tensor, value: Tensor, options: dict) -> tuple[Tensor, Tensor]:
    """Output and weights, all of them, with keys and values repeated."""
    groups = query.shape[1] // (key.shape[1] or 1)
    key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    scale = query.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"]
    names = ("activation", "length_coefficient", "length_exponent", "threshold", "normalizer")
    given = {name: options[name] for name in names if name in options}
    return reference.attention(query, key, value, visible_pairs(query, key, options), scale=scale, **given)


def check_call(states: list[Tensor], options: dict, has_statistics: bool = False) -> None:
    """Compare output, statistics and gradients."""
    dtype = states[0].dtype
    tolerance = TOLERANCES[dtype]
    trained = [*states, *(given for given in options.values() if isinstance(given, Tensor) and given.requires_grad)]
    exact = {id(part): part.detach().double().requires_grad_() for part in trained}
    expected, weights = naive(
        *(exact[id(part)] for part in states), {name: exact.get(id(part), part) for name, part in options.items()}
    )
    is_sparse = options["activation"] in SPARSE_DISTRIBUTIONS  # whose statistics have no gradients
    with torch.set_grad_enabled(not (has_statistics and is_sparse)):
        found = rectified_attention(*states, **options, return_stats=has_statistics)
    outputs = [found]
    wanted = [expected]
    if has_statistics:
        outputs = [found[0]]
        statistics = found[1]
        near(statistics.row_sums, weights.sum(-1), tolerance, "row sums")
        if statistics.row_sums.requires_grad:  # those of weights that sum to 1 have none
            outputs.append(statistics.row_sums)
            wanted.append(weights.sum(-1))
        logs = weights * torch.where(weights > 0, weights, 1.0).log()
        if (weights >= 0).all():
            near(statistics.weighted_logs, logs.sum(-1), tolerance, "logs")
            if (
                dtype == torch.float64 and statistics.weighted_logs.requires_grad
            ):  # the derivative 1 + log w has no bound at w = 0
                outputs.append(statistics.weighted_logs)
                wanted.append(logs.sum(-1))
        if options["activation"].startswith("relu"):  # others fade away earlier in float32
            allowed = 0 if dtype == torch.float64 else 0.02 * weights.shape[-1] + 1
            assert ((statistics.nonzeros - (weights != 0).sum(-1)).abs() <= allowed).all()
    assert outputs[0].dtype == dtype
    assert outputs[0].transpose(1, 2).is_contiguous()
    near(outputs[0], expected, tolerance, "output")
    if not outputs[0].requires_grad:
        return
    directions = [torch.randn_like(part) for part in wanted]
    got = torch.autograd.grad(outputs, trained, [d.to(o) for d, o in zip(directions, outputs, strict=True)],
                              materialize_grads=True)  # fmt: skip
    right = torch.autograd.grad(wanted, list(exact.values()), directions, materialize_grads=True)
    for part, gradient, exact_gradient in zip(trained, got, right, strict=True):
        assert gradient.dtype == part.dtype
        # one sum of numbers of both signs, or what cancels out but for 1 / sum of the row
        is_delicate = part.numel() == 1 or options.get("normalizer") == "sum"
        near(gradient, exact_gradient, (20 if is_delicate else 2) * tolerance, f"gradient {list(part.shape)}")


def near(found: Tensor, expected: Tensor, tolerance: float, name: str) -> None:
    assert found.shape == expected.shape, name
    error = (found.double() - expected).norm()
    assert error <= tolerance * max(1.0, expected.norm()), (name, error, expected.norm())
