# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Encoder–decoder Transformers for translation whose families differ by their configuration alone."""

import copy
import math
import threading
import torch
import transformers
from collections.abc import Callable
from dataclasses import dataclass, replace
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    initialization as init,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.pytorch_utils import id_tensor_storage
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs
from typing import Any, TYPE_CHECKING
from .attention import (
    AttentionMask,
    DEFAULT_BACKEND,
    MultiHeadAttention,
    NormGate,
    ScaleNorm,
    SiteRows,
    UnitLinear,
    all_rows,
    apply_dropout,
    at_least_float32,
    attention_backend,
    build_norm,
    kernels,
    own_mask,
    own_rows,
    regularizer_sums,
    sum_of_processes,
    unit_length,
)
from .configuration_seq2seq import (
    QKNormConfig,
    ReLAConfig,
    ReLUFormerConfig,
    Seq2SeqTransformerConfig,
    TransformerConfig,
)

# ---------------------------------------------------------------------------------------------------------------------
# modeling/embeddings.py
# Fixed positions of tokens.


class SinusoidalPositions(nn.Module):
    r"""Fixed sinusoids of position t: sin(t·ω_i) and cos(t·ω_i), in one of four published layouts.

    `"sinusoidal"`: channels 2i and 2i+1 are sine and cosine of ω_i = 10000^(−2i/d) (Vaswani et al. 2017, section 3.5).
    `"sinusoidal_halves"`: first half sines, second half cosines of ω_i = 10000^(−i/(d/2−1)) (tensor2tensor; ReLA).
    `"sinusoidal_marian"`: halves as in the second, ω_i as in the first (Marian, as transformers has it).
    `"sinusoidal_sine"`: as the first, but sine in both channels (the released QKNorm code).
    """

    def __init__(self, max_positions: int, dim: int, layout: str = "sinusoidal"):
        super().__init__()
        self.max_positions, self.dim, self.layout = max_positions, dim, layout
        self.register_buffer("table", torch.empty(max_positions, dim), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the table; models are built on the meta device, so that this runs again when one is loaded."""
        init.copy_(self.table, self.compute_table())

    def compute_table(self) -> Tensor:
        """All positions, computed in float64    [max_positions, dim]."""
        half = self.dim // 2
        steps = torch.arange(half, dtype=torch.float64, device="cpu")
        exponents = steps / max(half - 1, 1) if self.layout == "sinusoidal_halves" else 2 * steps / self.dim
        positions = torch.arange(self.max_positions, dtype=torch.float64, device="cpu")
        angles = positions[:, None] * 10000.0**-exponents  # The angles of positions are [max_positions, dim / 2].
        if self.layout in ("sinusoidal_halves", "sinusoidal_marian"):
            return torch.cat([angles.sin(), angles.cos()], dim=-1)
        second = angles.sin() if self.layout == "sinusoidal_sine" else angles.cos()
        return torch.stack([angles.sin(), second], dim=-1).flatten(1)

    def forward(self, positions: Tensor) -> Tensor:  # Positions [..., length] become embeddings [..., length, dim].
        return nn.functional.embedding(positions, self.table)


# ---------------------------------------------------------------------------------------------------------------------
# modeling/generation_check.py
# Check that `generate` of the installed transformers still gives what the model itself computes.
#
# A saved folder keeps its code while transformers goes on.


logger = logging.get_logger(__name__)

# `NEWEST_TESTED` is the newest release of transformers that the code was tested with.
NEWEST_TESTED = (5, 24)
_CHECKING = threading.Lock()


class CheckedGenerationMixin(GenerationMixin):
    """`generate` that is compared with the model once, before its first use on a transformers newer than tested."""

    _is_generation_checked = tuple(map(int, transformers.__version__.split(".")[:2])) <= NEWEST_TESTED
    _generates_with_cache = True

    def generate(self, *args, **kwargs):
        """Generate as transformers does; without a cache, or not at all, where it differs from the model's logits."""
        if not self._is_generation_checked:
            with _CHECKING:  # Other threads wait until the first one has checked generation.
                self._check_generation()
        if not self._generates_with_cache:
            kwargs["use_cache"] = False
        return super().generate(*args, **kwargs)

    def _check_generation(self) -> None:
        if not self._is_generation_checked and (problem := find_generation_fault(self)):
            newest = "{}.{}".format(*NEWEST_TESTED)
            problem = (
                f"this model's code knows transformers up to {newest}, and with {transformers.__version__} "
                f"{problem}: install transformers {newest}, or save the model with newer code"
            )
            if find_generation_fault(self, use_cache=False) is not None:
                raise RuntimeError(problem)
            # Generation goes on without a cache, because slow and right is better than fast and wrong.
            self._generates_with_cache = False
            logger.warning(f"{problem}. Until then it generates without a cache: the tokens are right, but slow.")
        self._is_generation_checked = True


@torch.no_grad()
def find_generation_fault(model: CheckedGenerationMixin, use_cache: bool = True) -> str | None:
    """Say in words how steps of `generate` differ from one pass of the model over their tokens; None if they agree.

    A new model of at most two layers answers for `model`, in float32: what is asked is whether this code and the
    installed transformers fit together, and in bfloat16 two right ways of computing may choose different tokens.
    """
    model = _build_like(model)
    config = model.config
    length = min(5, config.max_position_embeddings)
    steps = min(4, config.max_position_embeddings)
    # The check may take any tokens, because both ways of generating get the same ones.
    input_ids = (torch.arange(2 * length, device=model.device).view(2, length) * 7 + 3) % config.vocab_size
    mask = torch.ones_like(input_ids)
    # One row of the check is padding except for its first token, so a lost mask changes its result.
    mask[1, 1:] = 0
    inputs = {"input_ids": input_ids, "attention_mask": mask}
    # Apart from these options, generation is checked with the settings that the model was saved with.
    options = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "use_cache": use_cache}
    options |= {"max_new_tokens": steps, "min_new_tokens": steps, "max_length": None}
    tokens = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    options |= {name: getattr(model.generation_config, name) for name in tokens}

    def generate(**others):
        # The parent's `generate` is called, because the checked one would check without end.
        search = super(CheckedGenerationMixin, model).generate
        return search(**inputs, generation_config=GenerationConfig(**{**options, **others}))

    try:
        for cache in ({}, {"cache_implementation": "static", "disable_compile": True})[: 1 + use_cache]:
            greedy = generate(output_logits=True, return_dict_in_generate=True, **cache)
            expected = model(**inputs, decoder_input_ids=greedy.sequences[:, :-1], use_cache=False).logits
            error = (torch.stack(greedy.logits, dim=1) - expected).abs().max() / expected.abs().max()
            # The comparison of logits is written so that a NaN fails it.
            if not error <= torch.finfo(torch.float32).eps ** 0.5:
                return f"logits differ from the model's by {error:.1e} of the largest in greedy search {cache or ''}"
            if not torch.equal(generate(**cache), greedy.sequences):
                return "greedy search gives two answers, with logits and without"
        # Beam search reorders the cache, which greedy search never does.
        if not torch.equal(generate(num_beams=2), generate(num_beams=2, use_cache=False)):
            return "beam search gives other tokens with a cache than without"
    except Exception as error:
        return f"generate ends with {type(error).__name__}: {error}"
    return None


