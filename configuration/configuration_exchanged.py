# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration of a model of transformers whose attention is exchanged."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from .configuration_attention import AttentionConfig

SHARED = ("id2label", "label2id", "problem_type", "return_dict", "output_hidden_states")


class ExchangedConfig(PreTrainedConfig):
    r"""A model of transformers, and what its attention modules compute instead of softmax.

    Args:
        base: the model's own configuration, as a dict without its `model_type`.
        base_type: its `model_type`, apart from `base`: with one, transformers would take `base` for the whole.
        base_class: name of its class in transformers, such as `"LlamaForCausalLM"`.
        attention: a preset's name, a dict or an `AttentionConfig`.
        modules: name of each exchanged module → number of heads, width of a head, width of all outputs.

    Raises:
        ValueError: the attention is not valid.
    """

    model_type = "reluformers_exchanged"

    def __init__(
        self,
        base: dict[str, Any] | None = None,
        base_type: str = "",
        base_class: str = "",
        attention: str | dict[str, Any] | AttentionConfig = "softmax",
        modules: dict[str, list[int]] | None = None,
        **kwargs: Any,
    ):
        self.base = {} if base is None else base
        self.base_type, self.base_class = base_type, base_class
        self.attention = AttentionConfig.parse(attention).to_dict()
        self.modules = {} if modules is None else modules
        # A setting of the model counts unless it was changed since, as by from_pretrained(…, num_labels=2).
        super().__init__(**{name: self.base[name] for name in SHARED if name in self.base} | kwargs)

    def base_config(self) -> PreTrainedConfig:
        """Build the model's own configuration.

        Raises:
            ValueError: transformers has no such model.
        """
        return AutoConfig.for_model(self.base_type, **self.base)
