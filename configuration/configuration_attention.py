# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""One formula for every attention: its fields, their checks and the presets of the papers."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from .field_checks import check_choice, check_number, strict_fields

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
