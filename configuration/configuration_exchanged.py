# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration of a model of transformers whose attention is exchanged."""

import re
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from .configuration_attention import AttentionConfig

# pattern of names of sizes → far above what anybody has built, so that a hostile config.json builds no model
_MOST = {
    r"layers?$|^depths?$|blocks$": 10_000,
    r"hidden_size|hidden_dim|d_model|n_embd|embed_dim|head_dim|heads$|experts$": 2**16,
    r"intermediate_size|ffn_dim|d_ff|mlp_dim|n_inner": 2**20,
    r"vocab_size|position_embeddings|n_positions|num_labels": 2**24,
}
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
        ValueError: a field is not valid.
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
        for name in ("base", "modules"):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f"ExchangedConfig.{name} is {getattr(self, name)!r}, but must be a dict")
        for name, sizes in self.modules.items():
            if not isinstance(sizes, list) or len(sizes) != 3 or not all(isinstance(n, int) and n > 0 for n in sizes):
                raise ValueError(
                    f"ExchangedConfig.modules has {sizes!r} for {name}, but must have three sizes above 0"
                )
        _check_sizes(self.base)
        # as in the model, unless it was changed since, as by from_pretrained(…, num_labels=2)
        super().__init__(**{name: self.base[name] for name in SHARED if name in self.base} | kwargs)

    def base_config(self) -> PreTrainedConfig:
        """Build the model's own configuration.

        Raises:
            ValueError: transformers has no such model.
        """
        return AutoConfig.for_model(self.base_type, **self.base)


def _check_sizes(fields: dict[str, Any]) -> None:
    """Refuse a field of a configuration, or of one in it, that is far above what anybody has built."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _check_sizes(value)
        for pattern, most in _MOST.items():
            for number in value if isinstance(value, list) else [value]:
                if type(number) is int and number > most and re.search(pattern, name):
                    raise ValueError(f"ExchangedConfig.base has {name} = {number}, but it must be at most {most}")
