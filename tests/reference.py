"""Naive forms of every formula, written from the papers: the judge of the fast code.

Distributions are made row by row from the visible keys alone, so that nothing (no mask value, no fused form) is shared
with the library. Everything runs in the dtype of its inputs, float64 in the tests, and can be differentiated.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

LAYER_NORM_EPS = 1e-6  # of query and key: flax's default, the stack of ReLU-ViT
L2_EPS = 1e-12  # QKNorm divides by max(‖x‖₂, ε)


def softmax(row: Tensor) -> Tensor:
    """exp(z_j) / Σ_k exp(z_k); the largest score is taken off first, which changes nothing but the range."""
    powers = torch.exp(row - row.max())
    return powers / powers.sum()


def softmax1(row: Tensor) -> Tensor:
    """exp(z_j) / (1 + Σ_k exp(z_k)) (Miller 2023)."""
    powers = torch.exp(row)
    return powers / (1 + powers.sum())


def softpick(row: Tensor) -> Tensor:
    """max(exp(z_j) − 1, 0) / (Σ_k |exp(z_k) − 1| + 10⁻⁶) (Zuhri et al. 2025, eq. 3)."""
    shifted = torch.exp(row) - 1
    return torch.relu(shifted) / (shifted.abs().sum() + 1e-6)


def sparsemax(row: Tensor) -> Tensor:
    """[z − τ]₊ with τ = (Σ_{j≤k} z_(j) − 1) / k over the k largest (Martins and Astudillo 2016, algorithm 1)."""
    ordered = row.sort(descending=True).values
    support = max(k for k in range(1, len(row) + 1) if 1 + k * ordered[k - 1] > ordered[:k].sum())
    threshold = (ordered[:support].sum() - 1) / support
    return torch.relu(row - threshold)


def entmax15(row: Tensor) -> Tensor:
    """[z/2 − τ]₊² with τ = M(ρ) − √((1 − S(ρ))/ρ) over the ρ largest (Peters et al. 2019, algorithm 2)."""
    half = row / 2
    ordered = half.sort(descending=True).values
    for support in range(len(row), 0, -1):
        mean = ordered[:support].mean()
        spread = ((ordered[:support] - mean) ** 2).sum()
        if spread > 1:
            continue
        threshold = mean - ((1 - spread) / support).sqrt()
        if threshold <= ordered[support - 1]:
            return torch.relu(half - threshold) ** 2
    raise ArithmeticError(f"no support found for {row.tolist()}")


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x) with Φ the normal distribution function (Hendrycks and Gimpel 2016)."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of x·Φ(x) (Hendrycks and Gimpel 2016)."""
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(−x))."""
    return 1 / (1 + torch.exp(-x))


# from the visible scores of one query to its weights, before the division by c·nᵅ
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": softmax,
    "softmax1": softmax1,
    "softpick": softpick,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
    "relu6": lambda x: torch.relu(x) - torch.relu(x - 6),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "gelu": gelu,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),  # differentiable at 0 too
    "sigmoid": sigmoid,
    "identity": lambda x: x,
}


# φ of a whole row, which sees the visible keys alone; the others are taken score by score
DISTRIBUTIONS = ("softmax", "softmax1", "softpick", "sparsemax", "entmax15")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    *,
    scale: float | Tensor,
    activation: str,
    length_coefficient: float | Tensor = 1.0,
    length_exponent: float | Tensor = 0.0,
    threshold: float | Tensor = 0.0,
    normalizer: str = "none",
) -> tuple[Tensor, Tensor]:
    """o_i = Σ_j s_ij·v_j with s_ij = φ(a_i·q_i·k_j − θ_i) / (c·n_iᵅ) over the n_i visible keys; without any, o_i = 0.

    With the normaliser "sum" s_ij is divided by Σ_k s_ik, where that is not 0; a and θ may differ by head and query.

    Args:
        query: Tensor [batch, heads, query_len, head_dim].
        key: Tensor [batch, heads, key_len, head_dim]; likewise `value`.
        visible: bool [batch, 1, query_len, key_len], True = query i may see key j.

    Returns:
        Output [batch, heads, query_len, head_dim] and weights s [batch, heads, query_len, key_len].
    """
    scores = scale * (query @ key.mT) - threshold
    visible = visible.expand_as(scores)
    if activation in DISTRIBUTIONS:
        rows = []
        for row, is_seen in zip(scores.flatten(0, 2), visible.flatten(0, 2), strict=True):
            seen = is_seen.nonzero().flatten()
            weights = ACTIVATIONS[activation](row[seen]) if len(seen) > 0 else row[seen]
            rows.append(torch.zeros_like(row).index_put((seen,), weights))
        weights = torch.stack(rows).view_as(scores)
    else:
        weights = ACTIVATIONS[activation](scores).masked_fill(~visible, 0.0)
    counts = visible.sum(-1, keepdim=True).clamp_min(1).to(weights.dtype)
    weights = weights / (length_coefficient * counts**length_exponent)
    if normalizer == "sum":
        sums = weights.sum(-1, keepdim=True)
        weights = torch.where(sums == 0, 0.0, weights / torch.where(sums == 0, 1.0, sums))
    return weights @ value, weights


def initial_scale(config: Any, head_dim: int) -> float:
    """a of the score: the given one, else 1/√d_h for dot products and g₀ = log₂(L² − L) for cosines (QKNorm eq. 3)."""
    if config.scale is not None:
        return config.scale
    length = config.scale_length or 72  # that of the pair en-vi
    return 1 / math.sqrt(head_dim) if config.score == "dot" else math.log2(length**2 - length)


def unit(x: Tensor) -> Tensor:
    """x / max(‖x‖₂, ε) over the last axis (QKNorm eq. 2)."""
    return x / (x**2).sum(-1, keepdim=True).sqrt().clamp(min=L2_EPS)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0, eps: float = LAYER_NORM_EPS) -> Tensor:
    """w ⊙ (x − mean) / √(var + ε) + b over the last axis (Ba et al. 2016)."""
    centred = x - x.mean(-1, keepdim=True)
    return weight * centred / ((centred**2).mean(-1, keepdim=True) + eps).sqrt() + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """g ⊙ x / √(mean(x²) + ε) over the last axis (ReLA eq. 4)."""
    return weight * x / ((x**2).mean(-1, keepdim=True) + eps).sqrt()


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """σ(w ⊙ x) ⊙ RMSNorm(x): the gate reads the vector before the norm (ReLA eq. 5)."""
    return sigmoid(gate * x) * rms_norm(x, weight, eps)


def scale_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """g·x / max(‖x‖₂, ε) with one scalar g (Nguyen and Salazar 2019)."""
    return scale * x / (x**2).sum(-1, keepdim=True).sqrt().clamp(min=eps)


def fix_norm(embedding: Tensor) -> Tensor:
    """Every row at length 1 (Nguyen and Chiang 2018)."""
    return torch.stack([row / (row**2).sum().sqrt() for row in embedding])


def linear(parameters: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """x·Wᵀ + b, where b may be absent."""
    return x @ parameters[f"{name}.weight"].T + parameters.get(f"{name}.bias", 0.0)


def multi_head_attention(
    parameters: Mapping[str, Tensor],
    config: Any,
    num_heads: int,
    hidden_states: Tensor,
    visible: Tensor,
    key_value_states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Projections, heads, attention, joined heads, output norm, output projection.

    Args:
        parameters: the module's parameters by name; learned scalars take the place of the configured ones.
        config: object with the fields of `AttentionConfig`.
        hidden_states: Tensor [batch, query_len, width].
        visible: bool [batch, query_len, key_len].
        key_value_states: Tensor [batch, key_len, width], `hidden_states` if None.

    Returns:
        Output [batch, query_len, width] and weights [batch, heads, query_len, key_len].
    """
    source = hidden_states if key_value_states is None else key_value_states
    query, key, value = (
        linear(parameters, name, states).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for name, states in (("q_proj", hidden_states), ("k_proj", source), ("v_proj", source))
    )
    if config.query_key_norm == "layer_norm":
        query = layer_norm(query, parameters["query_norm.weight"])
        key = layer_norm(key, parameters["key_norm.weight"])
    if config.score == "cosine":
        query, key = unit(query), unit(key)
    if config.value_norm == "l2":
        value = unit(value)
    log_lengths = visible.sum(-1).clamp_min(1).to(query.dtype).log()[:, None, :, None]
    factors = {
        "constant": 1.0,
        "log_length": log_lengths,
        "sqrt_log_length": (2 * log_lengths / query.shape[-1]).sqrt(),
    }
    threshold = torch.as_tensor(parameters.get("threshold", config.threshold), dtype=query.dtype)
    output, weights = attention(
        query,
        key,
        value,
        visible[:, None],
        scale=parameters.get("scale", initial_scale(config, query.shape[-1])) * factors[config.scale_form],
        activation=config.activation,
        length_coefficient=config.length_coefficient,
        length_exponent=parameters.get("length_exponent", config.length_exponent),
        threshold=threshold.view(-1, 1, 1) * factors[config.threshold_form],
        normalizer=config.normalizer,
    )
    if config.exclusive_output and key_value_states is None:
        own = value / torch.linalg.vector_norm(value, dim=-1, keepdim=True)
        output = output - (output * own).sum(-1, keepdim=True) * own
    output = output.transpose(1, 2).flatten(-2)
    if config.output_norm == "rms_norm":
        output = rms_norm(output, parameters["output_norm.weight"], config.output_norm_eps)
    elif config.output_norm == "gated_rms_norm":
        gain = parameters["output_norm.weight"]
        gate = parameters["output_norm.gate"]
        output = gated_rms_norm(output, gain, gate, config.output_norm_eps)
    elif config.output_norm == "layer_norm":
        output = layer_norm(output, parameters["output_norm.weight"], eps=config.output_norm_eps)
    elif config.output_norm == "gated_layer_norm":
        gate = sigmoid(parameters["output_norm.gate"] * output)
        output = gate * layer_norm(output, parameters["output_norm.weight"], eps=config.output_norm_eps)
    if config.output_gate != "none":
        gate = linear(parameters, "gate_proj", hidden_states)
        output = output * {"silu": swish(gate, 1.0), "linear": gate, "sigmoid": sigmoid(gate)}[config.output_gate]
    return linear(parameters, "out_proj", output), weights


