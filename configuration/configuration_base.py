# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""What the configurations of all models share: attention, feed-forward network, norms, regulariser and saving."""

import difflib
from dataclasses import replace
from pathlib import PurePath
from typing import Any, ClassVar, Literal, get_args

from transformers import PreTrainedConfig

from .configuration_attention import DEFAULT_SCALE_LENGTH, SIGNED_ACTIVATIONS, AttentionConfig
from .field_checks import check_choice, check_number, strict_fields

FORMAT_VERSION = 1

_Gated = Literal["glu", "bilinear", "reglu", "drelu", "geglu", "swiglu"]
FeedForwardActivation = Literal["relu", "gelu", "gelu_pytorch_tanh", "silu", "swish", "softmax", _Gated]
NormType = Literal["layer_norm", "rms_norm", "scale_norm", "none"]

# In tensor parallelism these rules are for the first and the last linear map of a branch: each process computes a part
# of what lies between them (`SPLIT`), or all of it (`WHOLE`).
SPLIT, WHOLE = ("colwise", "rowwise"), ("colwise_gather_output", "rowwise_split_input")

_NUMBERS = {
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "label_smoothing"), "[0, 1)"),
    **dict.fromkeys(("normalization_loss_weight", "entropy_loss_weight", "entropy_bound"), "[0, inf)"),
    **dict.fromkeys(("feed_forward_temperature", "swish_beta", "norm_eps", "initializer_range"), "(0, inf)"),
}