def _build_like(model: CheckedGenerationMixin) -> CheckedGenerationMixin:
    config = copy.deepcopy(model.config)
    config.encoder_layers = min(2, config.encoder_layers)
    config.decoder_layers = min(2, config.decoder_layers)
    # A user's seed gives the same random numbers with the check of generation and without.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        smaller = type(model)(config)
    smaller.generation_config = model.generation_config
    return smaller.to(model.device, torch.float32).eval()


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
# modeling/sequence_masks.py
# Masks and positions of token sequences: what of the padding, the past and the future a query may see.
#
# Wrong masks are `ValueError`s: of other dimensions, not of all tokens, additive, or with rows for another sequence.


def padding_mask(
    attention_mask: Tensor | None, query_len: int, key_len: int, device: torch.device, is_cross: bool = False
) -> AttentionMask:
    """The mask of a sequence that every query sees the same way.

    Args:
        attention_mask: 1 or True = real token [batch, key_len], or a ready mask of 4 dimensions.
        query_len, key_len, device: as in `AttentionMask`.
        is_cross: the queries are another sequence's, so that a ready mask must not tell them apart.
    """
    if attention_mask is None:
        return AttentionMask(query_len, key_len, device)
    mask = _checked(attention_mask)
    if mask.dim() == 2:
        return AttentionMask(query_len, key_len, device, mask)
    if is_cross and mask.shape[2] != 1:
        raise ValueError(f"the mask of cross-attention is {list(mask.shape)}, but must be [batch, 1, 1, source_len]")
    return AttentionMask.of(mask, query_len, key_len, device)


