# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Our attentions in the models of transformers, by name: `attn_implementation="relu_attention"`.

A model of transformers calls its attention with queries, keys and values through `AttentionInterface`, and makes its
mask by the function of the same name in `AttentionMaskInterface`. Both are registered here: padding, causality,
windows and packed rows come as an `AttentionMask`, so that nothing of the size query_len × key_len is made for them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, GenerationConfig, PreTrainedConfig
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.utils import TransformersKwargs

from ..configuration.configuration_attention import AttentionConfig
from .attention import AttentionVariant
from .attention_functions import apply_masked
from .context_parallel import all_rows, number_of_processes, own_mask
from .masks import AttentionMask, differ
from .normalization import unit_length

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None

# Models of these types in transformers compute with the mask itself, so it must be a dense tensor.
_DENSE_MASKS = {
    *("axk2", "colpali", "deepseek_v32", "doge", "dots3_note_text", "glm_moe_dsa", "hy_v4", "hy_v4_vl"),
    *("hy_v4_vl_text", "lasr_encoder", "mistral_large4", "mistral_large4_text", "molmo2", "paligemma"),
    *("t5gemma2", "t5gemma2_decoder", "t5gemma2_encoder", "t5gemma2_text"),
}
# transformers passes these keywords, which change nothing in exchanged attention. They come from every model, from
# `generate`, or from some models.
_KNOWN = {
    *TransformersKwargs.__optional_keys__,
    *(*vars(GenerationConfig()), "tokenizer", "assistant_tokenizer"),
    *("sliding_window", "cache_position", "return_dict", "deterministic"),
    *("input_ids", "inputs_embeds", "token_type_ids", "pixel_values", "labels"),
    *("grid_thw", "image_grid_thw", "logits_to_keep"),
    "shift_labels",
    # Continuous batching in transformers passes four more keywords.
    *("read_index", "write_index", "logits_indices", "logits_processor_args"),
}
# An additive mask hides a key where it is below −9000: −10⁴, which models write, is −9984 in bfloat16.
_LOWEST = -9e3


