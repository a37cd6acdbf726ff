# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers for image classification whose families differ by their configuration alone."""

import math
import torch
from collections.abc import Callable
from dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.pytorch_utils import id_tensor_storage
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs
from .attention import (
    AttentionMask,
    DEFAULT_BACKEND,
    MultiHeadAttention,
    NormGate,
    RowStatistics,
    ScaleNorm,
    SiteRows,
    apply_dropout,
    at_least_float32,
    attention_backend,
    build_norm,
    regularizer_sums,
    sum_of_processes,
)
from .configuration_vision import (
    QKNormViTConfig,
    ReLAViTConfig,
    ReLUFormerViTConfig,
    ReLUViTConfig,
    TransformerConfig,
    VisionTransformerConfig,
)

# ---------------------------------------------------------------------------------------------------------------------
# modeling/feed_forward.py
# The feed-forward network, which ReLUFormer reads as a key–value memory, with its activations and gated forms.


# A configuration chooses the activation φ of the feed-forward network by name. For swish, x·σ(βx), the module itself
# multiplies by β.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softmax": lambda x: functional.softmax(x, dim=-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
_GATES = {"glu": "sigmoid", "bilinear": "identity", "geglu": "gelu", "swiglu": "swish"}
_GATES |= dict.fromkeys(("reglu", "drelu"), "relu")


