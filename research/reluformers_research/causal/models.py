"""The models of the table: stock `LlamaForCausalLM`, its softmax exchanged for one attention."""

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
            attention.o_proj.register_forward_pre_hook(lambda _, inputs, owner=attention: (_gated(owner, inputs[0]),))
        self.post_init()


def _keep_input(module: nn.Module, inputs: tuple, keywords: dict[str, Any]) -> None:
    module.gate_input = keywords["hidden_states"] if "hidden_states" in keywords else inputs[0]


def _gated(module: nn.Module, output: Tensor) -> Tensor:
    return output * torch.sigmoid(module.output_gate(module.gate_input))


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
