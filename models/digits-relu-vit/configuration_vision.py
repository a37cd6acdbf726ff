# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of the vision Transformers for image classification."""

import difflib
import math
import types
import typing
from dataclasses import asdict, dataclass, fields, replace
from functools import wraps
from pathlib import PurePath
from typing import Any, ClassVar, Literal, get_args

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers import PreTrainedConfig
from transformers.utils import logging

# ---------------------------------------------------------------------------------------------------------------------
# configuration/field_checks.py
# Checks of configuration fields, whose errors are one line with the field, its value and what is allowed.


_NOUNS = {int: "an integer", float: "a number", bool: "True or False", str: "a string", types.NoneType: "None"}


def strict_fields(cls: type) -> type:
    """`@strict` of huggingface_hub: fields have the type of their hint, and methods `validate_…` check the rest.

    Types are checked when a field is set, the rest when the object is made and by `validate`, which models and
    `save_pretrained` call. Errors are `ValueError`s of one line, and aliases of `attribute_map` are checked like the
    fields they stand for; `@strict` alone raises errors of two lines and another type, and knows no aliases.
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
            allowed = _describe(self.__dataclass_fields__[name].type)
            raise ValueError(f"{type(self).__name__}.{name} is {value!r}, but must be {allowed}") from error

    @wraps(run_validators)
    def validate(self: Any) -> None:
        try:
            run_validators(self)
        except StrictDataclassClassValidationError as error:
            raise ValueError(str(error.__cause__)) from error

    cls.validate = validate
    if not is_checked:
        cls.__setattr__, cls._is_checked = set_checked, True
    elif own_setattr is not None:  # a base checks by the types of the object's own class: once is enough
        cls.__setattr__ = own_setattr
    else:
        del cls.__setattr__
    return cls


def _describe(hint: Any) -> str:
    """A type in words: "one of 'a', 'b'", "a number or None"."""
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(hint)))}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = typing.get_args(hint)
        return " or ".join(_describe(part) for part in parts if part is not int or float not in parts)
    return _NOUNS.get(hint, str(hint))


def check_choice(owner: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise a `ValueError` that names the field, the value and what is allowed unless `value` is in `allowed`."""
    if value not in allowed:
        raise ValueError(f"{owner}.{name} is {value!r}, but must be one of {', '.join(map(repr, allowed))}")