@dataclass(frozen=True)
class InterfaceMask(AttentionMask):
    """An `AttentionMask` with what transformers asks a ready mask for.

    Args:
        is_packed: whether it keeps the texts of packed rows apart.
        has_chunks: whether queries see their own chunk of a row alone.
    """

    is_packed: bool = False
    has_chunks: bool = False

    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the mask made dense, with 1 for batch and heads."""
        return 1, 1, self.query_len, self.key_len

    def contiguous(self) -> "InterfaceMask":
        """The mask as it is."""
        return self


class InterfaceAttention(AttentionVariant):
    """An attention as the models of transformers call it; it has parameters only in an exchanged model.

    `returns_weights` tells `returning_weights` that it needs no other attention for that.

    Args:
        attention: a preset's name, a dict or an `AttentionConfig`.
        activation: φ of one's own, a function of scores; None for that of `attention`.
        num_heads, head_dim, output_dim: of the module whose attention is exchanged; needed for parameters alone.

    Raises:
        ValueError: a field is not valid, or asks for the input of the attention, which this has not.
    """

    returns_weights = True

    def __init__(
        self,
        attention: str | dict[str, Any] | AttentionConfig,
        activation: Callable[[Tensor], Tensor] | None = None,
        num_heads: int = 1,
        head_dim: int = 1,
        output_dim: int = 1,
    ):
        super().__init__()
        self.attention = AttentionConfig.parse(attention)
        if self.attention.output_gate != "none":
            raise ValueError(
                f"AttentionConfig.output_gate is {self.attention.output_gate!r}, but must be 'none' in a model of "
                "transformers: its attention is not given what the gate is made of"
            )
        self.activation = None if activation is None else functools.partial(apply_masked, activation)
        self.head_dim = head_dim
        self._build_variant(num_heads, output_dim)
        self.reset_parameters()

    def forward(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: AttentionMask | Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        s_aux: Tensor | None = None,
        **keywords: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention in the place of a transformers module, which calls this through the attention interface.

        Args:
            query: [batch, heads, query_len, head_dim].
            key, value: [batch, heads or fewer, key_len, head_dim].
            attention_mask: what `make_interface_mask` gave, or a mask of 4 dimensions, boolean or additive.
            scaling: a of dot products; None for 1/√d_h.
            dropout: share of dropped weights.
            is_causal: of queries without a mask; None for what the module says.
            position_bias: added to the scores, broadcasting to [batch, heads, query_len, key_len].
            s_aux: logits of the sinks [heads], with softmax alone.
            keywords: whatever else the model passes; what is not known must be None.

        Returns:
            output [batch, query_len, heads, head_dim], and the weights where they are asked for, else None.

        Raises:
            ValueError: the model asks for something that this attention has not.
        """
        _check_keywords(keywords, attention_mask)
        if keywords.get("read_index") is not None:
            # Continuous batching has updated its cache before it calls attention. Its mask of 0 and the lowest float
            # keeps requests apart.
            if attention_mask is None:
                raise ValueError("continuous batching of this transformers gives this attention no mask")
            attention_mask, keywords = attention_mask == 0, {}
        mask, bias = read_call(module, query, key, attention_mask, is_causal, **keywords)
        if position_bias is not None:
            bias = position_bias if bias is None else position_bias + bias
        config = self.attention
        changes = {} if s_aux is None else {"attention": _with_sinks(config), "threshold": s_aux}
        # Values are normalised here, because a transformers model has made them already.
        if config.value_norm == "l2":
            value = unit_length(value)
        # A model that passes a scale of 1 has multiplied its queries by `module.scaling` already.
        applied_scale = getattr(module, "scaling", 1.0) if scaling == 1 else 1.0
        if self.query_norm is not None:  # A norm of the queries removes the factor by which the model multiplied them.
            query = self.query_norm(query)
            key = self.key_norm(key)
            if scaling == 1:
                scaling = applied_scale
            applied_scale = 1.0
        if config.score == "cosine":  # The cosine is taken between normalised queries and keys.
            query = unit_length(query)
            key = unit_length(key)
            scaling = config.initial_scale(query.shape[-1])
        elif scaling is None or config.scale is not None:
            scaling = config.initial_scale(query.shape[-1]) / applied_scale
        if config.exclusive_output and mask.causal_offset != key.shape[2] - query.shape[2]:
            raise ValueError("exclusive_output is for causal attention, without a static cache and a ready mask")
        formula = self.formula(
            scaling, dropout if module.training else 0.0, activation=self.activation, bias=bias, **changes
        )
        # If weights are wanted, the eager backend computes, because only this one holds weights.
        backend = "eager" if _wants_weights(keywords) else "fused"
        output, weights, _ = self.attend(formula, query, key, value, mask, attn_implementation=backend)
        return output.unflatten(2, (query.shape[1], -1)), weights


