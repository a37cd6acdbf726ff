"""The models of the tables: stock `LlamaForCausalLM` or GPT-2, their softmax exchanged for one attention."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

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


def _keep_input(module: nn.Module, _inputs: tuple, keywords: dict[str, Any]) -> None:
    module.gate_input = keywords["hidden_states"]


def _gated(owner: nn.Module, _module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0] * torch.sigmoid(owner.output_gate(owner.gate_input)),)


def build_model(config: PreTrainedConfig, attention: AttentionConfig) -> PreTrainedModel:
    """A fresh model."""
    if attention.output_gate != "none":
        if attention != AttentionConfig(output_gate="sigmoid") or config.model_type != "llama":
            raise ValueError("output_gate is built beside softmax in a Llama alone, and as 'sigmoid'")
        return GatedLlamaForCausalLM(config)
    model = AutoModelForCausalLM.from_config(config)
    return model if attention == AttentionConfig() else exchange_attention(model, attention)