def check_number(owner: str, name: str, value: Any, interval: str = "(-inf, inf)", *, integer: bool = False) -> None:
    """Raise a `ValueError` unless `value` is a finite number, or an integer, in an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))
    if isinstance(value, int if integer else (int, float)) and not isinstance(value, bool):  # a NaN is in none
        is_above = value > low or (interval[0] == "[" and value == low)
        if is_above and (value < high or (interval[-1] == "]" and value == high)):
            return
    noun = "an integer" if integer else "a number"
    raise ValueError(f"{owner}.{name} is {value!r}, but must be {noun} in {interval}")


# ---------------------------------------------------------------------------------------------------------------------
# configuration/configuration_attention.py
# One formula for every attention: its fields, their checks and the presets of the papers.


Activation = Literal[
    "softmax",
    "softmax1",
    "softpick",
    "sparsemax",
    "entmax15",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "gelu",
    "softplus",
    "sigmoid",
    "identity",
]
ACTIVATIONS = get_args(Activation)
# φ that can give a weight below zero: a distribution, and so an entropy, is not defined for them
SIGNED_ACTIVATIONS = frozenset({"leaky_relu", "gelu", "identity"})
# φ that divide by a sum over the row themselves
DISTRIBUTIONS = frozenset({"softmax", "softmax1", "softpick", "sparsemax", "entmax15"})
# φ that give the same weights whatever is subtracted from all scores of a row
SHIFT_INVARIANT_ACTIVATIONS = frozenset({"softmax", "sparsemax", "entmax15"})
DEFAULT_SCALE_LENGTH = 72  # L of the English-Vietnamese pair of QKNorm

# Only what differs from the defaults of `AttentionConfig` (softmax) is written down.
ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "softmax": {},
    # ReLUFormer, eq. 6: γ√(n/2) with γ = 1 is c·n^α with c = γ/√2, α = 1/2
    "reluformer": {"activation": "relu", "length_coefficient": math.sqrt(0.5), "length_exponent": 0.5},
    # the row that lags or diverges: ReLUFormer, table 2; ReLA, table 1, row 4
    "relu": {"activation": "relu"},
    # ReLA, table 1, rows 5 to 7
    "rela": {"activation": "relu", "output_norm": "rms_norm"},
    "rela-i": {"activation": "relu", "output_norm": "rms_norm", "output_norm_init": "uniform"},
    "rela-g": {"activation": "relu", "output_norm": "gated_rms_norm"},
    # QKNorm, eq. 2 to 5
    "qknorm": {"score": "cosine", "learned_scale": True},
    # Replacing softmax with ReLU in Vision Transformers, section 2: relu/L
    "relu-vit": {"activation": "relu", "length_exponent": 1.0},
    # positive weights that sum to 1 (arXiv 2501.13428: the sum is what matters of softmax)
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

    Args:
        score: `"dot"` or `"cosine"` (QKNorm, eq. 2).
        scale: a; None stands for 1/√d_h with `"dot"` and log2(L² − L) with `"cosine"` (QKNorm, eq. 3).
        learned_scale: train a, one scalar per attention module, from that value.
        scale_form: `"constant"`, a_i = a, or `"log_length"`, a_i = a · log n_i (Nakanishi 2025, scalable softmax).
        scale_length: L of `scale`, in tokens: the 97.5th percentile of the training lengths on both sides (QKNorm,
            section 3.1); None for the number of tokens of an image model, and 72 (English–Vietnamese) elsewhere.
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
        output_norm: `"rms_norm"` or `"gated_rms_norm"`, σ(w⊙o)⊙g⊙o/RMS(o) (ReLA, section 3.2); `"layer_norm"`
            (ReLUFormer, section 4.1) or `"gated_layer_norm"`, σ(w⊙o)⊙LayerNorm(o) (ReLA, table 1, row 8).
        output_norm_init: how the gain g starts: `"ones"`, or `"uniform"` in ±√(3/d) (ReLA-i).
        output_norm_eps: ε inside the root of RMS.
        output_gate: ψ of a gate that a further projection of the input gives: `"silu"`, as in the gated attention unit
            (Hua et al. 2022, eq. 3), `"linear"` (ReLU in ViT, figure 4 studies such a gate), or `"sigmoid"` (gated
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
    output_norm: Literal["none", "rms_norm", "gated_rms_norm", "layer_norm", "gated_layer_norm"] = "none"
    output_norm_init: Literal["ones", "uniform"] = "ones"
    output_norm_eps: float | int = 1e-8
    output_gate: Literal["none", "linear", "silu", "sigmoid"] = "none"

    def validate_ranges(self) -> None:
        """Check what a type does not say; the `ValueError` names the field, its value and what is allowed."""
        owner = "AttentionConfig"
        if self.scale is not None:
            check_number(owner, "scale", self.scale, "(0, inf)")
        if self.scale_length is not None:
            check_number(owner, "scale_length", self.scale_length, "[2, inf)", integer=True)
        for name in ("length_coefficient", "output_norm_eps"):
            check_number(owner, name, getattr(self, name), "(0, inf)")
        for name in ("length_exponent", "threshold"):
            check_number(owner, name, getattr(self, name))
        if self.learned_threshold and self.activation in SHIFT_INVARIANT_ACTIVATIONS:
            raise ValueError(
                f"{owner}.learned_threshold is True, but θ cancels in {self.activation}, so there is nothing to learn"
            )

        if self.threshold_per_head and not self.learned_threshold:
            raise ValueError(
                f"{owner}.threshold_per_head is True, but learned_threshold is False, so that all are alike"
            )
        if self.normalizer == "sum":
            if self.activation in SIGNED_ACTIVATIONS | DISTRIBUTIONS:
                allowed = sorted(set(ACTIVATIONS) - SIGNED_ACTIVATIONS - DISTRIBUTIONS)
                raise ValueError(
                    f"{owner}.normalizer is 'sum' with activation {self.activation!r}, but the weights of φ must be "
                    f"positive and not be summed yet: {', '.join(allowed)}"
                )
            if self.length_coefficient != 1 or self.length_exponent != 0 or self.learned_length_exponent:
                raise ValueError(f"{owner}.normalizer is 'sum', in which c and α cancel: leave them at 1 and 0")

    @classmethod
    def parse(cls, value: "str | dict[str, Any] | AttentionConfig") -> "AttentionConfig":
        """Read a preset's name, a dict or another configuration.

        A dict has fields, `"preset"` to start from one, and `"gamma"`, ReLUFormer's γ, for c = γ/√2.

        Raises:
            ValueError: the preset or a field is not known, or a value is not allowed.
        """
        if isinstance(value, str):
            value = {"preset": value}
        elif hasattr(value, "to_dict"):  # a class of the same name from another checkpoint's code is welcome too
            value = value.to_dict()
        elif not isinstance(value, dict):
            raise ValueError(f"attention is {value!r}, but must be a preset's name, a dict or an AttentionConfig")
        overrides = dict(value)
        preset = overrides.pop("preset", "softmax")
        check_choice("AttentionConfig", "preset", preset, tuple(ATTENTION_PRESETS))
        if "gamma" in overrides:
            if "length_coefficient" in overrides:
                raise ValueError("AttentionConfig has gamma and length_coefficient, but c = γ/√2: give one of them")
            gamma = overrides.pop("gamma")
            check_number("AttentionConfig", "gamma", gamma, "(0, inf)")
            overrides["length_coefficient"] = gamma * math.sqrt(0.5)
        known = {field.name for field in fields(cls)}
        for name in overrides:
            if name not in known:
                raise ValueError(f"AttentionConfig has no field {name!r}; its fields are {', '.join(sorted(known))}")
        return cls(**{**ATTENTION_PRESETS[preset], **overrides})

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, so that a saved configuration does not change when a default does."""
        return asdict(self)

    @property
    def preset_name(self) -> str | None:
        """The preset that this configuration equals but for `scale_length`, or None."""
        for name in ATTENTION_PRESETS:
            if self == AttentionConfig.parse({"preset": name, "scale_length": self.scale_length}):
                return name
        return None

    def initial_scale(self, head_dim: int) -> float:
        """a, or the value that a learned a starts from, for heads of width `head_dim`."""
        if self.scale is not None:
            return self.scale
        if self.score == "cosine":
            length = DEFAULT_SCALE_LENGTH if self.scale_length is None else self.scale_length
            return math.log2(length**2 - length)
        return head_dim**-0.5


