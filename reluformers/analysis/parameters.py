"""What of a model's behaviour can be read off its parameters, and what attention costs by its formulas."""

from typing import Any

import torch
from torch import Tensor, nn

from .observation import attention_modules, feed_forward_values

_SCALARS = ("scale", "length_exponent", "threshold")


def anisotropy(values: Tensor) -> float:
    r"""How much the values of a memory point in one direction, ANI of ReLUFormer eq. 4 (§3.4, fig. 3).

    ANI = 1/(m(m−1)) Σ_{i≠j} v_i·v_j / (‖v_i‖‖v_j‖) = (‖Σ_i v̂_i‖² − m') / (m(m−1))

    with v̂ of unit length and m' the number of values that are not 0: in [−1/(m−1), 1], 0 for many random directions.

    Args:
        values: [m, width], m at least 2.

    Raises:
        ValueError: there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"anisotropy compares values with each other, got {len(values)} of them.")
    unit = nn.functional.normalize(values.detach().cpu().double(), dim=-1, eps=1e-300)
    return ((unit.sum(0).square().sum() - unit.square().sum()) / (len(values) * (len(values) - 1))).item()


def parameter_statistics(model: nn.Module) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What is learned and needs no data, in the form of `analyse`: name → site → layers.

    ffn_anisotropy   of the values, the columns of `fc2` (`anisotropy`)
    scale            g of QKNorm eq. 4, the factor of the scores
    length_exponent  α of the divisor c·n^α (ReLU-ViT asks whether it could be learned)
    threshold        θ of φ(z − θ) (ReLA §6 asks for it)

    The last three are there where a model learns them.
    """
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for site, layers in feed_forward_values(model).items():
        values = [anisotropy(layer.weight.T) for layer in layers]
        results.setdefault("ffn_anisotropy", {})[site] = [_layer_value(value) for value in values]
    for site, modules in attention_modules(model).items():
        for name in _SCALARS:
            scalars = [getattr(module, name, None) for module in modules]
            if all(isinstance(scalar, nn.Parameter) and scalar.numel() == 1 for scalar in scalars):
                results.setdefault(name, {})[site] = [_layer_value(scalar.item()) for scalar in scalars]
    return results


def attention_flops(kind: str, *, heads: int, length: int, width: int) -> int:
    """Floating-point operations that turn the scores of T queries and T keys into weights and outputs of H heads.

    softmax  3HT² − HT
    rela-g   HT² + 10Td + T

    As ReLA table 4 counts them: exponentials, sums and divisions of softmax against rectification and the gated
    RMSNorm of ReLA-g; products of matrices, which both have, are left out.

    Args:
        kind: "softmax" or "rela-g".
        heads: H.
        length: T.
        width: d of the joined heads.

    Raises:
        ValueError: the kind is another one.
    """
    if kind == "softmax":
        return 3 * heads * length**2 - heads * length
    if kind == "rela-g":
        return heads * length**2 + 10 * length * width + length
    raise ValueError(f"kind is {kind!r}, but must be softmax or rela-g")


def attention_parameters(kind: str, *, width: int, bias: bool = True) -> int:
    """Parameters of one attention module of width d.

    softmax  4d² + 4d, of four projections with their biases
    rela-g   4d² + 4d + 2d: gain and gate of the gated RMSNorm too (ReLA eq. 5, table 2)

    With 18 modules of d = 512 ReLA-g adds 18,432; table 2 prints 72.31M and 72.34M, 0.03M more, which its released
    code does not explain either.

    Args:
        kind: "softmax" or "rela-g".
        width: d.
        bias: whether the projections add a bias.

    Raises:
        ValueError: the kind is another one.
    """
    if kind not in ("softmax", "rela-g"):
        raise ValueError(f"kind is {kind!r}, but must be softmax or rela-g")
    return 4 * width**2 + (4 * width if bias else 0) + (2 * width if kind == "rela-g" else 0)


def transformer_parameters(
    kind: str, *, vocab_size: int, width: int, ffn_width: int, encoder_layers: int, decoder_layers: int
) -> int:
    """Parameters of an encoder–decoder Transformer with biases, PostNorm and one table of embeddings, tied throughout.

    V·d + N_e·(A + F + 2·2d) + N_d·(2A + F + 3·2d)   with A = `attention_parameters`, F = 2·d·f + f + d

    Sinusoidal positions have none (Vaswani et al. 2017, §3; ReLA table 2 counts such models).

    Args:
        kind: of the attention at all sites, "softmax" or "rela-g".
        vocab_size: V.
        width: d.
        ffn_width: f.
        encoder_layers, decoder_layers: N_e and N_d.

    Raises:
        ValueError: the kind is another one.
    """
    attention = attention_parameters(kind, width=width)
    feed_forward = 2 * width * ffn_width + ffn_width + width
    encoder = encoder_layers * (attention + feed_forward + 4 * width)
    return vocab_size * width + encoder + decoder_layers * (2 * attention + feed_forward + 6 * width)


def _layer_value(value: float) -> dict[str, Any]:
    return {"overall": value if torch.isfinite(torch.tensor(value)) else None, "heads": []}
