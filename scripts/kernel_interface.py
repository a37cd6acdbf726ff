"""Attentions of the interface of transformers, for a repository of `kernels`: `attn_implementation="owner/repo:NAME"`.

transformers gives such functions a mask of real keys, [batch, key_len] or None, and windows, positions and lengths of
packed texts by keyword; all follows from these. Where the library is installed, its own names take more: see
docs/any-model.md.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reluformers_kernels.fused_attention import rectified_attention

# These keywords mean nothing here, nor do those that begin with output_.
_FOR_OTHERS = {
    "use_cache",
    "cache_position",
    "return_dict",
    "deterministic",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "input_ids",
    "inputs_embeds",
    "token_type_ids",
    "pixel_values",
    "labels",
    "num_items_in_batch",
    "tokenizer",
    "assistant_tokenizer",
    "logits_to_keep",
}


def _texts(
    starts_of_queries: Tensor | None,
    starts_of_keys: Tensor | None,
    positions: Tensor | None,
    query_len: int,
    key_len: int,
) -> tuple[Tensor | None, Tensor | None]:
    """First and last key of the text of each query [batch or 1, query_len]; None where a row is one text."""
    if starts_of_queries is not None:
        of_queries = starts_of_queries.long()
        of_keys = of_queries if starts_of_keys is None else starts_of_keys.long()
        if not torch.compiler.is_compiling() and (of_queries[-1], of_keys[-1]) != (query_len, key_len):
            raise ValueError(f"cu_seq_lens_q and cu_seq_lens_k must end in {query_len} and {key_len}")
        places = torch.arange(query_len, device=of_queries.device)
        texts = torch.searchsorted(of_queries[1:], places, right=True)
        return of_keys[texts][None], of_keys[texts + 1][None] - 1
    if getattr(positions, "ndim", 0) != 2 or not 1 < query_len == key_len == positions.shape[1]:
        return None, None
    texts = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=1) < 1).cumsum(-1)
    return torch.searchsorted(texts, texts), torch.searchsorted(texts, texts, right=True) - 1


def _attention_of(**fields: Any) -> Callable[..., tuple[Tensor, None]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        position_ids: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        """Attend; output [batch, query_len, heads, head_dim].

        Raises:
            ValueError: the model asks for something that this attention has not.
        """
        unknown = {
            name
            for name, given in keywords.items()
            if given is not None and name not in _FOR_OTHERS and not name.startswith("output_")
        }
        if getattr(getattr(module, "config", None), "attention_chunk_size", None):
            unknown.add("attention_chunk_size")
        if unknown or (attention_mask is not None and attention_mask.dim() != 2):
            raise ValueError(
                f"this model gives its attention {', '.join(sorted(unknown)) or 'a ready mask'}: not known here"
            )
        if attention_mask is not None:  # A static cache is longer than its tokens.
            key, value = (states[:, :, : attention_mask.shape[1]] for states in (key, value))
        query_len = query.shape[2]
        key_len = key.shape[2]
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        offset = key_len - query_len
        # In padding, positions stand still without a new text.
        positions = position_ids if attention_mask is None else None
        first_keys, last_keys = _texts(cu_seq_lens_q, cu_seq_lens_k, positions, query_len, key_len)
        if sliding_window is not None:
            window = torch.arange(query_len, device=query.device)[None] + (offset - sliding_window + 1)
            first_keys = window if first_keys is None else torch.maximum(window, first_keys)
            if not is_causal:  # A window then reaches as far ahead as back.
                offset += sliding_window - 1
            is_causal = True
        output = rectified_attention(
            query,
            key,
            value,
            scale=scaling,
            key_padding_mask=None if attention_mask is None else attention_mask.bool(),
            is_causal=is_causal,
            causal_offset=offset if is_causal else None,
            first_keys=first_keys,
            last_keys=last_keys,
            dropout=dropout if module.training else 0.0,
            **fields,
        )
        return output.transpose(1, 2), None

    return attention


ATTENTIONS: dict[str, dict[str, Any]] = {
    "relu_attention": {"activation": "relu", "length_exponent": 1.0},
    "relu_sum_attention": {"activation": "relu", "normalizer": "sum"},
    "reluformer_attention": {"activation": "relu", "length_exponent": 0.5, "length_coefficient": 0.5**0.5},
    "sparsemax_attention": {"activation": "sparsemax"},
    "entmax15_attention": {"activation": "entmax15"},
}
relu_attention = _attention_of(**ATTENTIONS["relu_attention"])
relu_sum_attention = _attention_of(**ATTENTIONS["relu_sum_attention"])
reluformer_attention = _attention_of(**ATTENTIONS["reluformer_attention"])
sparsemax_attention = _attention_of(**ATTENTIONS["sparsemax_attention"])
entmax15_attention = _attention_of(**ATTENTIONS["entmax15_attention"])


def flash_functions(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Make `flash_attn_func` and `flash_attn_varlen_func` of one of `ATTENTIONS`, as the package flash_attn has them.

    The second takes packed texts q, k, v [tokens, heads, head_dim], which begin at cu_seqlens_q and cu_seqlens_k. With
    causality and windows the last query of a text belongs to its last key.
    """

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        s_aux: Tensor | None = None,
    ) -> Tensor:
        if s_aux is not None:  # transformers would leave it out for a function that does not name it.
            raise ValueError(f"this model gives its attention sinks (s_aux), which {name} has not")
        starts_q = cu_seqlens_q.long()
        starts_k = cu_seqlens_k.long()
        places = torch.arange(len(q), device=q.device)
        texts = torch.searchsorted(starts_q[1:-1].contiguous(), places, right=True)
        begin = starts_k[texts]
        end = starts_k[texts + 1]
        own = end + places - starts_q[texts + 1]
        back, ahead = window_size
        ahead = 0 if causal else ahead
        first = begin if back < 0 else (own - back).clamp(begin, end)
        last = end - 1 if ahead < 0 else (own + ahead).clamp(begin - 1, end - 1)
        output = rectified_attention(
            *(states.transpose(0, 1)[None] for states in (q, k, v)),
            scale=softmax_scale,
            first_keys=first[None],
            last_keys=last[None],
            dropout=dropout_p,
            **ATTENTIONS[name],
        )
        return output[0].transpose(0, 1)

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        starts = (torch.arange(len(x) + 1, device=x.device) * x.shape[1] for x in (q, k))
        output = flash_attn_varlen_func(*(states.flatten(0, 1) for states in (q, k, v)), *starts, **options)
        return output.unflatten(0, q.shape[:2])

    return flash_attn_func, flash_attn_varlen_func
