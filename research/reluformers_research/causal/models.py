"""The models of the table: stock `LlamaForCausalLM`, its softmax exchanged for one attention."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from reluformers import exchange_attention
from reluformers.configuration.configuration_attention import AttentionConfig


class GatedLlamaForCausalLM(LlamaForCausalLM):
    """Llama whose attention output is gated, o ⊙ σ(W x) before the output projection (Qiu et al. 2025)."""

    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        for layer in self.model.layers:
            attention = layer.self_attn
            attention.output_gate = nn.Linear(config.hidden_size, attention.o_proj.in_features, bias=False)
            attention.register_forward_pre_hook(_keep_input, with_kwargs=True)
            # of a copy of the model, a partial function belongs to the copy
            attention.o_proj.register_forward_pre_hook(partial(_gated, attention))
        self.post_init()


def _keep_input(module: nn.Module, inputs: tuple, keywords: dict[str, Any]) -> None:
    module.gate_input = keywords["hidden_states"] if "hidden_states" in keywords else inputs[0]


def _gated(owner: nn.Module, _module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0] * torch.sigmoid(owner.output_gate(owner.gate_input)),)


def build_model(config: LlamaConfig, attention: AttentionConfig) -> PreTrainedModel:
    """A fresh model.

    Raises:
        ValueError: the attention cannot take the place of softmax, or has a gate beside something else.
    """
    if attention.output_gate != "none":
        if attention != AttentionConfig(output_gate="sigmoid"):
            raise ValueError(f"output_gate is {attention.output_gate!r}, but only 'sigmoid' beside softmax is built")
        return GatedLlamaForCausalLM(config)
    model = LlamaForCausalLM(config)
    return model if attention == AttentionConfig() else exchange_attention(model, attention)