def causal_mask(
    query_len: int, key_len: int, past_len: int | Tensor, attention_mask: Tensor | None, device: torch.device
) -> AttentionMask:
    """Make the mask of decoder self-attention: key j is visible to query i if it is real and not in i's future.

    Args:
        query_len: number of new tokens.
        key_len: number of keys, cached ones included; a static cache counts its empty places too.
        past_len: number of tokens before the new ones.
        attention_mask: as in `padding_mask`; of 2 dimensions it covers past and new tokens.
        device: where the queries are.
    """
    mask = None if attention_mask is None else _checked(attention_mask)
    # A dense mask says which keys each query sees, causality too.
    if mask is not None and mask.dim() == 4:
        return AttentionMask.of(mask, query_len, key_len, device)
    if isinstance(past_len, Tensor):
        # The past length is copied, because the cache counts on in place before the mask is made dense.
        past_len = past_len.clone()
    if mask is None:
        return AttentionMask(query_len, key_len, device, causal_offset=past_len)
    if not torch.compiler.is_compiling() and attention_mask.shape[-1] != past_len + query_len:
        raise ValueError(
            f"decoder_attention_mask covers {attention_mask.shape[-1]} tokens, but there are {int(past_len)} past and "
            f"{query_len} new ones"
        )
    # Slots of a static cache that hold no token yet are hidden.
    mask = functional.pad(mask, (0, max(0, key_len - mask.shape[-1])))
    return AttentionMask(query_len, key_len, device, mask[:, :key_len], past_len)


def token_positions(
    query_len: int, past_len: int | Tensor, attention_mask: Tensor | None, device: torch.device
) -> Tensor:
    """Positions [batch or 1, query_len] that do not move when a sequence is padded, on either side."""
    if attention_mask is None or attention_mask.dim() != 2:
        return (torch.arange(query_len, device=device) + past_len)[None]
    # The first real token of a sequence has position 0, wherever padding stands.
    return (attention_mask.bool().long().cumsum(-1) - 1).clamp_min(0)[:, -query_len:]


def _checked(mask: Tensor) -> Tensor:
    """The mask as bool; an additive one of 4 dimensions (0 = may attend) would be read upside down."""
    if mask.dim() not in (2, 4):
        raise ValueError(f"an attention mask is {list(mask.shape)}, but must be [batch, length] or of 4 dimensions")
    if mask.dim() == 4 and mask.is_floating_point():
        raise ValueError(f"an attention mask of 4 dimensions must be boolean, True = may attend, but is {mask.dtype}")
    return mask.bool()


# ---------------------------------------------------------------------------------------------------------------------
# modeling/modeling_seq2seq.py


if TYPE_CHECKING:  # transformers saves the files whose modules this file imports, and the pipeline has to come along.
    from .pipeline_translation import TranslationPipeline as TranslationPipeline


@dataclass
class Seq2SeqTransformerEncoderOutput(BaseModelOutput):
    """Encoder output; `site_rows` are statistics of its rows where these are needed."""

    site_rows: list[SiteRows] | None = None


@dataclass
class Seq2SeqTransformerDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Decoder output; `site_rows` as in the encoder's."""

    site_rows: list[SiteRows] | None = None


@dataclass
class Seq2SeqTransformerOutput(Seq2SeqModelOutput):
    """Output of the model without head; `site_rows` of encoder and decoder."""

    site_rows: list[SiteRows] | None = None


@dataclass
class Seq2SeqTransformerLMOutput(Seq2SeqLMOutput):
    """Output of the translation model; the last two may be missing.

    `regularization_loss`: ReLUFormer eq. 7 with its weights, a part of `loss`, in training. `null_rate`: share of the
    query rows that attend to nothing (ReLA, section 5.2), with `output_null_rate` and beside the regulariser.
    """

    regularization_loss: Tensor | None = None
    null_rate: Tensor | None = None


# transformers calls the cache `past_key_values` up to 5.23 and `cache` from 5.24 on. With neither the import fails.
CACHE_NAME = next(name for name in ("cache", "past_key_values") if name in Seq2SeqLMOutput.__dataclass_fields__)


def one_cache(past_key_values: Cache | None, cache: Cache | None) -> Cache | None:
    """Return the cache, given as `past_key_values` or, since transformers 5.24, as `cache`.

    Of two, it is the latter, as in transformers, unless that is empty: PEFT gives a prefix by the old name beside it.
    """
    is_empty = cache is None or (past_key_values is not None and int(cache.get_seq_length()) == 0)
    return past_key_values if is_empty else cache


class DecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention and feed-forward network."""

    def __init__(self, config: Seq2SeqTransformerConfig, layer_idx: int):
        super().__init__(config, config.decoder_ffn_dim)
        heads = config.decoder_attention_heads
        self.self_attn = MultiHeadAttention.from_config(config, "decoder", heads, layer_idx)
        self.self_attn_norm = build_norm(config)
        self.cross_attn = MultiHeadAttention.from_config(config, "cross", heads, layer_idx)
        self.cross_attn_norm = build_norm(config)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        self_attention_options: dict,
        cross_attention_options: dict,
        past_key_values: Cache | None = None,
    ) -> tuple[Tensor, ...]:
        """Run one decoder layer: hidden states [batch, length, hidden_size], and `RowStatistics` of its two sites."""
        branch, _, self_rows = self.self_attn(
            self.branch_input(self.self_attn_norm, hidden_states),
            past_key_values=past_key_values,
            **self_attention_options,
        )
        hidden_states = self.add_branch(self.self_attn_norm, hidden_states, branch)
        queries = self.branch_input(self.cross_attn_norm, hidden_states)
        # Beam search has several rows of one sentence; in cross-attention they become queries of one row.
        branch, _, cross_rows = self.cross_attn(
            queries.reshape(encoder_hidden_states.shape[0], -1, queries.shape[-1]),
            encoder_hidden_states,
            past_key_values=past_key_values,
            **cross_attention_options,
        )
        hidden_states = self.add_branch(self.cross_attn_norm, hidden_states, branch.view_as(queries))
        branch = self.mlp(self.branch_input(self.mlp_norm, hidden_states))
        hidden_states = self.add_branch(self.mlp_norm, hidden_states, branch)
        return hidden_states, *self_rows, *cross_rows


class Seq2SeqTransformerPreTrainedModel(TransformerPreTrainedModel):
    """Abilities, and the initialisation of embeddings, of all encoder–decoder families."""

    config: Seq2SeqTransformerConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        """Resize the source's side; the target's follows if it shares the vocabulary, else it stays."""
        # When embeddings are resized, transformers gives the head the source's size, whatever its own is.
        head = self.get_output_embeddings()
        decoder = getattr(getattr(self, self.base_model_prefix, self), "decoder", None)
        if decoder is not None and self.config.tying != "all":
            parts = [self.get_input_embeddings(), decoder.embed_tokens]
            if head is not None and self.config.tying == "none":
                parts.append(head)
            # A shared weight is copied first, because resizing changes it in place for all modules that hold it.
            for count, part in enumerate(parts):
                if any(part.weight is other.weight for other in parts[:count]):
                    part.weight = nn.Parameter(part.weight.detach().clone(), part.weight.requires_grad)
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.config.tying == "all" and self.config.decoder_vocab_size is not None:
            self.config.decoder_vocab_size = self.config.vocab_size
        if decoder is not None and self.config.tying != "all":
            size = self.config.target_vocab_size
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, size)
            if head is not None and (self.config.tying == "none" or size != self.config.vocab_size):
                self.set_output_embeddings(self._get_resized_lm_head(head, size))
            self.tie_weights()
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # Embeddings of tokens have padding, and learned positions have none.
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            if self.config.embedding_norm == "fix_norm":
                init.uniform_(module.weight, -0.01, 0.01)
            elif self.config.scale_embedding:  # The model multiplies embeddings by √d.
                init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, SinusoidalPositions):
            module.reset_parameters()
        elif isinstance(module, TransformerStack) and module.embedding_bias is not None:
            bound = math.sqrt(3 / self.config.d_model)
            init.uniform_(module.embedding_bias, -bound, bound)


class TransformerStack(Seq2SeqTransformerPreTrainedModel):
    """Base of encoder and decoder: embeddings with positions, layers and the last norm."""

    def __init__(self, config: Seq2SeqTransformerConfig, vocab_size: int, layers: list[nn.Module]):
        super().__init__(config)
        self.dropout = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.embedding_bias = nn.Parameter(torch.empty(config.d_model)) if config.embedding_bias else None
        rows, layout = config.max_position_embeddings, config.position_embedding_type
        if layout == "learned":
            self.embed_positions = nn.Embedding(rows + config.position_offset, config.d_model)
        else:
            self.embed_positions = SinusoidalPositions(rows, config.d_model, layout)
        self.embedding_norm = build_norm(config) if config.embedding_norm == "layer_norm" else None
        self.layers = nn.ModuleList(layers)
        self.norm = build_norm(config) if config.norm_position == "pre" else None
        self.gradient_checkpointing = False

    def post_init(self) -> None:
        """Finish as transformers does, without the plans for several devices: they name modules of the whole model."""
        super().post_init()
        self._tp_plan = {}
        self._fsdp_plan = {}

    @staticmethod
    def require_one_input(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The one input that is given."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds, on each side")
        return inputs_embeds if input_ids is None else input_ids

    def check_length(self, length: int) -> None:
        """Refuse a sequence of more tokens than there are positions."""
        longest = self.config.max_position_embeddings
        if length > longest:
            raise ValueError(f"a sequence has {length} tokens, but max_position_embeddings is {longest}: truncate it")

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        """Look tokens up, normalise, scale, place and drop them, as the first layer takes them."""
        config = self.config
        if inputs_embeds is None:
            if self.training and config.word_dropout > 0:
                is_dropped = torch.rand(input_ids.shape, device=input_ids.device) < config.word_dropout
                # Word dropout leaves padding as it is, because the masks were made of it.
                input_ids = input_ids.masked_fill(is_dropped & input_ids.ne(config.pad_token_id), config.unk_token_id)
            inputs_embeds = self.embed_tokens(input_ids)  # The embeddings have the shape [batch, length, d_model].
        if config.embedding_norm == "fix_norm":
            inputs_embeds = unit_length(inputs_embeds)
        # Embeddings of words start with a spread of 1/√d and positions have size 1, so without a factor of √d
        # positions would drown words.
        if config.scale_embedding:
            inputs_embeds = inputs_embeds * math.sqrt(config.d_model)
        if self.embedding_bias is not None:
            inputs_embeds = inputs_embeds + self.embedding_bias
        placed = self.embed_positions(positions + config.position_offset)
        hidden_states = inputs_embeds + placed.to(inputs_embeds.dtype)
        if self.embedding_norm is not None:
            hidden_states = self.embedding_norm(hidden_states)
        return apply_dropout(hidden_states, self.dropout, self.training)

    def run_layers(self, hidden_states: Tensor, *arguments) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Hidden states after all layers and the last norm, and what each layer has of row statistics."""
        rows = []
        hidden_states = own_rows(hidden_states)
        for layer in self.layers:
            hidden_states, *layer_rows = layer(hidden_states, *arguments)
            rows.append(tuple(layer_rows))
        return all_rows(hidden_states if self.norm is None else self.norm(hidden_states)), rows