class FeedForward(nn.Module):
    r"""Position-wise feed-forward network H = φ(X·W1ᵀ)·W2, or gated, H = (φ(X·W1ᵀ) ⊗ X·Vᵀ)·W2.

    With φ = softmax it is the key–value memory of ReLUFormer eq. 2. Gated forms take 2/3 of the inner width, so that
    parameters stay equal (Shazeer 2020, section 3); dReLU has ReLU on both sides (TurboSparse, Song et al. 2024).
    """

    def __init__(self, config: TransformerConfig, ffn_dim: int):
        super().__init__()
        name, width, bias = config.activation_function, config.hidden_size, config.ffn_bias
        inner_dim = round(ffn_dim * 2 / 3) if name in _GATES else ffn_dim
        self.activation_name = _GATES.get(name, name)
        self.has_rectified_values = name == "drelu"
        self.dropout, self.temperature = config.activation_dropout, config.feed_forward_temperature
        self.initial_swish_beta = config.swish_beta
        self.fc1 = nn.Linear(width, inner_dim, bias=bias)
        self.fc_linear = nn.Linear(width, inner_dim, bias=bias) if name in _GATES else None
        self.fc2 = nn.Linear(inner_dim, width, bias=bias)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.feed_forward_norm == "layer_norm" else None
        learns_beta = config.learned_swish_beta and self.activation_name == "swish"
        self.swish_beta = nn.Parameter(torch.empty(1)) if learns_beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set β; the model initialises the maps."""
        if self.swish_beta is not None:
            init.constant_(self.swish_beta, self.initial_swish_beta)

    def activation(self, states: Tensor) -> Tensor:
        """φ of the inner states."""
        if self.activation_name == "softmax" and self.temperature != 1:
            states = states / self.temperature
        if self.activation_name != "swish":
            return _ACTIVATIONS[self.activation_name](states)
        beta = self.initial_swish_beta if self.swish_beta is None else self.swish_beta
        return states * torch.sigmoid(beta * states)

    # The feed-forward network takes and returns states [..., embed_dim].
    def forward(self, hidden_states: Tensor) -> Tensor:
        inner_states = self.activation(self.fc1(hidden_states))  # The inner states have the shape [..., inner_dim].
        if self.fc_linear is not None:
            values = self.fc_linear(hidden_states)
            inner_states = inner_states * (functional.relu(values) if self.has_rectified_values else values)
        inner_states = apply_dropout(inner_states, self.dropout, self.training)
        output = self.fc2(inner_states)
        return output if self.norm is None else self.norm(output)


# ---------------------------------------------------------------------------------------------------------------------
# modeling/layers.py
# Layers: attention and feed-forward branches around the residual stream.


def drop_path(branch: Tensor, probability: float) -> Tensor:
    """Leave out a residual branch of some rows of the batch, the others over 1 − p (Huang et al. 2016, section 3)."""
    # In stochastic depth one random number decides whether a row keeps the whole branch.
    keeps = torch.rand(branch.shape[0], *[1] * (branch.dim() - 1), device=branch.device) >= probability
    return branch * (keeps / (1 - probability)).to(branch.dtype)


class TransformerLayer(GradientCheckpointingLayer):
    """Base of encoder and decoder layers: how a branch is normalised, dropped and added."""

    def __init__(self, config: TransformerConfig, ffn_dim: int, drop_path_rate: float = 0.0):
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.dropout, self.drop_path_rate = config.dropout, drop_path_rate
        self.mlp = FeedForward(config, ffn_dim)
        self.mlp_norm = build_norm(config)

    def branch_input(self, norm: nn.Module, hidden_states: Tensor) -> Tensor:
        """Input of a branch: normalised with PreNorm."""
        return norm(hidden_states) if self.is_pre_norm else hidden_states

    def add_branch(self, norm: nn.Module, hidden_states: Tensor, branch: Tensor) -> Tensor:
        """Residual sum of a branch: normalised with PostNorm."""
        branch = apply_dropout(branch, self.dropout, self.training)
        if self.training and self.drop_path_rate > 0:
            branch = drop_path(branch, self.drop_path_rate)
        hidden_states = hidden_states + branch
        return hidden_states if self.is_pre_norm else norm(hidden_states)


class EncoderLayer(TransformerLayer):
    """Self-attention and feed-forward network."""

    def __init__(self, config: TransformerConfig, layer_idx: int, drop_path_rate: float = 0.0):
        super().__init__(config, config.intermediate_size, drop_path_rate)
        self.self_attn = MultiHeadAttention.from_config(config, "encoder", config.num_attention_heads, layer_idx)
        self.self_attn_norm = build_norm(config)

    def forward(self, hidden_states: Tensor, attention_options: dict) -> tuple[Tensor, ...]:
        """Hidden states [batch, length, hidden_size] after the layer, and the tensors of `RowStatistics` if needed."""
        branch, _, rows = self.self_attn(self.branch_input(self.self_attn_norm, hidden_states), **attention_options)
        hidden_states = self.add_branch(self.self_attn_norm, hidden_states, branch)
        branch = self.mlp(self.branch_input(self.mlp_norm, hidden_states))
        return self.add_branch(self.mlp_norm, hidden_states, branch), *rows


# ---------------------------------------------------------------------------------------------------------------------
# modeling/modeling_base.py
# What all models share: abilities, the initialisation of shared modules, attention options and the regulariser.


logger = logging.get_logger(__name__)

# Xavier and small initialisation draw maps of d × d as parts of a larger one. The two numbers count the parts for q,
# k, v and gate, and for the output: tensor2tensor joins q, k and v, QKNorm's released code all four.
_JOINED = {"xavier": (3, 1), "small": (4, 4)}


class TransformerPreTrainedModel(PreTrainedModel):
    """Abilities of all models, and the initialisation of every module that several of them have."""

    config: TransformerConfig
    supports_gradient_checkpointing = True
    _can_compile_fullgraph = True

    def __init__(self, config: TransformerConfig):
        config.validate()  # Fields of a configuration may have been set since it was built and checked.
        super().__init__(config)
        # Attention configurations are made once, with the model, because torch.compile cannot make them.
        self._attentions = {site: config.attention_for(site) for site in config.sites}

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Initialise modules without a parameter too, which transformers passes over in code from outside."""
        super()._initialize_weights(module)

    def save_pretrained(self, save_directory, is_main_process=True, state_dict=None, *args, **kwargs) -> None:
        """Save as transformers does; weights that the configuration does not tie open as weights of their own."""
        if not getattr(self, "_hf_peft_config_loaded", False) and getattr(self, "hf_quantizer", None) is None:
            state_dict = self._without_other_ties(self.state_dict() if state_dict is None else state_dict)
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)

    def _without_other_ties(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Leave out what opening ties again, and copy what shares memory otherwise, as after PEFT has cut a tie."""
        tied, storages, weights = self.get_expanded_tied_weights_keys(all_submodels=True), set(), {}
        for name, tensor in state_dict.items():
            storage, source = id_tensor_storage(tensor), state_dict.get(tied.get(name))
            # Tied weights that were gathered from several processes are equal, but share no memory.
            if source is not None and (id_tensor_storage(source) == storage or torch.equal(source, tensor)):
                continue
            is_shared = storage in storages and tensor.device.type != "meta"
            weights[name] = tensor.clone() if is_shared else tensor
            storages.add(storage)
        return weights

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MultiHeadAttention):
            inputs, output = _JOINED.get(self.config.initialization, (1, 1))
            for linear in (module.q_proj, module.k_proj, module.v_proj, module.gate_proj):
                self._init_linear(linear, inputs)
            self._init_linear(module.out_proj, output)
        elif isinstance(module, FeedForward):
            for linear in (module.fc1, module.fc_linear, module.fc2):
                self._init_linear(linear)
                if self.config.initialization == "big_vision" and getattr(linear, "bias", None) is not None:
                    init.normal_(linear.bias, std=1e-6)
        # Scalars and gates of attention are initialised after the projections; transformers does not know them.
        if isinstance(module, NormGate):
            module.reset_gate()
        elif isinstance(module, (MultiHeadAttention, FeedForward, ScaleNorm)):
            module.reset_parameters()

    def _init_linear(self, linear: nn.Linear | None, maps: int = 1) -> None:
        """Draw a map of fan-in m as one of several of n in all: U(±√(6/(m+n))), N(0, √(2/(m+n))), or transformers'."""
        if linear is None:
            return
        total = linear.in_features + maps * linear.out_features
        if self.config.initialization in ("xavier", "big_vision"):
            init.uniform_(linear.weight, -math.sqrt(6 / total), math.sqrt(6 / total))
        elif self.config.initialization == "small":
            init.normal_(linear.weight, std=math.sqrt(2 / total))

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The backend of that name, `fused` if none is named; transformers' own compute softmax and are refused."""
        name = DEFAULT_BACKEND if requested_attention is None else requested_attention
        attention_backend(name)
        return name

    def attention_options(
        self,
        mask: AttentionMask,
        output_attentions: bool | None = None,
        output_null_rate: bool | None = None,
    ) -> dict:
        """Arguments of all attention modules of one site in a call with these options; only `eager` keeps weights."""
        return {
            "attention_mask": mask,
            "statistics": "all" if self.is_regularized else "sums" if output_null_rate else "none",
            "attn_implementation": "eager" if output_attentions else self.config._attn_implementation,
        }

    def site_rows(self, layers: list[tuple[Tensor | None, ...]], mask: AttentionMask, site: str) -> list[SiteRows]:
        """Return the row statistics of all layers of one site, or nothing where there are none."""
        # A layer without row statistics is left out, because another model's attention may compute it.
        layers = [tensors for tensors in layers if tensors[0] is not None]
        if not layers:
            return []
        config = self._attentions[site]
        is_divided = config.has_late_statistics
        numbers = (1.0, 0.0) if is_divided else (config.length_coefficient, config.length_exponent)
        return [SiteRows(layers, mask.key_counts, mask.query_mask, *numbers)]

    @property
    def is_regularized(self) -> bool:
        """Whether the loss holds the regulariser: in training, if one of its weights is not 0."""
        return self.training and self.config.has_regularizer

    def regularize(self, sites: list[SiteRows] | None, labels: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Compute the weighted regulariser (ReLUFormer, eq. 7), or None without weights, and the null rate.

        Warns once if the model is trained without labels, as by the Trainer's `label_smoothing_factor`.
        """
        if not sites:
            return None, None
        config = self.config
        sums = regularizer_sums(sites, config.entropy_bound if self.is_regularized else None)
        # With tensor parallelism each process has summed over its own heads.
        if (self._tp_size or 1) > 1 and config.splits_heads:
            from torch.distributed.tensor import DTensor, Partial  # Not every build of torch has distributed tensors.

            sums = DTensor.from_local(sums, self._device_mesh["tp"], [Partial()]).full_tensor()
        sums = sum_of_processes(sums)
        normalization, entropy_excess, null_rows, number = sums.unbind()
        number = number.clamp_min(1)
        null_rate = (null_rows / number).detach()
        if not self.is_regularized:
            return None, null_rate
        loss = config.normalization_loss_weight * normalization + config.entropy_loss_weight * entropy_excess
        loss = loss / number
        if labels is None and loss.requires_grad and not torch.compiler.is_compiling():
            logger.warning_once(
                "the model is trained without labels, so a loss computed outside of it lacks the regulariser: give "
                "labels, or add regularization_loss of the output; smooth by label_smoothing of the configuration"
            )
        return loss, null_rate


# ---------------------------------------------------------------------------------------------------------------------
# modeling/patch_embeddings.py
# Images as sequences: patches, their positions on a grid, the class token and registers.


CLS_TOKEN_STD = 0.02


def sincos2d_table(rows: int, columns: int, dim: int) -> Tensor:
    r"""Fixed positions of a grid, computed in float64    [rows · columns, dim].

    The vector at column x and row y is [sin xω, cos xω, sin yω, cos yω] with ω_m = 10000^(−m/(d/4−1)), m < d/4
    (Chen et al. 2021, as big_vision orders it).

    Args:
        rows, columns: of the grid.
        dim: d, a multiple of 4.
    """
    quarter = dim // 4
    exponents = torch.arange(quarter, dtype=torch.float64, device="cpu") / max(quarter - 1, 1)
    frequencies = 10000.0**-exponents  # The frequencies have the shape [d / 4].
    x = torch.arange(columns, dtype=torch.float64, device="cpu").repeat(rows)[:, None] * frequencies
    y = torch.arange(rows, dtype=torch.float64, device="cpu").repeat_interleave(columns)[:, None] * frequencies
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)


class PatchEmbeddings(nn.Module):
    """Patches mapped to the width of the model, with positions; before them perhaps the class token and registers.

    Those in front have positions with `prefix_positions` (ViT), else none (big_vision). They start from N(0, 0.02),
    not from big_vision's 0, where relu weights and the unit vectors of QKNorm have no usable gradient.
    """

    def __init__(self, config: VisionTransformerConfig):
        super().__init__()
        self.grid_size, self.dropout, width = config.grid_size, config.dropout, config.hidden_size
        self.patch_size = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, width, kernel_size=self.patch_size, stride=self.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if config.pooling == "cls" else None
        registers = torch.empty(1, config.num_register_tokens, width)
        self.register_tokens = nn.Parameter(registers) if config.num_register_tokens else None
        self.num_placed_prefix = config.num_prefix_tokens if config.prefix_positions else 0
        positions = torch.empty(1, self.num_placed_prefix + self.grid_size[0] * self.grid_size[1], width)
        self.is_learned = config.position_embedding_type == "learned"
        if self.is_learned:
            self.position_embeddings = nn.Parameter(positions)
        else:
            # Sinusoidal positions follow from a formula, so no file has to hold them.
            self.register_buffer("position_embeddings", positions, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Positions, N(0, 1/√d) or the fixed table, class token and registers."""
        width = self.position_embeddings.shape[-1]
        if self.is_learned:
            init.normal_(self.position_embeddings, std=width**-0.5)
        else:
            init.copy_(self.position_embeddings, sincos2d_table(*self.grid_size, width)[None])
        for token in self._prefix():
            init.normal_(token, std=CLS_TOKEN_STD)

    def forward(self, pixel_values: Tensor, interpolate_pos_encoding: bool = True) -> Tensor:
        """Tokens [batch, length, hidden_size] of images [batch, channels, height, width]."""
        self._check(pixel_values, interpolate_pos_encoding)
        # Embeddings of patches are [batch, width, rows, columns].
        patches = self.projection(pixel_values.to(self.projection.weight.dtype))
        # Under autocast patches have half precision and positions do not; the residual stream keeps the precision of
        # positions.
        hidden_states = patches.flatten(2).transpose(1, 2) + self.positions(*patches.shape[2:])
        if prefix := self._prefix():
            tokens = torch.cat(prefix, dim=1)
            if self.num_placed_prefix:
                tokens = tokens + self.position_embeddings[:, : self.num_placed_prefix]
            tokens = tokens.to(hidden_states.dtype).expand(hidden_states.shape[0], -1, -1)
            hidden_states = torch.cat([tokens, hidden_states], dim=1)
        return apply_dropout(hidden_states, self.dropout, self.training)

    def _prefix(self) -> list[Tensor]:
        """The tokens in front of the patches, [1, number, hidden_size] each."""
        return [token for token in (self.cls_token, self.register_tokens) if token is not None]

    def positions(self, rows: int, columns: int) -> Tensor:
        """Positions of a grid [1, rows · columns, hidden_size]; learned ones bicubic between those of the own grid."""
        positions = self.position_embeddings[:, self.num_placed_prefix :]
        if (rows, columns) == self.grid_size:
            return positions
        # The formula of sinusoidal positions holds for every grid, so there is nothing to interpolate.
        if not self.is_learned:
            table = sincos2d_table(rows, columns, positions.shape[-1])
            return table[None].to(positions.device, positions.dtype)
        grid = at_least_float32(positions.unflatten(1, self.grid_size)).permute(0, 3, 1, 2)
        grid = functional.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
        return grid.flatten(2).transpose(1, 2).to(positions.dtype)

    def _check(self, pixel_values: Tensor, interpolate_pos_encoding: bool) -> None:
        (height, width), side = pixel_values.shape[2:], self.patch_size
        if height % side or width % side or not height * width:
            raise ValueError(f"an image is {height} x {width} pixels, but must be in multiples of patch_size ({side})")
        rows, columns = self.grid_size
        if not interpolate_pos_encoding and (height // side, width // side) != self.grid_size:
            raise ValueError(
                f"an image is {height} x {width} pixels, but the model's positions are for {rows * side} x "
                f"{columns * side}: resize the image, or allow interpolate_pos_encoding"
            )


# ---------------------------------------------------------------------------------------------------------------------
# modeling/modeling_vision.py


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
