"""Attention modules of a tiny model by themselves, where no inputs of the whole are known: states in, states out."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from reluformers.modeling.modeling_exchanged import calls_interface

BATCH = 2
LENGTH = 16
STATES = ("states", "query", "key", "value", "queries", "keys", "values", "q", "k", "v", "latents", "context")


def attention_modules(model: PreTrainedModel) -> dict[type[nn.Module], nn.Module]:
    """One module of each class that calls the attention interface."""
    found = {}
    for module in model.modules():
        if calls_interface(type(module)):
            found.setdefault(type(module), module)
    return found


def calls_of(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Arguments that an attention module may take, the likeliest first; a mask is left to `with_mask`."""
    arguments = inspect.signature(module.forward).parameters
    required = [
        name for name, one in arguments.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    for optional in ([], ["position_embeddings"], ["position_ids"]):
        names = [name for name in (*required, *optional) if name in arguments and name != "attention_mask"]
        for sizes in ((BATCH, LENGTH), (LENGTH,), (BATCH, 4, 4)):
            choices = [list(_values(name, module, sizes)) for name in dict.fromkeys(names)]
            for one in itertools.islice(itertools.product(*choices), 200):
                yield dict(zip(dict.fromkeys(names), one, strict=True))


def with_mask(module: nn.Module, call: dict[str, Any], attention: str) -> dict[str, Any]:
    """The call with the mask that a model of this attention would give, one row padded on the left."""
    states = next(part for part in call.values() if isinstance(part, Tensor))
    if "attention_mask" not in inspect.signature(module.forward).parameters or states.shape[:2] != (BATCH, LENGTH):
        return call
    padding = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    padding[1, :3] = False
    mask = AttentionMaskInterface()[attention](
        batch_size=BATCH,
        q_length=LENGTH,
        kv_length=LENGTH,
        mask_function=causal_mask_function if getattr(module, "is_causal", False) else bidirectional_mask_function,
        attention_mask=padding,
        dtype=torch.float32,
    )
    return {**call, "attention_mask": mask}


def _values(name: str, module: nn.Module, sizes: tuple[int, ...]) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(1)
    if name.split("_")[-1] in STATES:
        for width in _widths(name, module):
            yield torch.randn(*sizes, width, generator=generator)
    elif name == "cu_seqlens":
        yield torch.tensor([0, 5, LENGTH], dtype=torch.int32)
    elif name == "max_seqlen":
        yield LENGTH
    elif name.startswith("position_embeddings"):
        full = getattr(module, "head_dim", 8)
        for width in dict.fromkeys([full, getattr(module, "qk_rope_head_dim", full), full // 2, full // 4]):
            angles = torch.rand(LENGTH, width, generator=generator) * 6
            for part in (angles, angles[None], angles.expand(BATCH, -1, -1)):
                yield part.cos(), part.sin()
        for width in _widths("query", module):
            yield torch.randn(*sizes, width, generator=generator)
    elif name == "position_ids":
        yield torch.arange(LENGTH)[None]
    elif name == "layer_idx":
        yield 0
    elif name in ("shared_kv_states",):
        yield {}


def _widths(name: str, module: nn.Module) -> list[int]:
    """Widths of the inputs of its linear parts, that of the part of a similar name first."""
    linear = {part: one.in_features for part, one in module.named_modules() if isinstance(one, nn.Linear)}
    first = name.split("_")[0][0]
    ordered = sorted(linear, key=lambda part: not part.startswith(first if first in "qkv" else "q"))
    return list(dict.fromkeys(linear[part] for part in ordered))[:3]