class Seq2SeqTransformerEncoder(TransformerStack):
    """Encoder: embeddings and `encoder_layers` layers."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}

    def __init__(self, config: Seq2SeqTransformerConfig):
        layers = [EncoderLayer(config, layer_idx) for layer_idx in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_null_rate: bool | None = None,
    ) -> Seq2SeqTransformerEncoderOutput:
        """Encode `input_ids` [batch, length]; `attention_mask` is 1 for real tokens, `use_cache` changes nothing."""
        given = self.require_one_input(input_ids, inputs_embeds)
        length, device = given.shape[1], given.device
        self.check_length(length)
        mask = padding_mask(attention_mask, length, length, device)
        mask = own_mask(replace(mask, query_mask=mask.key_padding_mask))
        options = self.attention_options(mask, output_attentions, output_null_rate)
        positions = token_positions(length, 0, attention_mask, device)
        hidden_states = self.embed(input_ids, inputs_embeds, positions)
        hidden_states, rows = self.run_layers(hidden_states, options)
        site_rows = self.site_rows(rows, mask, "encoder")
        return Seq2SeqTransformerEncoderOutput(last_hidden_state=hidden_states, site_rows=site_rows or None)


class Seq2SeqTransformerDecoder(TransformerStack):
    """Decoder: embeddings and `decoder_layers` layers."""

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: Seq2SeqTransformerConfig):
        layers = [DecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers)]
        super().__init__(config, config.target_vocab_size, layers)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        query_mask: Tensor | None = None,
        cache: Cache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        output_null_rate: bool | None = None,
    ) -> Seq2SeqTransformerDecoderOutput:
        """Decode `input_ids` [batch, length], which follow the tokens in `past_key_values`, or `cache`.

        The source may have fewer rows [batch / beams, source_len]: each is that of so many rows side by side, and
        weights of cross-attention are then [batch / beams, heads, beams · target_len, source_len].
        """
        given = self.require_one_input(input_ids, inputs_embeds)
        length, device = given.shape[1], given.device
        cache = self.writable_cache(one_cache(past_key_values, cache))
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past_len, key_len = 0, length
        if cache is not None:
            self.check_masks(cache, attention_mask=encoder_attention_mask, decoder_attention_mask=attention_mask)
            past_len = cache.get_seq_length()
            key_len, _ = cache.get_mask_sizes(length, 0)
        # The length behind a static cache is not checked: such a cache keeps its count on the device, and ends at its
        # full length.
        if isinstance(past_len, int):
            self.check_length(past_len + length)
        mask = causal_mask(length, key_len, past_len, attention_mask, device)
        positions = token_positions(length, past_len, attention_mask, device)
        hidden_states = self.embed(input_ids, inputs_embeds, positions)
        (sources, source_len), rows = encoder_hidden_states.shape[:2], given.shape[0]
        if not sources or rows % sources:
            raise ValueError(f"the target has {rows} rows, but must have a multiple of the source's {sources}")
        queries = length * (rows // sources)
        # Padding of the target does not count as queries in statistics.
        if query_mask is None and attention_mask is not None and attention_mask.dim() == 2:
            query_mask = attention_mask[:, -length:].bool().expand(rows, -1)
        source_mask = padding_mask(encoder_attention_mask, queries, source_len, device, is_cross=True)
        if query_mask is not None:
            mask = replace(mask, query_mask=query_mask)
            source_mask = replace(source_mask, query_mask=query_mask.reshape(sources, queries))
        mask = own_mask(mask)
        source_mask = own_mask(source_mask)
        self_options, cross_options = (
            self.attention_options(site_mask, output_attentions, output_null_rate) for site_mask in (mask, source_mask)
        )
        # The cache is given by position, because transformers' checkpointing would set a cache that is given by name
        # to None.
        hidden_states, layer_rows = self.run_layers(
            hidden_states, encoder_hidden_states, self_options, cross_options, cache
        )
        site_rows = self.site_rows([part[:2] for part in layer_rows], mask, "decoder")
        site_rows += self.site_rows([part[2:] for part in layer_rows], source_mask, "cross")
        return Seq2SeqTransformerDecoderOutput(
            last_hidden_state=hidden_states, site_rows=site_rows or None, **{CACHE_NAME: cache}
        )

    @staticmethod
    def check_masks(cache: EncoderDecoderCache, **masks: Tensor | None) -> None:
        """Refuse to read a cache that was written under a mask, and may hold padding, without that mask."""
        # Masks of a cache need no check in compiled code: only `generate` compiles the decoder, and has one set of
        # masks for all steps.
        if torch.compiler.is_compiling():
            return
        written_under = cache.__dict__.setdefault("written_under", set())
        for name, mask in masks.items():
            if mask is not None:
                written_under.add(name)
            elif name in written_under and int(cache.get_seq_length()) == 0:
                # A cache that was written and is empty again was reset: it may begin a sequence without padding.
                written_under.discard(name)
            elif name in written_under:
                raise ValueError(f"the cache was written under an {name} that is missing now: give it for all tokens")

    def writable_cache(self, cache: Cache | None) -> EncoderDecoderCache | None:
        """The cache that the layers read and write; None where the backward pass computes them again."""
        if cache is None or not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return cache
        if cache.get_seq_length() > 0:
            raise ValueError(
                f"past_key_values holds {int(cache.get_seq_length())} tokens, but with gradient checkpointing it must "
                "be empty in training: leave one of the two out"
            )
        return None


class Seq2SeqTransformerModel(Seq2SeqTransformerPreTrainedModel):
    """Encoder and decoder without a head; the softmax baseline and the code of every family."""

    def __init__(self, config: Seq2SeqTransformerConfig):
        super().__init__(config)
        self.encoder = Seq2SeqTransformerEncoder(config)
        self.decoder = Seq2SeqTransformerDecoder(config)
        self.post_init()

    # The tied weights are a property, because the configuration says which weights are shared.
    @property
    def _tied_weights_keys(self) -> dict[str, str] | None:
        is_one = self.config.tying == "all"
        return {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"} if is_one else None

    def get_input_embeddings(self) -> nn.Embedding:
        """Embeddings of the source."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace those of the source, and of the target too where they are tied."""
        self.encoder.embed_tokens = value
        if self.config.tying == "all":
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_query_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs,
    ) -> Seq2SeqTransformerOutput:
        """Encode the source unless `encoder_outputs` are given, and decode the target.

        Args:
            input_ids: [batch, source_len].
            attention_mask: 1 = real source token [batch, source_len].
            decoder_input_ids: [batch, target_len].
            decoder_attention_mask: 1 = real target token, past ones included.
            encoder_outputs: of an earlier call; `inputs_embeds`, `decoder_inputs_embeds`: in place of the ids.
            past_key_values, cache: two names of the cache of earlier target tokens.
            decoder_query_mask: bool, True = real target token [batch, target_len]; for the regulariser and the null
                rate.
            kwargs: `output_attentions`, `output_hidden_states` and `output_null_rate`: what else to return.
        """
        encoder_rows, cache = None, one_cache(past_key_values, cache)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
            # Row statistics of the encoder count only in the call that computed them.
            encoder_rows = encoder_outputs.site_rows
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(last_hidden_state=encoder_outputs[0])
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            query_mask=decoder_query_mask,
            **kwargs,
        )
        return Seq2SeqTransformerOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            site_rows=[*(encoder_rows or ()), *(decoder_outputs.site_rows or ())] or None,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
        )


