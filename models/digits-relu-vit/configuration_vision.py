# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of the vision Transformers for image classification."""

import difflib
import math
from dataclasses import asdict, dataclass, fields, replace
from functools import wraps
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from pathlib import PurePath
from transformers import PreTrainedConfig
from typing import Any, ClassVar, Literal, get_args

# ---------------------------------------------------------------------------------------------------------------------
# configuration/field_checks.py
# Checks of configuration fields, whose errors are one line with the field, its value and what is allowed.


def strict_fields(cls: type) -> type:
    """Check a dataclass's fields as `@strict` of huggingface_hub does, aliases too, with `ValueError`s of one line.

    Types are checked when a field is set, the rest by methods `validate_…`, at the end of making and by `validate`.
    """
    is_checked, own_setattr = getattr(cls, "_is_checked", False), vars(cls).get("__setattr__")
    cls = strict(cls)
    set_field, run_validators = cls.__setattr__, cls.validate

    @wraps(set_field)
    def set_checked(self: Any, name: str, value: Any) -> None:
        name = getattr(self, "attribute_map", {}).get(name, name)
        try:
            set_field(self, name, value)
        except StrictDataclassFieldValidationError as error:
            reason = " ".join(str(error.__cause__).split())
            raise ValueError(f"{type(self).__name__}.{name}: {reason}") from error

    @wraps(run_validators)
    def validate(self: Any) -> None:
        try:
            run_validators(self)
        except StrictDataclassClassValidationError as error:
            raise ValueError(str(error.__cause__)) from error

    cls.validate = validate
    if not is_checked:
        cls.__setattr__, cls._is_checked = set_checked, True
    elif own_setattr is not None:  # A base class already checks fields by the types of the object's own class.
        cls.__setattr__ = own_setattr
    else:
        del cls.__setattr__
    return cls


def check_choice(owner: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise a `ValueError` with the field, the value and what is allowed unless `value` is in `allowed`."""
    if value not in allowed:
        raise ValueError(f"{owner}.{name} is {value!r}, but must be one of {', '.join(map(repr, allowed))}")


def check_number(owner: str, name: str, value: Any, interval: str = "(-inf, inf)", *, integer: bool = False) -> None:
    """Raise a `ValueError` unless `value` is a finite number, or an integer, in an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))
    # A NaN lies in no interval, so it is refused.
    if isinstance(value, int if integer else (int, float)) and not isinstance(value, bool):
        is_above = value > low or (interval[0] == "[" and value == low)
        if is_above and (value < high or (interval[-1] == "]" and value == high)):
            return
    noun = "an integer" if integer else "a number"
    raise ValueError(f"{owner}.{name} is {value!r}, but must be {noun} in {interval}")


# ---------------------------------------------------------------------------------------------------------------------
# configuration/configuration_attention.py
# One formula for every attention: its fields, their checks and the presets of the papers.


# Softmax and its kin are activations φ that divide by a sum over the row themselves.
_Distribution = Literal["softmax", "softmax1", "softpick", "sparsemax", "entmax15"]
DISTRIBUTIONS = frozenset(get_args(_Distribution))
Activation = Literal[_Distribution, "relu", "relu2", "relu6", "leaky_relu", "gelu", "softplus", "sigmoid", "identity"]
ACTIVATIONS = get_args(Activation)
# Signed activations φ can give a weight below zero, so their rows are no distribution and have no entropy.
SIGNED_ACTIVATIONS = frozenset({"leaky_relu", "gelu", "identity"})
# Shift-invariant activations φ give the same weights whatever is subtracted from all scores of a row.
SHIFT_INVARIANT_ACTIVATIONS = frozenset({"softmax", "sparsemax", "entmax15"})
DEFAULT_SCALE_LENGTH = 72  # The scale of cosine attention, log2(L² − L), takes QKNorm's L for English–Vietnamese.

# A preset lists only what differs from the defaults of `AttentionConfig` (softmax).
ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "softmax": {},
    # ReLUFormer divides by γ√(n/2) with γ = 1 (eq. 6), which is c·n^α with c = γ/√2, α = 1/2.
    "reluformer": {"activation": "relu", "length_coefficient": math.sqrt(0.5), "length_exponent": 0.5},
    # Plain ReLU is the row that lags or diverges in ReLUFormer, table 2, and in ReLA, table 1, row 4.
    "relu": {"activation": "relu"},
    # The three presets of ReLA are in its table 1, rows 5 to 7.
    "rela": {"activation": "relu", "output_norm": "rms_norm"},
    "rela-i": {"activation": "relu", "output_norm": "rms_norm", "output_norm_init": "uniform"},
    "rela-g": {"activation": "relu", "output_norm": "gated_rms_norm"},
    # QKNorm is defined by eq. 2 to 5 of its paper.
    "qknorm": {"score": "cosine", "learned_scale": True},
    # The preset relu/L is in section 2 of "Replacing softmax with ReLU in Vision Transformers".
    "relu-vit": {"activation": "relu", "length_exponent": 1.0},
    # The positive weights of `relu-sum` sum to 1; arXiv 2501.13428 finds that the sum is what matters in softmax.
    "relu-sum": {"activation": "relu", "normalizer": "sum"},
    "sparsemax": {"activation": "sparsemax"},
    "entmax15": {"activation": "entmax15"},
}