@strict_fields
class TransformerConfig(PreTrainedConfig):
    r"""Fields that mean the same in every model; not used by itself.

    A model names its sizes, dropouts and activation as its kind does in transformers (`d_model` or `hidden_size`) and
    maps them in `attribute_map`, so that shared code reads `hidden_size`, `num_attention_heads`, `intermediate_size`,
    `activation_function`, `dropout`, `attention_dropout`, `attention_bias` and `norm_eps` everywhere.

    Args:
        attention: a preset's name, a dict or an `AttentionConfig`, for all sites without an attention of their own.
        activation_function: φ of the feed-forward network (`"softmax"` makes it a key–value memory, ReLUFormer eq. 2),
            or a gated form, which has 2/3 of the inner width and so as many parameters.
        feed_forward_norm: `"layer_norm"` on this network's output (ReLUFormer, section 3.2: "Softmax with LN").
        feed_forward_temperature: τ > 0 of φ = softmax(x / τ) (ReLUFormer, section 3.4).
        ffn_bias: whether linear maps of the feed-forward network add a bias.
        attention_output_bias: whether output projections of attention add a bias; None means as `attention_bias`.
        swish_beta, learned_swish_beta: β of swish(x) = x·σ(βx), fixed or trained.
        norm_type, norm_position, norm_eps: norm of the residual blocks. `"pre"` adds one norm after the last layer.
            Without a norm the type is `"none"` (QKNorm, table 6: "Without LayerNorm").
        scale_norm_init: how g of `"scale_norm"` starts: `"sqrt_dim"`, √d as in QKNorm's code, or
            `"inverse_sqrt_dim"`, 1/√d as in the paper (QKNorm, section 2).
        dropout: dropout of the output of each residual branch, in [0, 1). `attention_dropout` drops attention weights,
            `activation_dropout` inner values of the feed-forward network.
        label_smoothing: ε, spread over all labels, in training only, in [0, 1).
        normalization_loss_weight, entropy_loss_weight: weights of the two terms of ReLUFormer eq. 7, in training only.
        entropy_bound: C_i = entropy_bound · log n_i (ReLUFormer, App. A.2).
        format_version: version of config.json; a newer version than this library's is an error.

    Raises:
        ValueError: a field has a value that is not allowed, alone or beside the others.
    """

    # The installed library sets `payload_writer`, so that every way of saving writes the code beside config.json.
    payload_writer: ClassVar[Any] = None
    # A site is a place where the model attends. A field `<site>_attention` goes before `attention`.
    sites: ClassVar[tuple[str, ...]] = ()

    attention: Any = "softmax"
    activation_dropout: float | int = 0.0
    feed_forward_norm: Literal["none", "layer_norm"] = "none"
    feed_forward_temperature: float | int = 1.0
    ffn_bias: bool = True
    attention_output_bias: bool | None = None
    swish_beta: float | int = 1.0
    learned_swish_beta: bool = False
    norm_type: NormType = "layer_norm"
    norm_position: Literal["pre", "post"] = "pre"
    scale_norm_init: Literal["sqrt_dim", "inverse_sqrt_dim"] = "sqrt_dim"
    label_smoothing: float | int = 0.0
    normalization_loss_weight: float | int = 0.0
    entropy_loss_weight: float | int = 0.0
    entropy_bound: float | int = 0.7
    initializer_range: float | int = 0.02
    format_version: int = FORMAT_VERSION

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "base_model_tp_plan":  # transformers 5.17 adds a rule that the property below has already.
            return
        # transformers sets fields one by one, and sets `attention` to None in its copy of a configuration for a
        # decoder.
        is_attention = name.endswith("attention") and name in self.__dataclass_fields__
        if value is not None and is_attention:
            # A dict of some fields changes the attention that the configuration has; at first that is the family's.
            starts = (getattr(self, name, None), self.attention, type(self).attention)
            try:
                value = AttentionConfig.parse(value, start=next(one for one in starts if one is not None))
            except ValueError as error:
                raise ValueError(f"{type(self).__name__}.{name}: {error}") from error
        super().__setattr__(name, value)

    def __post_init__(self, **kwargs):
        # Names of keywords are checked, because transformers would keep unknown ones in silence.
        fields = [*self.__dataclass_fields__, *self.attribute_map]
        for name in kwargs:
            near = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
            if near and name not in self.attribute_map and not hasattr(type(self), name):
                raise ValueError(f"{type(self).__name__} has no field {name!r}; did you mean {near[0]!r}?")
        super().__post_init__(**kwargs)

    def attention_for(self, site: str) -> AttentionConfig:
        """The attention of one of `sites`, with its L filled in."""
        check_choice(type(self).__name__, "site", site, self.sites)
        value = getattr(self, f"{site}_attention", None)
        return self._complete(self.attention if value is None else value)

    @property
    def has_regularizer(self) -> bool:
        """Whether one of the two terms of ReLUFormer eq. 7 is trained with."""
        return self.normalization_loss_weight > 0 or self.entropy_loss_weight > 0

    @property
    def default_scale_length(self) -> int:
        """L of cosine attention that does not give one, in tokens."""
        return DEFAULT_SCALE_LENGTH

    @property
    def splits_heads(self) -> bool:
        """Whether processes of tensor parallelism compute some heads each; otherwise each computes all of them."""
        return not any(self.attention_for(site).spans_heads for site in self.sites)

    def parallel_plan(self, attentions: dict[str, str], feed_forwards: tuple[str, ...]) -> dict[str, str]:
        """Rules of tensor parallelism, as transformers reads them from `base_model_tp_plan`.

        Args:
            attentions: site → pattern of the names of its modules.
            feed_forwards: patterns of the names of feed-forward networks.
        """
        plan = {}
        first, last = SPLIT if self.splits_heads else WHOLE
        for site, module in attentions.items():
            attention = self.attention_for(site)
            linear = ["q_proj", "k_proj", "v_proj"] + ["gate_proj"] * (attention.output_gate != "none")
            plan |= {f"{module}.{name}": first for name in linear} | {f"{module}.out_proj": last}
            if self.splits_heads:
                plan |= dict.fromkeys(attention.parts_for_each_head(module), "replicated_with_grad_allreduce")
        # Each process computes all of a feed-forward network with softmax, because the softmax is over its whole inner
        # width.
        first, last = WHOLE if self.activation_function == "softmax" else SPLIT
        for module in feed_forwards:
            linear = ["fc1"] + ["fc_linear"] * (self.activation_function in get_args(_Gated))
            plan |= {f"{module}.{name}": first for name in linear} | {f"{module}.fc2": last}
            if self.activation_function != "softmax":  # The feed-forward module itself may hold the β of swish.
                plan[module] = "replicated_with_grad_allreduce"
        return plan

    def _complete(self, attention: AttentionConfig) -> AttentionConfig:
        length = attention.scale_length
        # The saved file holds the length L as a number, so that a new default does not change an old model.
        return replace(attention, scale_length=self.default_scale_length if length is None else length)

    def validate_fields(self) -> None:
        """Check ranges and combinations; the `ValueError` names the field, its value and what is allowed."""
        owner = type(self).__name__
        check_number(owner, "format_version", self.format_version, f"[1, {FORMAT_VERSION}]", integer=True)
        if self.attention is None:
            raise ValueError(f"{owner}.attention is None, but must be a preset's name, a dict or an AttentionConfig")
        self._check_numbers(_NUMBERS)
        activations = [self.attention_for(site).activation for site in self.sites]
        if self.has_regularizer and not SIGNED_ACTIVATIONS.isdisjoint(activations):
            wanted = "must be 0 with attention that can give negative weights"
            raise ValueError(f"{owner}.normalization_loss_weight and entropy_loss_weight {wanted}: {activations}")

    def _check_numbers(self, intervals: dict[str, str], integer: bool = False) -> None:
        """Check the fields of these names, by what this model calls them; the types say which may be None."""
        for name, interval in intervals.items():
            if (value := getattr(self, name)) is not None:
                own_name = self.attribute_map.get(name, name)
                check_number(type(self).__name__, own_name, value, interval, integer=integer)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, nested ones as dicts and complete, so that the file says all."""
        # The saved file holds a preset's fields, because a later version could give its name another meaning.
        output = super().to_dict()
        return {
            name: self._complete(value).to_dict() if isinstance(value, AttentionConfig) else value
            for name, value in output.items()
        }

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs) -> None:
        """Save config.json and, from the installed library, the code that opens the folder anywhere."""
        writes_code = self.payload_writer is not None and self._auto_class is None
        if writes_code:
            type(self).payload_writer(self, save_directory)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub and not writes_code, **kwargs)
        # transformers uploads only files that are new since it began to save, and the code was there before
        # config.json, so all are uploaded.
        if push_to_hub and writes_code:
            self.push_to_hub(**{"repo_id": PurePath(save_directory).name, **kwargs})
