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


def _layer_value(value: float) -> dict[str, Any]:
    return {"overall": value if torch.isfinite(torch.tensor(value)) else None, "heads": []}
