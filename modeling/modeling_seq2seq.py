# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Encoder–decoder Transformers for translation whose families differ by their configuration alone."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig, GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..configuration.configuration_seq2seq import (
    QKNormConfig,
    ReLAConfig,
    ReLUFormerConfig,
    Seq2SeqTransformerConfig,
)
from .attention import MultiHeadAttention
from .context_parallel import all_rows, own_mask, own_rows
from .embeddings import SinusoidalPositions
from .generation_check import CheckedGenerationMixin
from .kernels import apply_dropout, kernels
from .layers import EncoderLayer, TransformerLayer
from .modeling_base import TransformerPreTrainedModel
from .normalization import UnitLinear, at_least_float32, build_norm, unit_length
from .regularization import SiteRows
from .sequence_masks import causal_mask, padding_mask, token_positions

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