def make_interface_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | AttentionMask | None = None,
    device: torch.device | str = "cpu",
    config: PreTrainedConfig | None = None,
    **others: Any,
) -> AttentionMask | Tensor:
    """Make the mask that transformers' `AttentionMaskInterface` asks for, as an `AttentionMask` where possible.

    Args:
        batch_size, q_length, kv_length: of the queries and the keys.
        q_offset, kv_offset: positions of the first query and of the first key.
        mask_function: whether the query of a position sees the key of a position.
        attention_mask: 1 or True = real token [batch, seen tokens], or what this function gave before.
        device: where the mask is needed.
        config: of the model; some compute with the mask, so that they get it whole.
        others: whatever else transformers passes to functions of this kind.
    """
    if attention_mask is not None and not isinstance(attention_mask, Tensor):
        # The mask is an `AttentionMask` already, because `generate` makes masks before it calls the model.
        return attention_mask
    device = torch.device(device)
    number = number_of_processes()
    if number > 1:
        q_length *= number
        kv_length *= number
        attention_mask = None if attention_mask is None else all_rows(attention_mask)
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].bool()
    # With a static cache the mask is dense: the cache counts on the device, and compiled code takes tensors alone.
    is_dense = getattr(config, "model_type", None) in _DENSE_MASKS or isinstance(q_offset, Tensor)
    parts = None if is_dense else _parts_of(mask_function)
    if number > 1:
        parts = _parts_of_one_text(parts, q_offset, kv_offset)
    if parts is None:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            device=device,
            config=config,
            **{**others, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
    return _mask_of_parts(parts, q_length, kv_length, q_offset, kv_offset, padding, device)


def _parts_of_one_text(
    parts: list[tuple[str, dict[str, Any]]] | None, q_offset: int | Tensor, kv_offset: int
) -> list[tuple[str, dict[str, Any]]]:
    """Drop the mask that sees two texts in the two pieces of a process, which context parallelism gives it.

    Raises:
        ValueError: the sequence is not one text without a cache.
    """
    names = dict(parts or ())
    texts = names.get("packed", {}).get("packed_sequence_mask")
    # In context parallelism each process holds two pieces of a text. Positions jump at the second one, which
    # transformers takes for the start of another packed text.
    if texts is not None and texts.diff().count_nonzero(1).max() <= 1:
        parts = [part for part in parts if part[0] not in ("packed", "remapped")]
        names.pop("packed")
    if parts is None or isinstance(q_offset, Tensor) or q_offset or kv_offset or {"packed", "chunk"} & {*names}:
        raise ValueError("a sequence on several processes must be one text, with causality or windows, uncached")
    return parts


def _mask_of_parts(
    parts: list[tuple[str, dict[str, Any]]],
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    padding: Tensor | None,
    device: torch.device,
) -> AttentionMask:
    """Intersect causal, window, chunk and packed masks into one with the first and last key that each query sees."""
    names = {name for name, _ in parts}
    positions = torch.arange(q_length, device=device) + q_offset
    ahead = []
    first_keys = []
    last_keys = []
    for name, values in parts:
        if name == "causal":
            ahead.append(0)
        elif name == "window":
            first_keys.append((positions - values["sliding_window"] + 1)[None])
        elif name == "window_to_both_sides":
            first_keys.append((positions - values["sliding_window"])[None])
            ahead.append(values["sliding_window"])
        elif name == "chunk":
            start = values["left_padding"].to(device)[:, None]
            size = values["chunk_size"]
            first_keys.append((positions - start) // size * size + start)
            last_keys.append(first_keys[-1] + size - 1)
        elif name == "packed":
            first, last = _bounds_of(values["packed_sequence_mask"])
            first_keys.append(first)
            last_keys.append(last)
    first = functools.reduce(torch.maximum, first_keys) - kv_offset if first_keys else None
    causal_offset = q_offset - kv_offset + min(ahead) if ahead else None
    last = None
    if last_keys and "causal" not in names:  # With causality the end of a text or chunk hides nothing more.
        last = functools.reduce(torch.minimum, last_keys) - kv_offset
    flags = {"is_packed": "packed" in names, "has_chunks": "chunk" in names}
    return own_mask(InterfaceMask(q_length, kv_length, device, padding, causal_offset, first, last, **flags))


def _bounds_of(texts: Tensor) -> tuple[Tensor, Tensor]:
    """The first and last position of the text at each position of a row, by numbers of texts [batch or 1, length]."""
    return torch.searchsorted(texts, texts), torch.searchsorted(texts, texts, right=True) - 1


# A mask function of transformers.masking_utils is known by the name of the function that made it.
_MADE_BY = {
    "sliding_window_overlay": "window",
    "chunked_overlay": "chunk",
    "packed_sequence_mask_function": "packed",
    "sliding_window_bidirectional_overlay": "window_to_both_sides",
}


def _parts_of(mask_function: Callable) -> list[tuple[str, dict[str, Any]]] | None:
    """Find the masks that a mask function is the intersection of, with their values; None if it is something else."""
    parts = _flatten(mask_function)
    if parts is None:
        return None
    names = {name for name, _ in parts}
    # With remapped positions, comparisons within a sequence stay true, but the borders of chunks do not.
    if "remapped" in names and ("packed" not in names or "chunk" in names):
        return None
    return parts


def _flatten(function: Callable) -> list[tuple[str, dict[str, Any]]] | None:
    # Mask functions are compared by identity, because one that behaves alike now could differ at the next call.
    if function is causal_mask_function:
        return [("causal", {})]
    if function is bidirectional_mask_function:
        return []
    # torch.compile does not know the values inside functions that traced code makes.
    if torch.compiler.is_compiling():
        return None
    maker = getattr(function, "__qualname__", "").partition(".")[0]
    if getattr(function, "__module__", None) != causal_mask_function.__module__ or function.__closure__ is None:
        return None
    names = function.__code__.co_freevars
    values = {name: cell.cell_contents for name, cell in zip(names, function.__closure__, strict=True)}
    if maker in _MADE_BY:
        return [(_MADE_BY[maker], values)]
    if maker == "remap_positions_for_packed_sequence":
        parts = _flatten(values["mask_function"])
        return None if parts is None else [*parts, ("remapped", {})]
    if maker == "and_masks":
        flattened = [_flatten(part) for part in values["mask_functions"]]
        return None if None in flattened else [part for parts in flattened for part in parts]
    return None


def _with_sinks(config: AttentionConfig) -> AttentionConfig:
    """Softmax with one more logit for each head: exp z / (exp s + Σ exp z) is softmax1 with the threshold s."""
    if config.activation not in ("softmax", "softmax1") or config.threshold or config.learned_threshold:
        raise ValueError(
            f"this model has sinks (s_aux), but attention with activation {config.activation!r} has none: take "
            "'softmax_attention' or 'softmax1_attention'"
        )
    # In softmax1 the threshold θ is the sink's logit of each head.
    return replace(config, activation="softmax1")


def _check_keywords(keywords: dict[str, Any], mask: AttentionMask | Tensor | None) -> None:
    """Refuse what would change the result if it were understood.

    Raises:
        ValueError: a keyword is not known and not None.
    """
    for name, value in keywords.items():
        if value is None or name in _KNOWN or name.startswith("output_"):
            continue
        if name == "indices" and isinstance(mask, Tensor):
            continue
        raise ValueError(f"this model passes {name} to its attention, which is not known here")


def _only_chosen(mask: Tensor, indices: Tensor) -> Tensor:
    """A ready mask without the keys that are not among `indices` [batch, query_len, chosen], of sparse attentions.

    Their models hide those keys themselves for the attentions of transformers alone.
    """
    is_left_out = indices.new_ones((*indices.shape[:2], mask.shape[-1]), dtype=torch.bool)
    is_left_out = is_left_out.scatter(-1, indices.long(), False)[:, None]
    if mask.dtype == torch.bool:
        return mask & ~is_left_out
    return mask.masked_fill(is_left_out, torch.finfo(mask.dtype).min)


def _within(mask: AttentionMask, first_keys: Tensor, last_keys: Tensor) -> AttentionMask:
    """The mask of queries that see no keys outside of these bounds [batch or 1, query_len]."""
    if mask.given is not None:
        keys = torch.arange(mask.key_len, device=mask.device)
        is_inside = (keys >= first_keys[..., None]) & (keys <= last_keys[..., None])
        return replace(mask, given=mask.given & is_inside[:, None])
    if mask.first_keys is not None:
        first_keys = mask.first_keys.maximum(first_keys)
    if mask.last_keys is not None:
        last_keys = mask.last_keys.minimum(last_keys)
    return replace(mask, first_keys=first_keys, last_keys=last_keys)


def _check_starts(name: str, starts: Tensor, length: int) -> None:
    """Refuse starts of texts by which texts would see each other, or places be read beyond a row's end.

    Raises:
        ValueError: they do not begin at 0, fall, or do not end with the row.
    """
    if starts.dim() != 1 or starts[0] != 0 or starts[-1] != length or (starts.diff() < 0).any():
        raise ValueError(f"{name} is {starts.tolist()}, but must rise from 0 to {length}, the length of the row")


def _keep_texts_apart(mask: AttentionMask, keywords: dict[str, Any]) -> AttentionMask:
    """Limit a mask so that no text of a packed row sees another.

    Where texts begin is said by cu_seq_lens_q and cu_seq_lens_k [texts + 1], or by positions that do not go on, which
    only some models hand to their attention.

    Raises:
        ValueError: the texts are not as long as the rows, or chunks of the row are no chunks of the texts.
    """
    starts, positions = keywords.get("cu_seq_lens_q"), keywords.get("position_ids")

    def by_positions() -> AttentionMask:
        whole = all_rows(positions)
        begins = torch.diff(whole, prepend=whole[:, :1] - 1) < 1
        if not torch.compiler.is_compiling() and not begins.any():
            return mask
        if whole is not positions:
            raise ValueError("a sequence on several processes must be one text, but position_ids begin again")
        # Packed texts are numbered at each position. A query sees its own text from the first position to the last.
        texts = begins.cumsum(-1)
        return _within(mask, *_bounds_of(texts))

    if starts is None:
        is_free = mask.given is None and mask.key_padding_mask is None and not getattr(mask, "is_packed", False)
        # With a cache there are more keys than positions, and no packed text can begin in between.
        whole_len = mask.query_len * number_of_processes()
        is_row = getattr(positions, "ndim", 0) == 2 and 1 < mask.query_len == positions.shape[-1]
        is_row = is_row and whole_len == mask.key_len
        return mask.once("texts", by_positions) if is_free and is_row else mask
    if getattr(mask, "has_chunks", False):
        raise ValueError("cu_seq_lens_q packs rows that are cut into chunks: give position_ids and use_cache=False")

    def by_lengths() -> AttentionMask:
        starts_of_keys = keywords.get("cu_seq_lens_k")
        of_keys = (starts if starts_of_keys is None else starts_of_keys).long().to(mask.device)
        of_queries = starts.long().to(mask.device)
        if not torch.compiler.is_compiling():
            _check_starts("cu_seq_lens_q", of_queries, mask.query_len)
            _check_starts("cu_seq_lens_k", of_keys, mask.key_len)
            if of_queries.shape != of_keys.shape or (mask.is_causal and not of_queries.equal(of_keys)):
                raise ValueError(
                    f"cu_seq_lens_q is {of_queries.tolist()} and cu_seq_lens_k {of_keys.tolist()}, but must be of as "
                    "many texts, and equal for causal attention"
                )
        places = torch.arange(mask.query_len, device=mask.device)
        texts = torch.searchsorted(of_queries[1:], places, right=True)
        return _within(mask, of_keys[texts][None], of_keys[texts + 1][None] - 1)

    return mask.once("texts", by_lengths)


def read_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: AttentionMask | Tensor | None,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[AttentionMask, Tensor | None]:
    """Read the mask of a call as `InterfaceAttention` does, and what an additive one adds to visible scores."""
    mask, bias = _read_mask(module, query, key, attention_mask, is_causal, keywords.get("indices"))
    return _keep_texts_apart(mask, keywords), bias


def _read_mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: AttentionMask | Tensor | None,
    is_causal: bool | None,
    indices: Tensor | None,
) -> tuple[AttentionMask, Tensor | None]:
    """Turn a call's mask into an `AttentionMask`, and what an additive one adds to scores that it does not hide."""
    number = number_of_processes()
    query_len, key_len = query.shape[2], key.shape[2] * number
    # The mask's class may come from another copy of this code, so it is known by not being a tensor.
    if mask is not None and not isinstance(mask, Tensor):
        if differ(mask.key_len, key_len):  # Compiled code would read beyond the end of a mask for fewer keys.
            raise ValueError(f"the mask is of {mask.key_len} keys, but there are {key_len}")
        return mask, None
    if mask is None:
        is_causal = getattr(module, "is_causal", query_len > 1) if is_causal is None else is_causal
        query_len *= number
        if is_causal and query_len not in (1, key_len):
            raise ValueError(f"causal attention of {query_len} queries to {key_len} keys needs a mask")
        offset = key_len - query_len if is_causal else None
        return own_mask(AttentionMask(query_len, key_len, query.device, causal_offset=offset)), None
    if mask.dim() != 4:
        raise ValueError(f"an attention mask is {list(mask.shape)}, but must have 4 dimensions")
    mask = mask[..., :key_len] if indices is None else _only_chosen(mask[..., :key_len], indices)
    if mask.dtype == torch.bool:
        return AttentionMask.of(mask, query_len, key_len, query.device), None
    if not mask.is_floating_point():
        raise ValueError(f"an attention mask of 4 dimensions is {mask.dtype}, but must be bool or additive")
    return AttentionMask.of(mask > _LOWEST, query_len, key_len, query.device), mask.clamp_min(_LOWEST)


def _wants_weights(keywords: dict[str, Any]) -> bool:
    if keywords.get("output_attentions"):
        return True
    if _active_collector is None or torch.compiler.is_compiling():
        return False
    return any("attentions" in name for name in _active_collector.get() or ())


def register(name: str, attention: InterfaceAttention) -> None:
    """Make an attention known to the models of this process by a name."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, make_interface_mask)