# ---------------------------------------------------------------------------------------------------------------------
# configuration/configuration_base.py
# What the configurations of all models share: attention, feed-forward network, norms, regulariser and saving.


FORMAT_VERSION = 1

# Far above what anybody has built, so that a broken or hostile config.json is refused before a model is begun: depths
# reach 1,000 layers (DeepNet), widths 18,432 (PaLM), inner widths 73,728, vocabularies 10⁶ tokens (XLM-V), and classes
# 10⁷ (faces). A table of positions, which is computed when a model is built, may have 2¹⁷ of width 4,096.
MOST_LAYERS = 10_000
MOST_CHANNELS = 2**16
MOST_INNER_CHANNELS = 2**20
MOST_TOKENS = 2**24
MOST_LABELS = 2**24
MOST_POSITIONS = 2**20
MOST_POSITION_VALUES = 2**29

FeedForwardActivation = Literal[
    "relu",
    "gelu",
    "gelu_pytorch_tanh",
    "silu",
    "swish",
    "softmax",
    "glu",
    "bilinear",
    "reglu",
    "drelu",
    "geglu",
    "swiglu",
]
FEED_FORWARD_ACTIVATIONS = get_args(FeedForwardActivation)
NormType = Literal["layer_norm", "rms_norm", "scale_norm", "none"]

_PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
_WEIGHTS = ("normalization_loss_weight", "entropy_loss_weight", "entropy_bound")


