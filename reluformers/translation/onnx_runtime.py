"""Translates with exported graphs by onnxruntime, by the search of transformers."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationMixin, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from reluformers.modeling.modeling_seq2seq import CACHE_NAME, one_cache
from reluformers.onnx.sessions import OnnxModel, Session

from .onnx_graphs import DECODER, ENCODER, SWITCH, past_names, present_name
from .tokenization import Tokenizers, load_tokenizers


def check_length(length: int, longest: int) -> None:
    """Refuse a sequence of more tokens than a graph has positions, where it would compute anything."""
    if length > longest:
        raise ValueError(f"a sequence has {length} tokens, but max_position_embeddings is {longest}: truncate it")


class _Encoder(nn.Module):
    main_input_name = "input_ids"

    def __init__(self, session: Session, longest: int):
        super().__init__()
        self.session = session
        self.longest = longest

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput:
        """Encode; graphs give no hidden states, and this always a dict."""
        check_length(input_ids.shape[1], self.longest)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        weights = self.session.layers_of("encoder_attentions") if output_attentions else []
        outputs = self.session({"input_ids": input_ids, "attention_mask": mask}, ["last_hidden_state", *weights])
        attentions = tuple(outputs[name] for name in weights) or None
        return BaseModelOutput(last_hidden_state=outputs["last_hidden_state"], attentions=attentions)


class OnnxTranslator(OnnxModel, GenerationMixin):
    """A translation model in onnxruntime, with `generate`.

    Args:
        config: of the exported folder.
        encoder, decoder: its graphs.
    """

    main_input_name = "input_ids"
    graph_names = (ENCODER, DECODER)

    def __init__(self, config: PreTrainedConfig, encoder: Session, decoder: Session):
        super().__init__(config)
        self.encoder = _Encoder(encoder, config.max_position_embeddings)
        self.session = decoder

    def get_encoder(self, *_, **__) -> nn.Module:
        """The encoder, as `generate` calls it."""
        return self.encoder

    def get_output_embeddings(self) -> nn.Module:
        """A stand-in: the graph keeps its own."""
        return nn.Identity()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **caches: Cache | None,
    ) -> Seq2SeqLMOutput:
        """Compute logits of the next tokens, as `Seq2SeqTransformerForConditionalGeneration.forward` gives them.

        Args:
            caches: `past_key_values` or `cache`, see `one_cache`; no other keyword.

        Raises:
            ValueError: attentions are asked for that the graphs were exported without.
        """
        given = encoder_outputs is not None
        if not given:
            encoder_outputs = self.encoder(input_ids, attention_mask, output_attentions)
        cache = one_cache(**{"past_key_values": None, "cache": None, **caches})
        if cache is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        kinds = ("decoder_attentions", "cross_attentions")
        weights = self.attentions_of(self.session, *kinds) if output_attentions else []
        outputs = self._step(encoder_outputs[0], attention_mask, decoder_input_ids, cache, weights)

        layers = {
            kind: tuple(outputs[name] for name in weights if name.startswith(kind)) if weights else None
            for kind in kinds
        }
        return Seq2SeqLMOutput(
            logits=outputs["logits"],
            **layers,
            encoder_last_hidden_state=encoder_outputs[0],
            encoder_attentions=None if given else encoder_outputs.attentions,
            **{CACHE_NAME: cache if use_cache else None},
        )

    def _step(
        self,
        states: Tensor,
        attention_mask: Tensor | None,
        tokens: Tensor,
        cache: EncoderDecoderCache,
        wanted: list[str],
    ) -> dict[str, Tensor]:
        """Run the decoder behind what the cache holds, and add to that what it has computed."""
        own = cache.self_attention_cache
        source = cache.cross_attention_cache
        config = self.config
        is_first = not cache.is_updated.get(0)
        held = own.get_seq_length()
        check_length(held + tokens.shape[1], config.max_position_embeddings)
        heads = config.decoder_attention_heads
        none = states.new_empty(len(tokens), heads, 0, config.d_model // heads)
        no_source = states.new_empty(len(states), *none.shape[1:])
        past = []
        for layer in range(config.decoder_layers):
            past += own.update(none, none, layer)  # Adding nothing returns all that the cache holds.
            past += (no_source, no_source) if is_first else (source.layers[layer].keys, source.layers[layer].values)
        names = past_names(config)
        new = [name for name in names if is_first or ".decoder." in name]
        mask = states.new_ones(states.shape[:2]) if attention_mask is None else attention_mask
        outputs = self.session(
            {
                "encoder_attention_mask": mask.long(),
                "input_ids": tokens,
                "encoder_hidden_states": states,
                SWITCH: torch.tensor([not is_first]),
                **dict(zip(names, past, strict=True)),
            },
            ["logits", *map(present_name, new), *wanted],
        )
        present = [outputs[present_name(name)] for name in new]
        per_layer = len(present) // config.decoder_layers
        for layer in range(config.decoder_layers):
            key, value, *of_source = present[layer * per_layer : (layer + 1) * per_layer]
            own.update(key[:, :, held:], value[:, :, held:], layer)
            if of_source:
                source.update(*of_source, layer)
                cache.is_updated[layer] = True
        return outputs


def load_onnx_translator(folder: str | Path, precision: str | None = None) -> tuple[OnnxTranslator, Tokenizers]:
    """Open an exported translation model and its tokenizers; arguments and errors as in `OnnxModel.from_folder`."""
    model = OnnxTranslator.from_folder(folder, precision)
    return model, load_tokenizers(folder, model.config)
