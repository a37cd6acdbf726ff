# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""What decoder.c is given: a translation model as structures of pointers, and a search."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from . import ACTIVATIONS as ELEMENTWISE
from . import _Arguments, _fields

# in the order of decoder.c
NORMS = ("none", "layer", "rms", "unit_length")
ACTIVATIONS = (
    *(*ELEMENTWISE, "step"),
    *("softmax", "softmax1", "softpick", "sparsemax", "entmax15", "gelu_pytorch_tanh", "swish"),
)
LENGTH_FORMS = ("constant", "log_length", "sqrt_log_length")
GATES = ("none", "linear", "silu", "sigmoid")
EARLY_STOPPING = (False, True, "never")
_OUTPUTS_OF_A_BLOCK = 16


class _Structure(ctypes.Structure):
    @classmethod
    def of(cls, **values) -> "_Structure":
        """Fill fields; those of tensors get where their numbers lie, which somebody else must keep there."""
        pointers = {name: value.data_ptr() for name, value in values.items() if isinstance(value, Tensor)}
        return cls(**{name: value for name, value in values.items() if value is not None} | pointers)


class Linear(_Structure):
    """y = x·Wᵀ + b."""

    _fields_ = _fields("weight packed scales sums factors bias", "inputs outputs is_bfloat16")


class Norm(_Structure):
    """A norm of `NORMS`, with a gate before it."""

    _fields_ = _fields("gain bias gate factor", "", "eps", "kind")


class Attention(_Structure):
    """The attention of one site of a layer."""

    _fields_ = [
        *((name, Linear) for name in ("query", "key", "value", "gate", "output")),
        *((name, Norm) for name in ("query_norm", "key_norm", "value_norm", "query_length", "key_length")),
        ("output_norm", Norm),
        *_fields("scale thresholds exponent", "", "coefficient", "threshold_step activation scale_form"),
        *_fields(flags="threshold_form is_sum_one gate_form is_exclusive"),
    ]


class Layer(_Structure):
    """A layer of encoder or decoder."""

    _fields_ = [
        *((name, Attention) for name in ("own", "cross")),
        *((name, Norm) for name in ("own_norm", "cross_norm", "mlp_norm", "inner_norm")),
        *((name, Linear) for name in ("fc1", "fc_linear", "fc2")),
        *_fields("beta", "", "temperature", "activation has_rectified_values"),
    ]


class Stack(_Structure):
    """Encoder or decoder."""

    _fields_ = [
        *_fields("embeddings positions bias"),
        *((name, Norm) for name in ("token_norm", "sum_norm", "last_norm")),
        *_fields("layers", "layer_count heads", "factor", "is_pre_norm is_bfloat16"),
    ]


class Rule(_Structure):
    """Tokens that must not come after rows of some lengths, or that alone may."""

    _fields_ = _fields("tokens", "count first_length last_length is_forced")


class Search(_Arguments):
    """`Search` of decoder.c."""

    _fields_ = (
        *_fields("encoder decoder logits source starts states source_cache cache tokens ancestors running_scores"),
        *_fields("finished_scores finished_lengths finished results result_lengths is_done lengths rules ends"),
        *_fields(
            "penalties scratch",
            "scratch_size sentences beams returned prompt_len longest capacity positions max_length width inner parts "
            "rule_count end_count early_stopping is_beam_search",
            "last_penalty",
        ),
    )


def pack(integers: Tensor) -> Tensor:
    """Weights [out, in] of int8 in the order of decoder.c: [out / 16, in / 4, 16, 4], zeros behind the last."""
    outputs, inputs = integers.shape
    padded = functional.pad(integers, (0, -inputs % 4, 0, -outputs % _OUTPUTS_OF_A_BLOCK))
    blocks = padded.view(len(padded) // _OUTPUTS_OF_A_BLOCK, _OUTPUTS_OF_A_BLOCK, -1, 4)
    return blocks.transpose(1, 2).contiguous()


def padded_width(width: int) -> int:
    """Numbers of a row with the zeros behind them."""
    return -(-width // 16) * 16


def translate(search: Search, is_done: Tensor, capacity: int) -> None:
    """Run a search until its sentences are done, or have more tokens than there are positions.

    Args:
        search: all of it but the memory for keys and values, which grows with the tokens.
        is_done: of each sentence, which this sets.
        capacity: tokens that there is room for at first.
    """
    layers, rows = Stack.from_address(search.decoder).layer_count, search.sentences * search.beams
    cache = torch.empty(0, layers, rows, 2, padded_width(search.width))
    lengths = torch.zeros(search.parts, dtype=torch.long)
    search.keep(lengths=lengths, is_done=is_done)
    while search.capacity < search.longest and not is_done.all():
        search.capacity = min(search.longest, max(capacity, 2 * search.capacity))
        grown = torch.empty(search.capacity, *cache.shape[1:])
        grown[: len(cache)] = cache
        cache = grown
        search.keep(cache=cache)
        search.run("translate", search.parts)