@strict_fields
class TransformerConfig(PreTrainedConfig):
    r"""Fields that mean the same in every model; not used by itself.

    A model names its sizes, dropouts and activation as its kind does in transformers (`d_model` or `hidden_size`) and
    maps them in `attribute_map`, so that shared code reads `hidden_size`, `num_attention_heads`, `intermediate_size`,
    `activation_function`, `dropout`, `attention_dropout`, `attention_bias` and `norm_eps` everywhere.

    Args:
        attention: a preset's name, a dict or an `AttentionConfig`, for every site that has none of its own.
        activation_function: of the feed-forward network: φ (`"softmax"` makes it a key–value memory, ReLUFormer
            eq. 2) or a gated form, whose inner width is 2/3 of the given one so that parameters stay equal.
        feed_forward_norm: `"layer_norm"` on its output (ReLUFormer, section 3.2: "Softmax with LN").
        feed_forward_temperature: τ > 0 of φ = softmax(x / τ) (ReLUFormer, section 3.4).
        ffn_bias: whether its linear maps add a bias.
        attention_output_bias: whether the output projections of attention do; None for `attention_bias`.
        swish_beta, learned_swish_beta: β of swish(x) = x·σ(βx), fixed or trained.
        norm_type, norm_position, norm_eps: of the residual blocks; `"pre"` adds one norm after the last layer, and the
            type `"none"` leaves all of them out (QKNorm, table 6: "Without LayerNorm").
        scale_norm_init: what g of `"scale_norm"` starts from: `"sqrt_dim"` √d, as released, or `"inverse_sqrt_dim"`
            1/√d, as printed (QKNorm, section 2).
        dropout: on the output of each residual branch, in [0, 1); `attention_dropout` on weights,
            `activation_dropout` inside the feed-forward network.
        label_smoothing: ε, spread over all labels, in training only, in [0, 1).
        normalization_loss_weight, entropy_loss_weight: weights of the two terms of ReLUFormer eq. 7, in training only.
        entropy_bound: C_i = entropy_bound · log n_i (ReLUFormer, App. A.2).
        format_version: of config.json; files of a newer version are refused.

    Raises:
        ValueError: a field has a value that is not allowed, alone or beside the others.
    """

    # set by the installed library, so that every way of saving writes the code beside config.json
    payload_writer: ClassVar[Any] = None
    # where the model attends; `<site>_attention`, if there is such a field, goes before `attention`
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
        # here, as `from_pretrained(…, attention="rela")` and `update` set fields one by one; the copy that
        # transformers makes of a configuration for its decoder has `decoder_attention` for `attention`, maybe None
        if value is not None and name in ("attention", *(f"{site}_attention" for site in self.sites)):
            if isinstance(value, dict):
                value = self._with_preset(value)
            try:
                value = AttentionConfig.parse(value)
            except ValueError as error:
                raise ValueError(f"{type(self).__name__}.{name}: {error}") from error
        if name == "num_labels":
            check_number(type(self).__name__, name, value, f"[1, {MOST_LABELS}]", integer=True)
        super().__setattr__(name, value)

    def __post_init__(self, **kwargs):
        # transformers keeps names that it does not know as attributes, which nothing would read
        fields = [*self.__dataclass_fields__, *self.attribute_map]
        for name in kwargs:
            near = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
            if near and name not in self.attribute_map and not hasattr(type(self), name):
                raise ValueError(f"{type(self).__name__} has no field {name!r}; did you mean {near[0]!r}?")
        super().__post_init__(**kwargs)

    def _with_preset(self, attention: dict[str, Any]) -> dict[str, Any]:
        """A dict with some fields changes those of the family's own attention; a complete one replaces it."""
        default = type(self).attention
        return {"preset": default, **attention} if isinstance(default, str) else attention

    def attention_for(self, site: str) -> AttentionConfig:
        """The attention of one of `sites`, with its L filled in.

        Raises:
            ValueError: the model has no such site.
        """
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

    def _complete(self, attention: AttentionConfig) -> AttentionConfig:
        if attention.scale_length is not None:
            return attention
        return replace(attention, scale_length=self.default_scale_length)

    def validate_fields(self) -> None:
        """Check ranges and combinations; the `ValueError` names the field, its value and what is allowed."""
        owner = type(self).__name__
        check_number(owner, "format_version", self.format_version, f"[1, {FORMAT_VERSION}]", integer=True)
        if self.attention is None:
            raise ValueError(f"{owner}.attention is None, but must be a preset's name, a dict or an AttentionConfig")
        for name in _PROBABILITIES:
            check_number(owner, self._own_name(name), getattr(self, name), "[0, 1)")
        for name in _WEIGHTS:
            check_number(owner, name, getattr(self, name), "[0, inf)")
        for name in ("feed_forward_temperature", "swish_beta", "norm_eps", "initializer_range"):
            check_number(owner, self._own_name(name), getattr(self, name), "(0, inf)")
        if self.learned_swish_beta and self.activation_function not in ("swish", "swiglu"):
            raise ValueError(
                f"{owner}.learned_swish_beta is True, but {self._own_name('activation_function')} is "
                f"{self.activation_function!r}: only 'swish' and 'swiglu' have a β"
            )
        activations = [self.attention_for(site).activation for site in self.sites]
        if self.has_regularizer and not SIGNED_ACTIVATIONS.isdisjoint(activations):
            raise ValueError(
                f"{owner}.normalization_loss_weight and entropy_loss_weight must be 0 with attention that can give "
                f"negative weights; the activations are {activations}"
            )

    def _check_sizes_of_tables(self, positions: int, name: str) -> None:
        """Refuse more positions, of the size or sizes that `name` says, than a table may have."""
        values = positions * self.hidden_size
        if positions > MOST_POSITIONS or values > MOST_POSITION_VALUES:
            raise ValueError(
                f"{type(self).__name__}.{name} is {getattr(self, name)}, which makes {positions} positions of width "
                f"{self.hidden_size}, but there must be at most {MOST_POSITIONS}, of {MOST_POSITION_VALUES} numbers"
            )

    def _own_name(self, name: str) -> str:
        """The name that this model has for a shared field."""
        return self.attribute_map.get(name, name)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Build as transformers does; a file of a newer format is refused before its fields are read."""
        version = config_dict.get("format_version", FORMAT_VERSION)
        check_number(cls.__name__, "format_version", version, "[1, inf)", integer=True)
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{cls.__name__}.format_version is {version}, but this code reads up to {FORMAT_VERSION}: "
                "install a newer reluformers"
            )
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, nested ones as dicts and complete, so that the file says all."""
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
        if push_to_hub and writes_code:  # transformers would leave the code behind, which was there before config.json
            self.push_to_hub(**{"repo_id": PurePath(save_directory).name, **kwargs})


