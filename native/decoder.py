# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""What decoder.c is given: a translation model as structures of pointers, and a search."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from . import ACTIVATIONS as ELEMENTWISE
from . import Structure, _fields

# The names of norms, activations and forms have the order of decoder.c, because C gets an index.
NORMS = ("none", "layer", "rms", "unit_length")
ACTIVATIONS = (
    *ELEMENTWISE,
    "step",
    "softmax",
    "softmax1",
    "softpick",
    "sparsemax",
    "entmax15",
    "gelu_pytorch_tanh",
    "swish",
)
LENGTH_FORMS = ("constant", "log_length", "sqrt_log_length")
GATES = ("none", "linear", "silu", "sigmoid")
EARLY_STOPPING = (False, True, "never")
_OUTPUTS_OF_A_BLOCK = 16


def padded_width(width: int) -> int:
    """Numbers of a row with the zeros behind them."""
    return -(-width // 16) * 16


class Linear(Structure):
    """y = x·Wᵀ + b."""

    _fields_ = _fields("weight packed scales sums factors bias", "inputs outputs is_bfloat16")
    MEMORY: ClassVar = {
        "weight": (None, lambda linear: linear.outputs * linear.inputs),
        "packed": (torch.int8, lambda linear: padded_width(linear.outputs) * -(-linear.inputs // 4) * 4),
        **dict.fromkeys(("scales", "sums"), (torch.float32, lambda linear: padded_width(linear.outputs))),
        **dict.fromkeys(("factors", "bias"), (torch.float32, lambda linear: linear.outputs)),
    }


class Norm(Structure):
    """A norm of `NORMS` for rows of `width` numbers, with a gate before it."""

    _fields_ = _fields("gain bias gate factor", "", "eps", "kind")
    MEMORY: ClassVar = {
        **dict.fromkeys(("gain", "bias", "gate"), (torch.float32, lambda norm: norm.width)),
        "factor": (torch.float32, lambda norm: 1),
    }


class Attention(Structure):
    """The attention of one site of a layer."""

    _fields_: ClassVar = [
        *((name, Linear) for name in ("query", "key", "value", "gate", "output")),
        *((name, Norm) for name in ("query_norm", "key_norm", "value_norm", "query_length", "key_length")),
        ("output_norm", Norm),
        *_fields("scale thresholds exponent", "", "coefficient", "threshold_step activation scale_form"),
        *_fields(flags="threshold_form is_sum_one gate_form is_exclusive"),
    ]
    MEMORY: ClassVar = {
        **dict.fromkeys(("scale", "exponent"), (torch.float32, lambda site: 1)),
        "thresholds": (torch.float32, lambda site: site.heads if site.threshold_step else 1),
    }


class Layer(Structure):
    """A layer of encoder or decoder."""

    _fields_: ClassVar = [
        *((name, Attention) for name in ("own", "cross")),
        *((name, Norm) for name in ("own_norm", "cross_norm", "mlp_norm", "inner_norm")),
        *((name, Linear) for name in ("fc1", "fc_linear", "fc2")),
        *_fields("beta", "", "temperature", "activation has_rectified_values"),
    ]
    MEMORY: ClassVar = {"beta": (torch.float32, lambda layer: 1)}


class Stack(Structure):
    """Encoder or decoder."""

    _fields_: ClassVar = [
        *_fields("embeddings positions bias"),
        *((name, Norm) for name in ("token_norm", "sum_norm", "last_norm")),
        *_fields("layers", "layer_count heads", "factor", "is_pre_norm is_bfloat16"),
    ]
    MEMORY: ClassVar = {
        "embeddings": (None, lambda stack: stack.vocabulary * stack.width),
        "positions": (torch.float32, lambda stack: stack.longest * stack.width),
        "bias": (torch.float32, lambda stack: stack.width),
    }


class Rule(Structure):
    """Tokens that must not come after rows of some lengths, or that alone may."""

    _fields_ = _fields("tokens", "count first_length last_length is_forced")
    MEMORY: ClassVar = {"tokens": (torch.int32, lambda rule: rule.count)}


def _states(search: "Search") -> int:
    return search.source_tokens * padded_width(search.width)


def _beams(search: "Search") -> int:
    return search.sentences * search.beams


def _hypotheses(search: "Search") -> int:
    return search.sentences * search.returned


class Search(Structure):
    """`Search` of decoder.c."""

    _fields_ = (
        *_fields("encoder decoder logits source starts states source_cache cache tokens ancestors running_scores"),
        *_fields("finished_scores finished_lengths finished results result_lengths is_done lengths rules ends"),
        *_fields(
            "penalties shown_logits is_broken scratch",
            "scratch_size sentences beams returned prompt_len longest capacity positions max_length width inner parts "
            "rule_count end_count early_stopping is_beam_search is_renormalized",
            "last_penalty",
        ),
    )
    MEMORY: ClassVar = {
        "source": (torch.int32, lambda search: search.source_tokens),
        "starts": (torch.int64, lambda search: search.sentences + 1),
        "states": (torch.float32, _states),
        "source_cache": (torch.float32, lambda search: search.layers * 2 * _states(search)),
        "cache": (
            torch.float32,
            lambda search: search.capacity * search.layers * _beams(search) * 2 * padded_width(search.width),
        ),
        "tokens": (torch.int32, lambda search: search.longest * _beams(search)),
        "ancestors": (torch.int32, lambda search: 2 * _beams(search) * search.longest),
        **dict.fromkeys(("running_scores", "finished_scores"), (torch.float32, _beams)),
        "finished_lengths": (torch.int32, _beams),
        "finished": (torch.int32, lambda search: _beams(search) * search.longest),
        "results": (torch.int64, lambda search: _hypotheses(search) * search.longest),
        "result_lengths": (torch.int64, _hypotheses),
        "is_done": (torch.bool, lambda search: search.sentences),
        "lengths": (torch.int64, lambda search: search.parts),
        "ends": (torch.int32, lambda search: search.end_count),
        "penalties": (torch.float32, lambda search: search.longest + 1),
        "shown_logits": (torch.float32, lambda search: search.vocabulary),
        "is_broken": (torch.bool, lambda search: search.parts),
    }


def pack(integers: Tensor) -> Tensor:
    """Weights [out, in] of int8 in the order of decoder.c: [out / 16, in / 4, 16, 4], zeros behind the last."""
    outputs, inputs = integers.shape
    padded = functional.pad(integers, (0, -inputs % 4, 0, -outputs % _OUTPUTS_OF_A_BLOCK))
    blocks = padded.view(len(padded) // _OUTPUTS_OF_A_BLOCK, _OUTPUTS_OF_A_BLOCK, -1, 4)
    return blocks.transpose(1, 2).contiguous()


def translate(search: Search, is_done: Tensor, capacity: int) -> None:
    """Run a search until its sentences are done, or have more tokens than there are positions.

    Args:
        search: all of it but the memory for keys and values, which grows with the tokens.
        is_done: of each sentence, which this sets.
        capacity: tokens that there is room for at first.
    """
    cache = torch.empty(0, search.layers, search.sentences * search.beams, 2, padded_width(search.width))
    lengths = torch.zeros(search.parts, dtype=torch.long)
    search.keep(lengths=lengths, is_done=is_done)
    while search.capacity < search.longest and not is_done.all():
        search.capacity = min(search.longest, max(capacity, 2 * search.capacity))
        grown = torch.empty(search.capacity, *cache.shape[1:])
        grown[: len(cache)] = cache
        cache = grown
        search.keep(cache=cache)
        search.run("translate", search.parts)