def regularization(
    weights: Tensor, visible: Tensor, queries: Tensor, entropy_bound: float = 0.7
) -> tuple[Tensor, Tensor, int, int]:
    """The two terms of ReLUFormer eq. 7, |log Σ_j s_ij| and max(H(s_i/Σs_i) − bound·log n_i, 0), summed over the rows.

    Rows are those of real queries in every head; a null row (Σ_j s_ij = 0) adds 0 to both sums.

    Args:
        weights: Tensor [batch, heads, query_len, key_len], not negative.
        visible: bool [batch, query_len, key_len].
        queries: bool [batch, query_len], True = not padding.

    Returns:
        The two sums, the number of null rows and the number of rows.
    """
    normalization = weights.new_zeros(())
    entropy = weights.new_zeros(())
    null_rows = 0
    rows = 0
    for b, i in queries.nonzero().tolist():
        for row in weights[b, :, i]:
            rows += 1
            if row.sum() == 0:
                null_rows += 1
                continue
            normalization = normalization + row.sum().log().abs()
            shares = row[row > 0] / row.sum()
            bound = entropy_bound * math.log(int(visible[b, i].sum()))
            entropy = entropy + torch.relu(-(shares * shares.log()).sum() - bound)
    return normalization, entropy, null_rows, rows


