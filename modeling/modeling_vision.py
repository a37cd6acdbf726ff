# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers for image classification whose families differ by their configuration alone."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..configuration.configuration_vision import (
    QKNormViTConfig,
    ReLAViTConfig,
    ReLUFormerViTConfig,
    ReLUViTConfig,
    VisionTransformerConfig,
)
from .attention import MultiHeadAttention
from .feed_forward import FeedForward
from .layers import EncoderLayer
from .masks import AttentionMask
from .modeling_base import TransformerPreTrainedModel
from .normalization import at_least_float32, build_norm
from .patch_embeddings import PatchEmbeddings
from .regularization import RowStatistics, SiteRows


@dataclass
class VisionTransformerOutput(BaseModelOutputWithPooling):
    """Output of the model without head; `site_rows` are statistics of its rows where these are needed."""

    site_rows: list[SiteRows] | None = None


@dataclass
class VisionTransformerClassifierOutput(ImageClassifierOutput):
    """Output of the classifier; the last two may be missing.

    `regularization_loss`: ReLUFormer eq. 7 with its weights, a part of `loss`, in training. `null_rate`: share of the
    query rows, over heads and layers, that attend to nothing (ReLA, section 5.2), with `output_null_rate` and beside
    the regulariser.
    """

    regularization_loss: Tensor | None = None
    null_rate: Tensor | None = None