# ---------------------------------------------------------------------------------------------------------------------
# configuration/configuration_vision.py


logger = logging.get_logger(__name__)

# widths and depths as big_vision names them; behind the slash the patch size in pixels
_WIDTHS = {
    "Ti": {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768},
    "S": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536},
    "B": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "L": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
VISION_SIZES: dict[str, dict[str, int]] = {
    **{f"{width}/4": {**_WIDTHS[width], "image_size": 32, "patch_size": 4} for width in ("Ti", "S")},
    **{
        f"{width}/{patch}": {**_WIDTHS[width], "image_size": 224, "patch_size": patch}
        for width, patch in (("Ti", 16), ("S", 32), ("S", 16), ("B", 32), ("B", 16), ("L", 16))
    },
}

_MOST_PIXELS = 2**16  # of a side
_LARGEST = {
    "patch_size": _MOST_PIXELS,
    "num_channels": MOST_CHANNELS,
    "hidden_size": MOST_CHANNELS,
    "num_hidden_layers": MOST_LAYERS,
    "num_attention_heads": MOST_CHANNELS,
    "intermediate_size": MOST_INNER_CHANNELS,
}
_LABELS = ("id2label", "label2id")


def _number(value: Any) -> Any:
    """An integer for the digits that JSON has in its place."""
    return int(value) if isinstance(value, str) and value.removeprefix("-").isdecimal() else value


def _inverse(names: dict | None) -> dict | None:
    return None if names is None else {name: number for number, name in names.items()}


def distinct_names(names: dict[int, str]) -> dict[int, str]:
    """Names of classes by number; of equal ones those after the first get their number: ImageNet has two cranes."""
    first = {name: number for number, name in reversed(names.items())}
    return {number: name if first[name] == number else f"{name} ({number})" for number, name in names.items()}