def swish(x: Tensor, beta: float | Tensor) -> Tensor:
    """x·σ(βx) (Ramachandran et al. 2017)."""
    return x * sigmoid(beta * x)


FEED_FORWARD_ACTIVATIONS: dict[str, Callable[[Tensor, float | Tensor], Tensor]] = {
    "relu": lambda x, beta: torch.relu(x),
    "gelu": lambda x, beta: gelu(x),
    "gelu_pytorch_tanh": lambda x, beta: gelu_tanh(x),
    "silu": lambda x, beta: swish(x, 1.0),
    "swish": swish,
    "softmax": lambda x, beta: torch.stack([softmax(row) for row in x.flatten(0, -2)]).view_as(x),
}
# φ of φ(X·W1ᵀ) ⊗ (X·Vᵀ) (Shazeer 2020)
GATES: dict[str, Callable[[Tensor, float | Tensor], Tensor]] = {
    "glu": lambda x, beta: sigmoid(x),
    "bilinear": lambda x, beta: x,
    "reglu": lambda x, beta: torch.relu(x),
    "drelu": lambda x, beta: torch.relu(x),
    "geglu": lambda x, beta: gelu(x),
    "swiglu": swish,
}


def feed_forward(
    parameters: Mapping[str, Tensor],
    activation: str,
    hidden_states: Tensor,
    *,
    norm_eps: float = 1e-5,
    swish_beta: float = 1.0,
    temperature: float = 1.0,
) -> Tensor:
    """H = φ(X·W1ᵀ + b1)·W2 + b2, or with a gate (φ(X·W1ᵀ + b1) ⊗ (X·Vᵀ + c))·W2 + b2; LayerNorm on H where it has one.

    ReLUFormer eq. 1 (relu), eq. 2 (softmax: W1 are the keys and W2 the values of a memory), §3.2 (LayerNorm).
    """
    beta = parameters.get("swish_beta", swish_beta)
    inner = linear(parameters, "fc1", hidden_states)
    if activation in GATES:
        values = linear(parameters, "fc_linear", hidden_states)
        inner = GATES[activation](inner, beta) * (torch.relu(values) if activation == "drelu" else values)
    else:
        inner = inner / temperature if activation == "softmax" else inner
        inner = FEED_FORWARD_ACTIVATIONS[activation](inner, beta)
    output = linear(parameters, "fc2", inner)
    if "norm.weight" in parameters:
        output = layer_norm(output, parameters["norm.weight"], parameters["norm.bias"], norm_eps)
    return output