# The search of the installed library is faster than transformers' and gives the same tokens.
SearchMixin = GenerationMixin if kernels is None else kernels.SearchMixin


class Seq2SeqTransformerForConditionalGeneration(
    Seq2SeqTransformerPreTrainedModel, CheckedGenerationMixin, SearchMixin
):
    """Translation model: encoder, decoder and output layer, with `generate` and a loss."""

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: Seq2SeqTransformerConfig):
        super().__init__(config)
        self.model = Seq2SeqTransformerModel(config)
        linear = UnitLinear if config.embedding_norm == "fix_norm" else nn.Linear
        self.lm_head = linear(config.d_model, config.target_vocab_size, bias=config.output_bias)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Open as transformers does; the translation pipeline opens a target tokenizer of the same revision."""
        opened = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        # With output_loading_info, `from_pretrained` returns a tuple.
        model = opened[0] if isinstance(opened, tuple) else opened
        model.opened_revision = kwargs.get("revision")
        return opened

    @property
    def _tied_weights_keys(self) -> dict[str, str] | None:
        side = {"all": "encoder", "decoder": "decoder"}.get(self.config.tying)
        return {"lm_head.weight": f"model.{side}.embed_tokens.weight"} if side else None

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the output layer; a plain one, as resizing makes it, gets rows of unit length under FixNorm."""
        if self.config.embedding_norm == "fix_norm" and not isinstance(value, UnitLinear):
            plain, value = value, UnitLinear(value.in_features, value.out_features, device="meta")
            value.weight, value.bias = plain.weight, plain.bias
            # Without this mark `post_init` would replace loaded weights of the output layer by random ones.
            value._is_hf_initialized = getattr(plain, "_is_hf_initialized", False)
        self.lm_head = value

    def generate(self, inputs=None, generation_config: GenerationConfig | None = None, *args, **kwargs):
        """Generate as transformers does; a saved `max_length` or `max_new_tokens` does not overrule a given other.

        Raises:
            ValueError: `prefill_chunk_size` is given, by which transformers would cut the mask of the source.
        """
        size = getattr(generation_config or self.generation_config, "prefill_chunk_size", None)
        if size := kwargs.get("prefill_chunk_size", size):
            raise ValueError(f"prefill_chunk_size is {size}, but must be None: this model has a source of its own")
        # The caller's limit of length must win over the other kind of limit, which the model was saved with.
        if generation_config is None:
            for name, other in (("max_new_tokens", "max_length"), ("max_length", "max_new_tokens")):
                if kwargs.get(name) is not None:
                    kwargs.setdefault(other, None)
        return super().generate(inputs, generation_config, *args, **kwargs)

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args, **kwargs) -> dict[str, Any]:
        """Prepare as transformers does, but begin behind what the cache holds, and leave tokenizers out."""
        cache, given = one_cache(kwargs.get("past_key_values"), kwargs.get("cache")), input_ids.shape[1]
        for name in ("tokenizer", "assistant_tokenizer"):  # `generate` needs tokenizers only to read `stop_strings`.
            kwargs.pop(name, None)
        # In later iterations of `generate` the cache may hold a prefix too.
        if cache is not None and kwargs.get("is_first_iteration"):
            held = int(cache.get_seq_length())
            if held >= given:
                raise ValueError(f"decoder_input_ids has {given} tokens, but the cache holds {held} already")
            kwargs["next_sequence_length"] = given - held
        self.model.decoder.check_length(given)
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs) -> Tensor | None:
        """The target mask as it is: with a static cache `generate` would make it an additive one, ours are boolean."""
        return attention_mask

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels [batch, target_len] shifted right behind what `label_shift` says, −100 replaced by padding."""
        if self.config.label_shift == "last_label":
            count = (labels.ne(-100) & labels.ne(self.config.pad_token_id)).sum(-1, keepdim=True)
            first = labels.gather(1, (count - 1).clamp_min(0))
        else:
            first = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        shifted = torch.cat([first, labels[:, :-1]], dim=1)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cache: Cache | None = None,
        **kwargs,
    ) -> Seq2SeqTransformerLMOutput:
        r"""Compute logits of the next tokens, and with labels the loss.

        loss = Σ_t CE_t / N + R · T / N: R the regulariser's mean over this batch's query rows, T its target tokens
        and N `num_items_in_batch` (T if not given), so that the parts of an accumulated batch add up. In evaluation
        it is plain cross-entropy, without smoothing and regulariser.

        Args:
            labels: target ids, −100 where there is none [batch, target_len]; `decoder_input_ids` are made from them.
            num_items_in_batch: number of target tokens over all accumulated batches and processes.
            others: as in `Seq2SeqTransformerModel.forward`.
        """
        query_mask = None
        if labels is not None:
            labels = labels.long()
            # With labels all target tokens are read at once, so a cache would only cost memory.
            use_cache, query_mask = False, labels.ne(-100)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            decoder_query_mask=query_mask,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        regularization_loss, null_rate = self.regularize(outputs.site_rows, labels)
        loss = None if labels is None else self.compute_loss(logits, labels, regularization_loss, num_items_in_batch)
        own = {"last_hidden_state", "site_rows"}
        return Seq2SeqTransformerLMOutput(
            loss=loss,
            logits=logits,
            regularization_loss=regularization_loss,
            null_rate=null_rate,
            **{name: value for name, value in outputs.items() if name not in own},
        )

    def compute_loss(
        self,
        logits: Tensor,
        labels: Tensor,
        regularization_loss: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Compute cross-entropy per target token, smoothed in training, plus this batch's share of the regulariser."""
        labels = labels.to(logits.device)
        # The cross-entropy stays a sum here, because the divisor may count tokens of other batches and processes too.
        cross_entropy = functional.cross_entropy(
            at_least_float32(logits).flatten(0, 1),
            labels.flatten(),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.config.label_smoothing if self.training else 0.0,
        )
        num_tokens = labels.ne(-100).sum()
        num_items = num_tokens if num_items_in_batch is None else num_items_in_batch
        # The loss of a batch without a target token is 0.
        num_items = num_items.to(logits.device).clamp_min(1) if isinstance(num_items, Tensor) else max(num_items, 1)
        loss = cross_entropy / num_items
        if regularization_loss is not None:
            loss = loss + regularization_loss.to(loss.device) * (num_tokens / num_items)
        return loss


class ReLUFormerModel(Seq2SeqTransformerModel):
    """ReLUFormer without a head (Shen et al. 2023)."""

    config: ReLUFormerConfig


class ReLUFormerForConditionalGeneration(Seq2SeqTransformerForConditionalGeneration):
    """ReLUFormer for translation (Shen et al. 2023)."""

    config: ReLUFormerConfig


class ReLAModel(Seq2SeqTransformerModel):
    """Transformer with rectified linear attention, without a head (Zhang et al. 2021)."""

    config: ReLAConfig


class ReLAForConditionalGeneration(Seq2SeqTransformerForConditionalGeneration):
    """Transformer with rectified linear attention for translation (Zhang et al. 2021)."""

    config: ReLAConfig


class QKNormModel(Seq2SeqTransformerModel):
    """Transformer with query-key normalisation, without a head (Henry et al. 2020)."""

    config: QKNormConfig


class QKNormForConditionalGeneration(Seq2SeqTransformerForConditionalGeneration):
    """Transformer with query-key normalisation for translation (Henry et al. 2020)."""

    config: QKNormConfig