@strict_fields
class VisionTransformerConfig(TransformerConfig):
    r"""Configuration of a vision Transformer; with its defaults the softmax baseline, ViT-B/16 as in big_vision.

    Names follow ViT in transformers. Beside its own it has the fields of `TransformerConfig`.

    Args:
        image_size: height and width in pixels that positions are made for, one number or [height, width]; images of
            another size get interpolated positions.
        patch_size: side of a patch in pixels; divides the height and the width.
        num_channels: colours.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size: sizes, as in ViT.
        pooling: `"cls"`, the class token; `"mean"` of the patches; or `"attention"`, one learned query that attends to
            the patches, and a feed-forward network (Zhai et al. 2022, section 3).
        encoder_attention, pooling_attention: as `attention`, for the layers and for that query; None for `attention`.
        position_embedding_type: `"learned"`, or `"sincos2d"`, fixed (Chen et al. 2021).
        prefix_positions: whether the class token and the registers have learned positions too, as in ViT.
        num_register_tokens: learned tokens between the class token and the patches, which no pooling reads, not even
            `"attention"`: registers (Darcet et al. 2023), or the distillation token of DeiT.
        norm_after_pooling: whether the last norm is of the pooled vector, and not of the tokens (timm's `fc_norm`).
        representation_size: width of a further layer with tanh before the head, or None.
        hidden_act, hidden_dropout_prob, attention_probs_dropout_prob, qkv_bias, layer_norm_eps: ViT's names of
            `activation_function`, `dropout` (also after the positions), `attention_dropout`, `attention_bias` (of the
            output projection too) and `norm_eps`.
        drop_path_rate: share of images that skip a residual branch of the last layer in training, in [0, 1); it rises
            linearly from 0 at the first layer (stochastic depth, Huang et al. 2016); a single layer has 0.
        head_bias_init: what the bias of the head starts from; big_vision takes −6.9 (ImageNet-1k) or −10 (21k) with
            the sigmoid loss.
        multi_label_reduction: of the sigmoid loss, over labels: `"sum"` (big_vision) or `"mean"` (transformers).
        problem_type: `"multi_label_classification"` for the sigmoid loss, `"regression"` for the squared error; else
            softmax cross-entropy. None stands for regression with `num_labels` 1, as in ViT.
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
    # layer by layer
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {
        "embeddings": "free_full_weight",
        "layers.*": "free_full_weight",
    }
    sites: ClassVar[tuple[str, ...]] = ("encoder", "pooling")

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
        # one of the two follows from the other
        if name == "id2label" and isinstance(value, dict):
            value = {_number(key): label for key, label in value.items()}
            if self.label2id == _inverse(self.id2label):  # else it was set before, and the two are checked together
                super().__setattr__("label2id", _inverse(value))
        elif name == "label2id":
            is_given = isinstance(value, dict)
            value = {key: _number(number) for key, number in value.items()} if is_given else _inverse(self.id2label)
        super().__setattr__(name, value)

    def __post_init__(self, **kwargs):
        if self.id2label is None:
            self.id2label = _inverse(self.label2id)
        if "num_labels" in kwargs:
            count, owner = kwargs["num_labels"], type(self).__name__
            check_number(owner, "num_labels", count, f"[1, {MOST_LABELS}]", integer=True)
            if self.id2label is not None and count != len(self.id2label):
                raise ValueError(f"{owner}.num_labels is {count}, but id2label has {len(self.id2label)} names")
        self._check_labels()
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Build as transformers does; of labels those that are given, else those of the file, made distinct."""
        labels, names = {name: kwargs.pop(name, None) for name in _LABELS}, config_dict.get("id2label")
        has_other_number = names and kwargs.get("num_labels", len(names)) != len(names)
        if names and labels == dict.fromkeys(_LABELS) and not has_other_number:
            labels["id2label"] = distinct_names({_number(number): name for number, name in names.items()})
            if config_dict.get("label2id") not in (None, _inverse(labels["id2label"])):
                logger.warning("label2id of %s does not fit its id2label, which decides", cls.__name__)
        elif not names and labels == dict.fromkeys(_LABELS):
            labels = {}
        return super().from_dict({**config_dict, **labels}, **kwargs)

    def _check_labels(self) -> None:
        """Refuse names that do not number classes from 0 on, each by one name."""
        owner, names = type(self).__name__, self.id2label
        if names is None:
            return
        if not names:
            raise ValueError(f"{owner}.id2label is {names}, but must name one class or more")
        inverse, count = _inverse(names), len(names)
        for number, name in names.items():
            if number not in range(count):
                raise ValueError(
                    f"{owner}.id2label has the number {number!r}, but must have those from 0 to {count - 1}"
                )
            if inverse[name] != number:
                raise ValueError(
                    f"{owner}.id2label has {name!r} for {number} and {inverse[name]}: name each class once"
                )
        for name in {**inverse, **self.label2id}:
            first, second = self.label2id.get(name), inverse.get(name)
            if first != second:
                raise ValueError(
                    f"{owner}.label2id has {first} for {name!r}, but id2label has {second}: give id2label alone"
                )

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of patches in an image of `image_size`."""
        height, width = self._sides()
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
        return max(2, self.num_tokens)

    def validate_fields(self) -> None:
        """Check ranges and combinations; the `ValueError` names the field, its value and what is allowed."""
        owner = type(self).__name__
        self._check_labels()
        if self.pooling_attention is not None and self.pooling != "attention":
            raise ValueError(f"{owner}.pooling_attention is given, but pooling is {self.pooling!r}: nothing attends")
        for name, largest in _LARGEST.items():
            check_number(owner, name, getattr(self, name), f"[1, {largest}]", integer=True)
        if (size := self.representation_size) is not None:
            check_number(owner, "representation_size", size, f"[1, {MOST_CHANNELS}]", integer=True)
        tokens = self.num_register_tokens
        check_number(owner, "num_register_tokens", tokens, f"[0, {MOST_CHANNELS}]", integer=True)
        check_number(owner, "drop_path_rate", self.drop_path_rate, "[0, 1)")
        check_number(owner, "head_bias_init", self.head_bias_init)
        if self.norm_after_pooling and self.norm_position == "post":
            raise ValueError(f"{owner}.norm_after_pooling is True, but norm_position is 'post': there is no last norm")
        if self.prefix_positions and self.position_embedding_type == "sincos2d":
            raise ValueError(f"{owner}.prefix_positions is True, but sincos2d has positions of patches alone")
        self._check_sizes(owner)
        super().validate_fields()

    def _sides(self) -> list[int]:
        """Height and width."""
        return list(self.image_size) if isinstance(self.image_size, (list, tuple)) else [self.image_size] * 2

    def _check_sizes(self, owner: str) -> None:
        sides = self._sides()
        if len(sides) != 2:
            raise ValueError(f"{owner}.image_size is {self.image_size!r}, but must be one number or [height, width]")
        for side in sides:
            check_number(owner, "image_size", side, f"[1, {_MOST_PIXELS}]", integer=True)
            if side % self.patch_size:
                raise ValueError(
                    f"{owner}.image_size is {self.image_size}, but must be a multiple of patch_size "
                    f"({self.patch_size})"
                )
        self._check_sizes_of_tables(self.num_tokens, "image_size")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"{owner}.num_attention_heads is {self.num_attention_heads}, but must divide hidden_size "
                f"({self.hidden_size})"
            )
        if self.hidden_size % 4 and self.position_embedding_type == "sincos2d":
            raise ValueError(f"{owner}.hidden_size is {self.hidden_size}, but must be a multiple of 4 with sincos2d")


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


def vision_config_class(preset: str) -> type[VisionTransformerConfig]:
    """The configuration class that a preset belongs to; the baseline class for those without a family of their own.

    Raises:
        ValueError: the preset is not one of `ATTENTION_PRESETS`.
    """
    check_choice("vision_config_class", "preset", preset, tuple(ATTENTION_PRESETS))
    families = {
        "relu-vit": ReLUViTConfig,
        "reluformer": ReLUFormerViTConfig,
        "rela": ReLAViTConfig,
        "rela-i": ReLAViTConfig,
        "rela-g": ReLAViTConfig,
        "qknorm": QKNormViTConfig,
    }
    return families.get(preset, VisionTransformerConfig)


def vision_config(preset: str, size: str | None = None, **overrides) -> VisionTransformerConfig:
    """A configuration with the attention of `preset`, in its family, the fields of a size, and any field overridden.

    Args:
        preset: a name of `ATTENTION_PRESETS`.
        size: a name of `VISION_SIZES`, such as "S/16"; None for the defaults.
        overrides: fields.

    Raises:
        ValueError: there is no such preset or size, or a field has a value that is not allowed.
    """
    if size is not None:
        check_choice("vision_config", "size", size, tuple(VISION_SIZES))
        overrides = {**VISION_SIZES[size], **overrides}
    return vision_config_class(preset)(**{"attention": preset, **overrides})