# The name of this pooling lacks "Attention", because transformers expects classes with that word to ask its registry.
class ProbePooling(nn.Module):
    """One learned query that attends to the tokens, and a feed-forward branch (Zhai et al. 2022, section 3)."""

    def __init__(self, config: VisionTransformerConfig):
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.attention = MultiHeadAttention.from_config(config, "pooling", config.num_attention_heads)
        self.norm = build_norm(config)
        self.mlp = FeedForward(config, config.intermediate_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the query Glorot-uniform; the model initialises the maps."""
        bound = math.sqrt(6 / (1 + self.probe.shape[-1]))
        init.uniform_(self.probe, -bound, bound)

    def forward(self, hidden_states: Tensor, attention_options: dict) -> tuple[Tensor, ...]:
        """Pooled states [batch, hidden_size] of [batch, length, hidden_size], and the tensors of `RowStatistics`."""
        query = self.probe.to(hidden_states.dtype).expand(hidden_states.shape[0], -1, -1)
        pooled, _, rows = self.attention(query, hidden_states, **attention_options)
        pooled = pooled + self.mlp(self.norm(pooled))
        return pooled[:, 0], *rows


def lecun_normal_(weight: Tensor) -> None:
    """LeCun-normal as flax draws it: N(0, 1/√fan-in) cut at two standard deviations, of the full spread again."""
    std = 1 / math.sqrt(weight[0].numel()) / 0.87962566103423978
    init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


class VisionTransformerPreTrainedModel(TransformerPreTrainedModel):
    """Abilities, and the initialisation of what only image models have, of all vision families."""

    config: VisionTransformerConfig
    base_model_prefix = "vit"
    _input_embed_layer = "projection"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    # The loss of images is a mean over them, so the Trainer has to divide it by the accumulation steps.
    accepts_loss_kwargs = False
    _no_split_modules = ["PatchEmbeddings", "EncoderLayer", "ProbePooling"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        linear = module if isinstance(module, nn.Conv2d) else getattr(module, "representation", None)
        if self.config.initialization == "big_vision" and linear is not None:
            lecun_normal_(linear.weight)
        if isinstance(module, (PatchEmbeddings, ProbePooling)):
            module.reset_parameters()
        elif module is getattr(self, "classifier", None):
            init.constant_(module.bias, self.config.head_bias_init)
            if self.config.initialization == "big_vision":
                # As in big_vision, all classes are equally likely before the first update.
                init.zeros_(module.weight)


class VisionTransformerModel(VisionTransformerPreTrainedModel):
    """Patches, layers, norm and pooling, without a head; the softmax baseline and the code of every family."""

    _can_record_outputs = {
        "hidden_states": EncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
    }

    def __init__(self, config: VisionTransformerConfig):
        super().__init__(config)
        self.embeddings = PatchEmbeddings(config)
        # In stochastic depth, a later layer is left out more often.
        last = max(config.num_hidden_layers - 1, 1)
        self.layers = nn.ModuleList(
            EncoderLayer(config, layer_idx, drop_path_rate=config.drop_path_rate * layer_idx / last)
            for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = build_norm(config) if config.norm_position == "pre" else None
        self.pooler = ProbePooling(config) if config.pooling == "attention" else None
        self.representation = None
        if config.representation_size is not None:
            self.representation = nn.Linear(config.hidden_size, config.representation_size)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    # As in ViT, the last of the hidden states is that before the last norm.
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor,
        interpolate_pos_encoding: bool = True,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_null_rate: bool | None = None,
    ) -> VisionTransformerOutput:
        """Encode images [batch, num_channels, height, width].

        With `interpolate_pos_encoding` they may have another size than `config.image_size`; n_i, and with it the
        divisor of the weights, follows the number of their patches. `use_cache` is what a Trainer tells every model.
        """
        hidden_states = self.embeddings(pixel_values, interpolate_pos_encoding)
        length, device, prefix = hidden_states.shape[1], hidden_states.device, self.config.num_prefix_tokens
        outputs = {"output_attentions": output_attentions, "output_null_rate": output_null_rate}
        # The images of a batch have one size, so nothing is padding.
        mask, pooling_mask = AttentionMask(length, length, device), AttentionMask(1, length - prefix, device)
        options = self.attention_options(mask, **outputs)
        rows = []
        for layer in self.layers:
            hidden_states, *layer_rows = layer(hidden_states, options)
            rows.append(tuple(layer_rows))
        if self.norm is not None and not self.config.norm_after_pooling:
            hidden_states = self.norm(hidden_states)
        pooled, *pooling_rows = self.pool(hidden_states, self.attention_options(pooling_mask, **outputs))
        site_rows = self.site_rows(rows, mask, "encoder")
        site_rows += self.site_rows([tuple(pooling_rows)], pooling_mask, "pooling")
        return VisionTransformerOutput(
            last_hidden_state=hidden_states,
            pooler_output=pooled,
            site_rows=site_rows or None,
        )

    def pool(self, hidden_states: Tensor, attention_options: dict) -> tuple[Tensor, ...]:
        """One vector for each image [batch, hidden_size or representation_size], and `RowStatistics` of its site."""
        rows = RowStatistics()
        patches = hidden_states[:, self.config.num_prefix_tokens :]
        if self.pooler is not None:
            pooled, *rows = self.pooler(patches, attention_options)
        else:
            pooled = hidden_states[:, 0] if self.config.pooling == "cls" else patches.mean(1)
        if self.norm is not None and self.config.norm_after_pooling:
            pooled = self.norm(pooled)
        if self.representation is not None:
            pooled = torch.tanh(self.representation(pooled))
        return pooled, *rows


class VisionTransformerForImageClassification(VisionTransformerPreTrainedModel):
    """Image classifier: the model and a linear head."""

    def __init__(self, config: VisionTransformerConfig):
        super().__init__(config)
        self.vit = VisionTransformerModel(config)
        self.classifier = nn.Linear(config.representation_size or config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool = True,
        **kwargs,
    ) -> VisionTransformerClassifierOutput:
        r"""Compute class logits of images, and with labels the loss.

        loss = mean over images of the cross-entropy, or with `problem_type` `"multi_label_classification"` of the sum
        over classes (or mean, by `multi_label_reduction`) of the binary cross-entropies, in training with label
        smoothing; or the mean squared error with `"regression"`. In training plus the regulariser.

        Args:
            labels: class of each image [batch], or a target in [0, 1] for each class [batch, num_labels]: shares that
                sum to 1, as Mixup gives them, or with `problem_type` `"multi_label_classification"` several labels; of
                a regression numbers [batch, num_labels], or [batch] for one.
            others: as in `VisionTransformerModel.forward`.
        """
        outputs = self.vit(pixel_values, interpolate_pos_encoding, **kwargs)
        logits = self.classifier(outputs.pooler_output)
        regularization_loss, null_rate = self.regularize(outputs.site_rows, labels)
        loss = None
        if labels is not None:
            loss = self.compute_loss(logits, labels)
            if regularization_loss is not None:
                loss = loss + regularization_loss.to(loss.device)
        return VisionTransformerClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            regularization_loss=regularization_loss,
            null_rate=null_rate,
        )

    def compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the mean loss of images; smoothing ε moves targets to (1 − ε)·y + ε/C, in training only."""
        given, labels, logits = labels, labels.to(logits.device), at_least_float32(logits)
        config, problem_type = self.config, self.config.problem_type
        if problem_type == "regression" or (problem_type is None and config.num_labels == 1):
            if labels.numel() != logits.numel() or len(labels) != len(logits):
                raise ValueError(f"labels is {list(labels.shape)}, but must be as many as logits, {[*logits.shape]}")
            return functional.mse_loss(logits, labels.to(logits.dtype).view_as(logits))
        # PyTorch refuses labels that are neither classes nor shares: a float for each image, or another number of rows
        # or classes.
        are_classes = labels.dim() == 1 and not labels.is_floating_point()
        # Labels are checked, because a loss of shares beyond 1 would be finite. On an accelerator the check would make
        # the host wait.
        if given.device.type == "cpu" and type(given) is Tensor and not torch.compiler.is_compiling():
            largest = config.num_labels - 1 if are_classes else 1
            # Labels that are shares of classes may be rounded.
            wrong = (~((given >= 0) & (given <= largest + 1e-3))).nonzero()
            if len(wrong):
                value = given[tuple(wrong[0])].item()
                raise ValueError(f"labels{wrong[0].tolist()} is {value}, but must be from 0 to {largest}")
        labels = labels.long() if are_classes else labels.to(logits.dtype)
        smoothing = config.label_smoothing if self.training else 0.0
        if problem_type != "multi_label_classification":
            return functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        # One class for each image is a case of several classes: its id becomes a row of 0 and 1.
        targets = functional.one_hot(labels, config.num_labels) if are_classes else labels
        targets = targets.to(logits.dtype) * (1 - smoothing) + smoothing / config.num_labels
        divisor = logits.shape[0] if config.multi_label_reduction == "sum" else logits.numel()
        return functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / divisor


class ReLUViTModel(VisionTransformerModel):
    """Vision Transformer with relu/L attention, without a head (Wortsman et al. 2023)."""

    config: ReLUViTConfig


class ReLUViTForImageClassification(VisionTransformerForImageClassification):
    """Vision Transformer with relu/L attention for image classification (Wortsman et al. 2023)."""

    config: ReLUViTConfig


class ReLUFormerViTModel(VisionTransformerModel):
    """Vision Transformer with ReLUFormer's attention and regulariser, without a head (Shen et al. 2023)."""

    config: ReLUFormerViTConfig


class ReLUFormerViTForImageClassification(VisionTransformerForImageClassification):
    """Vision Transformer with ReLUFormer's attention and regulariser for image classification (Shen et al. 2023)."""

    config: ReLUFormerViTConfig


class ReLAViTModel(VisionTransformerModel):
    """Vision Transformer with rectified linear attention, without a head (Zhang et al. 2021)."""

    config: ReLAViTConfig


class ReLAViTForImageClassification(VisionTransformerForImageClassification):
    """Vision Transformer with rectified linear attention for image classification (Zhang et al. 2021)."""

    config: ReLAViTConfig


class QKNormViTModel(VisionTransformerModel):
    """Vision Transformer with query-key normalisation, without a head (Henry et al. 2020)."""

    config: QKNormViTConfig


class QKNormViTForImageClassification(VisionTransformerForImageClassification):
    """Vision Transformer with query-key normalisation for image classification (Henry et al. 2020)."""

    config: QKNormViTConfig
