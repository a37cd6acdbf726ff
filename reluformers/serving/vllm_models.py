"""Models of vLLM with an attention of this library, computed on CPUs from vLLM's paged cache.

Only the layers of these models get another attention, so that every other model of the process keeps its own.
"""

import functools
from typing import Any

import torch
import vllm
from torch import Tensor, nn
from transformers import PreTrainedConfig
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, CPUAttentionMetadata

from reluformers_kernels.tensors import PagedTensor

from ..attentions import named_attention
from ..configuration.configuration_exchanged import ExchangedConfig
from ..modeling.attention_interface import InterfaceAttention, InterfaceMask
from ..modeling.modeling_exchanged import base_with
from .vllm_plugin import ARCHITECTURES, PREFIXES, VERSION

if not vllm.__version__.startswith(VERSION):
    raise ImportError(f"attentions of reluformers are for vLLM {VERSION}*, but {vllm.__version__} is installed")


class PagedAttention(CPUAttentionBackendImpl):
    """An attention of this library in the place of vLLM's own for CPUs.

    Args:
        own: what vLLM made for the layer.
        attention: what to compute instead.

    Raises:
        ValueError: the layer is not on a CPU, or computes something that this attention does not.
    """

    def __init__(self, own: Any, attention: InterfaceAttention):
        if type(own) is not CPUAttentionBackendImpl:
            raise ValueError(f"attentions of reluformers run on CPUs in vLLM, but the backend is {type(own).__name__}")
        vars(self).update(vars(own))
        self.attention = attention
        unknown = {
            "attn_type": self.attn_type != AttentionType.DECODER,
            "alibi_slopes": self.alibi_slopes is not None,
            "logits_soft_cap": self.logits_soft_cap != 0,
            "kv_cache_dtype": self.is_fp8_kv_cache,
            "sinks": self.sinks is not None,
        }
        names = [name for name, is_there in unknown.items() if is_there]
        if names:
            raise ValueError(f"{names[0]} is {getattr(self, names[0])}, which attentions of reluformers do not take")

    def do_kv_cache_update(
        self, layer: nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write keys and values [tokens, heads, head_dim] to the cache as plain rows."""
        is_token = slot_mapping >= 0
        slots = slot_mapping[is_token]
        for states, pages in zip((key, value), _pages_of(kv_cache, key), strict=True):
            page_len = pages.shape[2]
            pages[slots // page_len, :, slots % page_len] = states[: len(is_token)][is_token]

    def forward(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Compute attention for vLLM on a CPU: new tokens of all requests attend to its paged cache; fill `output`.

        vLLM writes keys and values into the cache before. Queries are [tokens, heads, head_dim].
        """
        if attn_metadata is None:  # The first call only reserves memory.
            return output
        if output_scale is not None or output_block_scale is not None or attn_metadata.causal is not True:
            raise NotImplementedError("attentions of reluformers are causal, and do not quantize their output")
        starts = attn_metadata.query_start_loc
        lengths = attn_metadata.seq_lens
        counts = starts.diff().tolist()
        pages = _pages_of(kv_cache, query)
        # Prompts differ in their lengths, so each is a batch of its own; requests with one new token are one batch.
        batches = [[row] for row, count in enumerate(counts) if count > 1]
        batches.append([row for row, count in enumerate(counts) if count == 1])
        for rows in filter(None, batches):
            count = counts[rows[0]]
            # A new token's position counts from the start of its sequence [requests, tokens].
            positions = lengths[rows][:, None] - count + torch.arange(count)
            used = -(-int(lengths[rows].max()) // pages[0].shape[2])
            keys, values = (PagedTensor(part, attn_metadata.block_table[rows, :used]) for part in pages)
            first = (positions - self.sliding_window + 1).clamp_min(0) if self.sliding_window > 0 else None
            mask = InterfaceMask(count, keys.shape[2], query.device, first_keys=first, last_keys=positions)
            tokens = (starts[rows][:, None] + torch.arange(count)).flatten()
            states = query[tokens].unflatten(0, (len(rows), count)).transpose(1, 2)
            attended, _ = self.attention(layer, states, keys, values, mask, scaling=self.scale)
            output[tokens] = attended.flatten(0, 1).view(len(tokens), *output.shape[1:])
        return output


def _pages_of(kv_cache: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache, [pages, heads, page_len, head_dim] each."""
    if kv_cache.dim() != 4 or kv_cache.shape[3] != 2 * states.shape[2] or kv_cache.dtype != states.dtype:
        raise NotImplementedError(f"a cache {kv_cache.dtype} {list(kv_cache.shape)} is not known here")
    count, heads, page_len, width = kv_cache.shape
    return kv_cache.view(count, heads, 2 * page_len, width // 2).chunk(2, dim=2)


def _read(config: PreTrainedConfig) -> tuple[InterfaceAttention, PreTrainedConfig]:
    """The attention that a saved configuration names, and the configuration of the model around it.

    Raises:
        ValueError: there is none, or it is not the same in all layers, or has parameters.
    """
    if not isinstance(config, ExchangedConfig):
        attention = named_attention(config._attn_implementation)
        if attention is None:
            raise ValueError(f"the attention is {config._attn_implementation!r}, which is none of reluformers")
        return attention, config
    base = base_with(config)
    attention = InterfaceAttention(config.attention)
    if len(config.modules) != base.num_hidden_layers or list(attention.parameters()):
        raise ValueError("vLLM takes an exchanged attention without parameters, and the same in all layers")
    return attention, base


@functools.cache
def __getattr__(name: str) -> type[nn.Module]:
    """The class of vLLM behind the name of an architecture in `ARCHITECTURES`, with an attention of this library."""
    own_name = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), None)
    if own_name not in ARCHITECTURES:
        raise AttributeError(name)
    own_class = ModelRegistry.models[own_name].load_model_cls()

    def build(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        saved = vllm_config.model_config.hf_config
        attention, config = _read(saved)
        if config is not saved:
            vllm_config = vllm_config.with_hf_config(config, [own_name])
        own_class.__init__(self, vllm_config=vllm_config, prefix=prefix)
        for module in self.modules():
            if isinstance(module, AttentionLayerBase):
                module.impl = PagedAttention(module.impl, attention)

    return type(name, (own_class,), {"__init__": build, "__module__": __name__})