@strict_fields
@dataclass
class AttentionConfig:
    r"""The mathematics of one attention site.

    score   z_ij = a_i · q_i·k_j, or with cosine a_i · q_i·k_j / (‖q_i‖‖k_j‖)
    weight  s_ij = φ(z_ij − θ_i) / (c · n_i^α), n_i the number of keys that query i may see
            or s_ij = φ(z_ij − θ_i) / Σ_k φ(z_ik − θ_i)
    output  o_i  = Norm(Σ_j s_ij v_j) ⊙ ψ(W x_i), over the joined heads and before the output projection; ψ a gate or 1
            with exclusive_output, u_i = Σ_j s_ij v_j is replaced by u_i − (u_i·v̂_i) v̂_i in each head, v̂_i = v_i/‖v_i‖

    Args:
        score: `"dot"` or `"cosine"` (QKNorm, eq. 2).
        scale: a; None means 1/√d_h with `"dot"` and log2(L² − L) with `"cosine"` (QKNorm, eq. 3).
        learned_scale: train a, one scalar per attention module; it starts from `scale`.
        scale_form: `"constant"`, a_i = a, or `"log_length"`, a_i = a · log n_i (Nakanishi 2025, scalable softmax).
        scale_length: L of `scale`, in tokens: the 97.5th percentile of the training lengths on both sides (QKNorm,
            section 3.1); None means the number of tokens in an image model, else 72 (English–Vietnamese).
        query_key_norm: `"layer_norm"` normalises q and k per head, without bias (ViT-22B; ReLU in ViT, section 3).
        value_norm: `"l2"` also gives v unit length (QKNorm, table 6).
        activation: φ, a name of `ACTIVATIONS`; softmax, softmax1, softpick, sparsemax and entmax15 normalise over j.
        normalizer: `"sum"` divides the weights of a row by their sum instead of by c·n^α, where φ ≥ 0.
        length_coefficient: c > 0; ReLUFormer's γ√(n/2) is c = γ/√2 with α = 1/2.
        length_exponent: α.
        learned_length_exponent: train α, one scalar per attention module.
        threshold: θ.
        learned_threshold: train θ, one scalar per attention module.
        threshold_per_head: train one θ for each head: with softmax1 it is the learned sink of gpt-oss, as
            exp(z − θ) / (1 + Σ exp(z − θ)) = exp z / (exp θ + Σ exp z).
        threshold_form: `"constant"`, θ_i = θ; `"log_length"`, θ_i = θ · log n_i (sigmoid attention, Ramapuram et al.
            2024, has θ = 1); or `"sqrt_log_length"`, θ_i = θ · √(2 · log n_i / d_h) (threshold rectified attention has
            relu2 of cosines).
        exclusive_output: remove the own value's part from self-attention (exclusive self-attention, arXiv 2603.09078).
        output_norm: `"rms_norm"` or `"gated_rms_norm"`, σ(w⊙o)⊙g⊙o/RMS(o) (ReLA, section 3.2); `"layer_norm"`
            (ReLUFormer, section 4.1) or `"gated_layer_norm"`, σ(w⊙o)⊙LayerNorm(o) (ReLA, table 1, row 8).
        output_norm_init: how the gain g starts: `"ones"`, or `"uniform"` in ±√(3/d) (ReLA-i).
        output_norm_eps: ε of the output norm, inside the root.
        output_gate: ψ of a gate from one more projection of the input: `"silu"`, as in the gated attention unit (Hua
            et al. 2022, eq. 3), `"linear"` (ReLU in ViT, figure 4 studies such a gate), or `"sigmoid"` (gated
            attention, Qiu et al. 2025).

    Raises:
        ValueError: a field has a value that is not allowed.
    """

    score: Literal["dot", "cosine"] = "dot"
    scale: float | int | None = None
    learned_scale: bool = False
    scale_form: Literal["constant", "log_length"] = "constant"
    scale_length: int | None = None
    query_key_norm: Literal["none", "layer_norm"] = "none"
    value_norm: Literal["none", "l2"] = "none"
    activation: Activation = "softmax"
    normalizer: Literal["none", "sum"] = "none"
    length_coefficient: float | int = 1.0
    length_exponent: float | int = 0.0
    learned_length_exponent: bool = False
    threshold: float | int = 0.0
    learned_threshold: bool = False
    threshold_per_head: bool = False
    threshold_form: Literal["constant", "log_length", "sqrt_log_length"] = "constant"
    exclusive_output: bool = False
    output_norm: Literal["none", "rms_norm", "gated_rms_norm", "layer_norm", "gated_layer_norm"] = "none"
    output_norm_init: Literal["ones", "uniform"] = "ones"
    output_norm_eps: float | int = 1e-8
    output_gate: Literal["none", "linear", "silu", "sigmoid"] = "none"

    def validate_ranges(self) -> None:
        """Check what a type does not say; the `ValueError` names the field, its value and what is allowed."""
        owner = "AttentionConfig"
        for name in ("scale", "length_coefficient", "output_norm_eps"):
            if getattr(self, name) is not None:
                check_number(owner, name, getattr(self, name), "(0, inf)")
        if self.scale_length is not None:
            check_number(owner, "scale_length", self.scale_length, "[2, inf)", integer=True)
        for name in ("length_exponent", "threshold"):
            check_number(owner, name, getattr(self, name))
        for name in ("learned_threshold", "threshold"):
            if getattr(self, name) and self.activation in SHIFT_INVARIANT_ACTIVATIONS:
                raise ValueError(f"{owner}.{name} is {getattr(self, name)}, but θ cancels in {self.activation}")
        # Weights are divided by their sum only for some φ: a sum of weights of both signs may be 0, and rows of
        # distributions sum to 1 already.
        if self.normalizer == "sum":
            allowed = [name for name in ACTIVATIONS if name not in SIGNED_ACTIVATIONS | DISTRIBUTIONS]
            if self.activation not in allowed:
                raise ValueError(
                    f"{owner}.activation is {self.activation!r}, but with normalizer 'sum' must be in {allowed}"
                )
            if self.length_coefficient != 1 or self.length_exponent != 0 or self.learned_length_exponent:
                raise ValueError(f"{owner}.normalizer is 'sum', in which c and α cancel: leave them at 1 and 0")

    @classmethod
    def parse(
        cls, value: "str | dict[str, Any] | AttentionConfig", start: "str | AttentionConfig" = "softmax"
    ) -> "AttentionConfig":
        """Read a preset's name, a dict or another configuration.

        A dict has fields, `"preset"` to start from one and not from `start`, and `"gamma"`, ReLUFormer's γ, for
        c = γ/√2.
        """
        if isinstance(value, str):
            value = {"preset": value}
        elif hasattr(value, "to_dict"):  # The class may be the `AttentionConfig` of a saved folder's code.
            value = value.to_dict()
        elif not isinstance(value, dict):
            raise ValueError(f"attention is {value!r}, but must be a preset's name, a dict or an AttentionConfig")
        overrides, known = dict(value), {field.name for field in fields(cls)}
        start = overrides.pop("preset", start)
        if not isinstance(start, cls):
            check_choice("AttentionConfig", "preset", start, tuple(ATTENTION_PRESETS))
            start = cls(**ATTENTION_PRESETS[start])
        if "gamma" in overrides:
            if "length_coefficient" in overrides:
                raise ValueError("AttentionConfig has gamma and length_coefficient, but c = γ/√2: give one of them")
            gamma = overrides.pop("gamma")
            check_number("AttentionConfig", "gamma", gamma, "(0, inf)")
            overrides["length_coefficient"] = gamma * math.sqrt(0.5)
        for name in overrides:
            if name not in known:
                raise ValueError(f"AttentionConfig has no field {name!r}; its fields are {', '.join(sorted(known))}")
        # `setattr` would check each field alone; `replace` checks all of them together.
        return replace(start, **overrides)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, so that a saved configuration does not change when a default does."""
        return asdict(self)

    @property
    def preset_name(self) -> str | None:
        """The preset that this configuration equals but for `scale_length`, or None."""
        # The length L comes from the data, so another L is the same preset.
        length = {"scale_length": self.scale_length}
        return next((name for name in ATTENTION_PRESETS if self == self.parse({"preset": name, **length})), None)

    @property
    def has_late_statistics(self) -> bool:
        """Whether statistics are of divided weights; else a model divides those of all layers of a site at once."""
        return self.normalizer == "sum" or self.learned_length_exponent

    @property
    def spans_heads(self) -> bool:
        """Whether a parameter is as long as all heads together, so that a process with some heads cannot use it."""
        return self.output_norm != "none" or self.threshold_per_head

    def parts_for_each_head(self, module: str) -> list[str]:
        """Names of an attention module and its parts whose parameters serve every head alike."""
        return [module] + [f"{module}.{side}_norm" for side in ("query", "key") if self.query_key_norm != "none"]

    def initial_scale(self, head_dim: int) -> float:
        """a, or the value that a learned a starts from, for heads of width `head_dim`."""
        if self.scale is not None:
            return self.scale
        if self.score == "cosine":
            length = DEFAULT_SCALE_LENGTH if self.scale_length is None else self.scale_length
            # Cosines lie in [−1, 1], where softmax is nearly flat, so without a large a no key could stand out.
            return math.log2(length**2 - length)
        return head_dim**-0.5


# ---------------------------------------------------------------------------------------------------------------------
# configuration/configuration_base.py
# What the configurations of all models share: attention, feed-forward network, norms, regulariser and saving.


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


# ---------------------------------------------------------------------------------------------------------------------
# configuration/configuration_vision.py


_SIZES = (
    *("patch_size", "num_channels", "hidden_size", "num_attention_heads"),
    *("num_hidden_layers", "intermediate_size", "representation_size"),
)


@strict_fields
class VisionTransformerConfig(TransformerConfig):
    r"""Configuration of a vision Transformer; with its defaults the softmax baseline, ViT-B/16 as in big_vision.

    Names follow ViT in transformers. Beside its own it has the fields of `TransformerConfig`.

    Args:
        image_size: height and width in pixels, one number or [height, width]; for images of another size the model
            interpolates its positions.
        patch_size: side of a patch in pixels; it must divide the height and the width.
        num_channels: number of colours.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size: sizes, as in ViT.
        pooling: `"cls"`, the class token; `"mean"` of the patches; or `"attention"`, one learned query that attends to
            the patches, and a feed-forward network (Zhai et al. 2022, section 3), without dropout and after its norm.
        encoder_attention, pooling_attention: attention of one site; None means `attention`.
        position_embedding_type: `"learned"`, or `"sincos2d"`, fixed (Chen et al. 2021).
        prefix_positions: whether the class token and the registers have learned positions too, as in ViT.
        num_register_tokens: learned tokens between the class token and the patches, which no pooling reads, not even
            `"attention"`: registers (Darcet et al. 2023), or the distillation token of DeiT.
        norm_after_pooling: apply the last norm to the pooled vector, and not to the tokens (timm's `fc_norm`).
        representation_size: width of one more layer with tanh before the head; None means no such layer.
        hidden_act, hidden_dropout_prob, attention_probs_dropout_prob, qkv_bias, layer_norm_eps: ViT's names of
            `activation_function`, `dropout` (also after the positions), `attention_dropout`, `attention_bias` (of the
            output projection too) and `norm_eps`.
        drop_path_rate: share of images that skip a residual branch of the last layer in training, in [0, 1); it rises
            linearly from 0 at the first layer (stochastic depth, Huang et al. 2016); a single layer has 0.
        head_bias_init: first value of the bias of the head; big_vision takes −6.9 (ImageNet-1k) or −10 (21k) with
            the sigmoid loss.
        multi_label_reduction: `"sum"` (big_vision) or `"mean"` (transformers) of the sigmoid loss over labels.
        problem_type: `"multi_label_classification"` for the sigmoid loss, `"regression"` for the squared error; else
            softmax cross-entropy. None means regression if `num_labels` is 1, as in ViT.
        initialization: `"big_vision"`: Glorot-uniform maps, feed-forward biases N(0, 10⁻⁶), LeCun-normal patches,
            the head 0; or `"normal"`, these maps N(0, `initializer_range`). Learned positions N(0, 1/√d) in both.

    Raises:
        ValueError: a field has a value that is not allowed, alone or beside the others.
    """

    model_type = "vision_transformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["regularization_loss", "null_rate"]
    attribute_map: ClassVar[dict[str, str]] = {
        "activation_function": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "attention_bias": "qkv_bias",
        "norm_eps": "layer_norm_eps",
    }
    base_model_fsdp_plan: ClassVar[dict[str, str]] = dict.fromkeys(("embeddings", "layers.*"), "free_full_weight")

    image_size: int | list[int] | tuple[int, ...] = 224
    patch_size: int = 16
    num_channels: int = 3
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    pooling: Literal["cls", "mean", "attention"] = "mean"
    encoder_attention: Any = None
    pooling_attention: Any = None
    position_embedding_type: Literal["learned", "sincos2d"] = "learned"
    prefix_positions: bool = False
    num_register_tokens: int = 0
    norm_after_pooling: bool = False
    representation_size: int | None = None
    hidden_act: FeedForwardActivation = "gelu_pytorch_tanh"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    drop_path_rate: float | int = 0.0
    qkv_bias: bool = True
    layer_norm_eps: float | int = 1e-6
    head_bias_init: float | int = 0.0
    initialization: Literal["normal", "big_vision"] = "big_vision"
    multi_label_reduction: Literal["sum", "mean"] = "sum"
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        # `id2label` decides about the classes, and `label2id` follows from it.
        if name == "id2label" and value is not None:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            # JSON has strings for keys, so they become numbers again.
            value = {int(number): label for number, label in pairs}
            super().__setattr__("label2id", {label: number for number, label in value.items()})
        elif name == "label2id" and self.id2label is not None:
            return
        elif name == "label2id" and value is not None:
            self.id2label = {number: label for label, number in value.items()}
        super().__setattr__(name, value)

    @property
    def base_model_tp_plan(self) -> dict[str, str]:
        """Rules of tensor parallelism."""
        plan = self.parallel_plan({"encoder": "layers.*.self_attn"}, ("layers.*.mlp",))
        if self.pooling == "attention":
            plan |= self.parallel_plan({"pooling": "pooler.attention"}, ("pooler.mlp",))
        return plan

    @property
    def sites(self) -> tuple[str, ...]:
        """Where the model attends."""
        return ("encoder", "pooling") if self.pooling == "attention" else ("encoder",)

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of patches in an image of `image_size`."""
        height, width = self.image_sides
        return height // self.patch_size, width // self.patch_size

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: perhaps the class token, and registers."""
        return (self.pooling == "cls") + self.num_register_tokens

    @property
    def num_tokens(self) -> int:
        """Length of the sequence that an image of `image_size` becomes: prefix and patches."""
        rows, columns = self.grid_size
        return self.num_prefix_tokens + rows * columns

    @property
    def default_scale_length(self) -> int:
        """L of cosine attention: every image has the same length."""
        # The scale log2(L² − L) of cosine attention needs an L of at least 2.
        return max(2, self.num_tokens)

    def validate_fields(self) -> None:
        """Check ranges and combinations; the `ValueError` names the field, its value and what is allowed."""
        owner, names = type(self).__name__, self.id2label
        if not names or set(names) != set(range(len(names))) or len(set(names.values())) < len(names):
            raise ValueError(f"{owner}.id2label is {names!r:.80}, but must name each class from 0 on, by its own name")
        self._check_numbers({**dict.fromkeys(_SIZES, "[1, inf)"), "num_register_tokens": "[0, inf)"}, integer=True)
        self._check_numbers({"drop_path_rate": "[0, 1)", "head_bias_init": "(-inf, inf)"})
        for side in self.image_sides:
            check_number(owner, "image_size", side, "[1, inf)", integer=True)
            if side % self.patch_size:
                wanted = f"a multiple of patch_size ({self.patch_size})"
                raise ValueError(f"{owner}.image_size is {self.image_size}, but must be {wanted}")
        super().validate_fields()

    @property
    def image_sides(self) -> list[int]:
        """Height and width of images in pixels."""
        return list(self.image_size) if isinstance(self.image_size, (list, tuple)) else [self.image_size] * 2


@strict_fields
class ReLUViTConfig(VisionTransformerConfig):
    """ReLU in ViT (Wortsman et al. 2023): weights relu(q·k/√d)/L."""

    model_type = "relu_vit"

    attention: Any = "relu-vit"


@strict_fields
class ReLUFormerViTConfig(VisionTransformerConfig):
    """ReLUFormer (Shen et al. 2023) for images: relu weights over γ√(n/2) and the regulariser."""

    model_type = "reluformer_vit"

    attention: Any = "reluformer"
    normalization_loss_weight: float | int = 0.1
    entropy_loss_weight: float | int = 0.02


@strict_fields
class ReLAViTConfig(VisionTransformerConfig):
    """Rectified linear attention with gated RMSNorm (ReLA, Zhang et al. 2021) for images."""

    model_type = "rela_vit"

    attention: Any = "rela-g"


@strict_fields
class QKNormViTConfig(VisionTransformerConfig):
    """Cosine attention with a learned scale (QKNorm, Henry et al. 2020) for images."""

    model_type = "qknorm_vit"

    attention: Any = "qknorm"
