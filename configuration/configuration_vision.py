# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of the vision Transformers for image classification."""

from typing import Any, ClassVar, Literal

from .configuration_base import FeedForwardActivation, TransformerConfig
from .field_checks import check_number, strict_fields

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
