# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""What all models share: abilities, the initialisation of shared modules, attention options and the regulariser."""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.pytorch_utils import id_tensor_storage
from transformers.utils import logging

from ..configuration.configuration_base import TransformerConfig
from .attention import DEFAULT_BACKEND, MultiHeadAttention, attention_backend
from .context_parallel import sum_of_processes
from .feed_forward import FeedForward
from .masks import AttentionMask
from .normalization import NormGate, ScaleNorm
from .regularization import SiteRows, regularizer_sums

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
