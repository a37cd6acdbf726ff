"""Starts for the exchanged attention of any model: scales and gains at which each module gives what softmax gave."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reluformers.modeling.attention_interface import InterfaceAttention
from reluformers.modeling.modeling_exchanged import SUBMODULE, ExchangedModel

from .calibration import fit_gain, read_batches, relative_error, reset_norm

# The fit tries these multiples of a learned scale.
SCALE_FACTORS = tuple(2.0 ** (step / 2) for step in range(-8, 9))


@torch.no_grad()
def fit_attention(model: ExchangedModel, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    r"""Fit the exchanged attentions of a model, in place, to what softmax gives with the other weights.

    A learned a is the one of `SCALE_FACTORS` with the smallest error; the gain of an output norm is fitted by least
    squares, channel by channel, with its gate at σ(0). Nothing is trained, and what has no such parameter stays.

    Args:
        model: out of `exchange_attention`.
        batches: arguments of its `forward`, without padding; a few hundred rows.

    Returns:
        Σ‖o − o_softmax‖² / Σ‖o_softmax‖² of each exchanged module's outputs, by its name.

    Raises:
        ValueError: there is no batch.
    """
    errors = {}
    for name, calls in _record(model, batches).items():
        if not calls:  # These batches do not go through this part of the model.
            continue
        attention = getattr(model.get_submodule(name), SUBMODULE)
        if attention.scale is not None:
            start = attention.scale.clone()
            tried = []
            for factor in SCALE_FACTORS:
                attention.scale.copy_(start * factor)
                tried.append(_fitted_error(attention, calls))
            attention.scale.copy_(start * SCALE_FACTORS[tried.index(min(tried))])
        errors[name] = _fitted_error(attention, calls)
    return errors


def _record(model: ExchangedModel, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, list[tuple]]:
    """What the modules are called with while they compute softmax, and what that gives."""
    softmax = InterfaceAttention("softmax")
    calls: dict[str, list[tuple]] = {name: [] for name in model.config.exchanged["modules"]}
    attentions = {name: getattr(model.get_submodule(name), SUBMODULE) for name in calls}

    def recorder(name: str) -> Any:
        def forward(module: nn.Module, *states: Any, **keywords: Any) -> tuple[Tensor, Tensor | None]:
            output, weights = softmax(module, *states, **keywords)
            calls[name].append((module, states, keywords, output.flatten(2)))
            return output, weights

        return forward

    for name, attention in attentions.items():
        attention.forward = recorder(name)
    try:
        read_batches(model, batches)
    finally:
        for attention in attentions.values():
            del attention.forward
    return calls


def _fitted_error(attention: InterfaceAttention, calls: list[tuple]) -> float:
    """Fit the gain of the output norm, if there is one, and measure the error."""
    norm = attention.output_norm
    if norm is not None:
        reset_norm(norm)
    pairs = [
        (attention(module, *states, **keywords)[0].flatten(0, 1).flatten(1).double(), wanted.flatten(0, 1).double())
        for module, states, keywords, wanted in calls
    ]
    if norm is not None:
        gain = fit_gain(norm, pairs)
        pairs = [(given * gain, wanted) for given, wanted in pairs]
    return relative_error(pairs)
