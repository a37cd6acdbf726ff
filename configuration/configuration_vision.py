# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of the vision Transformers for image classification."""

from typing import Any, ClassVar, Literal

from transformers.utils import logging

from .configuration_base import (
    MOST_CHANNELS,
    MOST_INNER_CHANNELS,
    MOST_LAYERS,
    FeedForwardActivation,
    TransformerConfig,
)
from .field_checks import check_number, strict_fields

logger = logging.get_logger(__name__)

_MOST_PIXELS = 2**16  # of a side
_INTEGERS = {
    "patch_size": f"[1, {_MOST_PIXELS}]",
    **dict.fromkeys(("num_channels", "hidden_size", "num_attention_heads"), f"[1, {MOST_CHANNELS}]"),
    "num_hidden_layers": f"[1, {MOST_LAYERS}]",
    "intermediate_size": f"[1, {MOST_INNER_CHANNELS}]",
    "representation_size": f"[1, {MOST_CHANNELS}]",
    "num_register_tokens": f"[0, {MOST_CHANNELS}]",
}


def _number(value: Any) -> Any:
    """The integer of the digits that JSON has in its place."""
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
        if name == "id2label" and isinstance(value, list | tuple):
            value = dict(enumerate(value))
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
        count = kwargs.get("num_labels")
        if None not in (count, self.id2label) and count != len(self.id2label):
            names = len(self.id2label)
            raise ValueError(f"{type(self).__name__}.num_labels is {count}, but id2label has {names} names")
        self._check_labels()
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Build as transformers does; of labels those that are given, else those of the file, made distinct."""
        given, names = {name: kwargs.pop(name, None) for name in ("id2label", "label2id")}, config_dict.get("id2label")
        if given != dict.fromkeys(given) or (names and kwargs.get("num_labels", len(names)) != len(names)):
            config_dict = {**config_dict, **given}
        elif names:
            pairs = enumerate(names) if isinstance(names, list) else names.items()
            names = distinct_names({_number(number): name for number, name in pairs})
            if config_dict.get("label2id") not in (None, _inverse(names)):
                logger.warning("label2id of %s does not fit its id2label, which decides", cls.__name__)
            config_dict = {**config_dict, "id2label": names, "label2id": None}
        return super().from_dict(config_dict, **kwargs)

    def _check_labels(self) -> None:
        """Refuse names that do not number classes from 0 on, each by one name."""
        owner, names = type(self).__name__, self.id2label
        if names is None:
            return
        if not names or set(names) != set(range(len(names))):
            raise ValueError(f"{owner}.id2label has the numbers {[*names]!r:.80}, but must have all from 0 on")
        inverse = _inverse(names)
        if repeated := [name for number, name in names.items() if inverse[name] != number]:
            raise ValueError(f"{owner}.id2label has {repeated[0]!r} more than once: name each class once")
        if wrong := self.label2id.items() ^ inverse.items():
            raise ValueError(f"{owner}.label2id and id2label differ in {min(wrong, key=str)}: give id2label alone")

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
        # log2(L² − L) needs an L of 2 at least
        return max(2, self.num_tokens)

    def validate_fields(self) -> None:
        """Check ranges and combinations; the `ValueError` names the field, its value and what is allowed."""
        owner = type(self).__name__
        self._check_labels()
        if self.pooling_attention is not None and self.pooling != "attention":
            raise ValueError(f"{owner}.pooling_attention is given, but pooling is {self.pooling!r}: nothing attends")
        self._check_numbers(_INTEGERS, integer=True)
        self._check_numbers({"drop_path_rate": "[0, 1)", "head_bias_init": "(-inf, inf)"})
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
                wanted = f"a multiple of patch_size ({self.patch_size})"
                raise ValueError(f"{owner}.image_size is {self.image_size}, but must be {wanted}")
        self._check_sizes_of_tables(self.num_tokens, "image_size")
        heads, width = self.num_attention_heads, self.hidden_size
        if width % heads:
            raise ValueError(f"{owner}.num_attention_heads is {heads}, but must divide hidden_size ({width})")
        # sines and cosines, of rows and of columns
        if width % 4 and self.position_embedding_type == "sincos2d":
            raise ValueError(f"{owner}.hidden_size is {width}, but must be a multiple of 4 with sincos2d")


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
