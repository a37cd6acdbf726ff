"""The graphs of a translation model: its encoder, and its decoder with a cache, as optimum cuts and names them."""

from collections.abc import Iterator

import onnx
import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.utils import ModelOutput

from reluformers.onnx.graphs import export_graph, merge_branches
from reluformers.onnx.precision import convert_precision

ENCODER, DECODER = "encoder_model", "decoder_model_merged"
SWITCH = "use_cache_branch"
_ROWS, _SOURCES = "batch_size", "encoder_batch_size"


def past_names(config) -> list[str]:
    """Names of keys and values that the decoder takes, layer by layer: of the target, then of the source."""
    return [
        f"past_key_values.{layer}.{side}.{kind}"
        for layer in range(config.decoder_layers)
        for side in ("decoder", "encoder")
        for kind in ("key", "value")
    ]


def present_name(past: str) -> str:
    """Name of the output that becomes an input of the next step."""
    return past.replace("past_key_values", "present")


def _numbered(outputs: ModelOutput, *kinds: str) -> dict[str, Tensor]:
    """Outputs `kind.0`, `kind.1`, … of the layers' weights; none where a model gives none."""
    layers = ((kind, getattr(outputs, kind) or ()) for kind in kinds)
    return {f"{kind}.{number}": weights for kind, weights in layers for number, weights in enumerate(weights)}


class _Encoder(nn.Module):
    def __init__(self, model: PreTrainedModel, attentions: bool):
        super().__init__()
        self.encoder, self.attentions = model.get_encoder(), attentions

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = self.encoder(**inputs, output_attentions=self.attentions)
        layers = {f"encoder_{name}": weights for name, weights in _numbered(outputs, "attentions").items()}
        return {"last_hidden_state": outputs.last_hidden_state, **layers}


class _SourceStates(nn.Module):
    """Keys and values of the source, which the first step makes and all others are given."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.layers = nn.ModuleList(layer.cross_attn for layer in model.model.decoder.layers)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        (states,) = inputs.values()
        made = {}
        for number, attention in enumerate(self.layers):
            key, value = attention._keys_and_values(states, states, None)
            made |= {f"{number}.key": key, f"{number}.value": value}
        return made


class _Decoder(nn.Module):
    """Steps behind a cache that already has the keys and values of the source."""

    def __init__(self, model: PreTrainedModel, attentions: bool):
        super().__init__()
        self.decoder, self.head, self.attentions = model.model.decoder, model.lm_head, attentions

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        own, source = DynamicCache(), DynamicCache()
        cache = EncoderDecoderCache(own, source)
        past = iter(inputs[name] for name in past_names(self.decoder.config))
        for layer in range(self.decoder.config.decoder_layers):
            own.update(next(past), next(past), layer)
            source.update(next(past), next(past), layer)
            cache.is_updated[layer] = True
        outputs = self.decoder(
            input_ids=inputs["input_ids"],
            encoder_hidden_states=inputs["encoder_hidden_states"],
            encoder_attention_mask=inputs["encoder_attention_mask"],
            past_key_values=cache,
            use_cache=True,
            output_attentions=self.attentions,
        )
        states = [tensor for layer in own.layers for tensor in (layer.keys, layer.values)]
        names = [name for name in past_names(self.decoder.config) if ".decoder." in name]
        return {
            "logits": self.head(outputs.last_hidden_state),
            **{present_name(name): tensor for name, tensor in zip(names, states, strict=True)},
            **{f"decoder_{name}": weights for name, weights in _numbered(outputs, "attentions").items()},
            **_numbered(outputs, "cross_attentions"),
        }


def export_graphs(
    model: PreTrainedModel, precisions: tuple[str, ...], attentions: bool
) -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """Export the encoder, and the decoder with its cache.

    Rows of the target may be a multiple of the source's, as those of beams are.

    Args:
        model: on the processor, in float32.
        precisions: some of `SUFFIXES`.
        attentions: whether the weights of each layer are outputs too: `encoder_attentions.0`, ….

    Yields:
        Name, precision and graph.
    """
    config = model.config
    sources, rows, source_len, length, past = 3, 6, 7, 5, 4
    mask = torch.ones(sources, source_len, dtype=torch.long)
    states = torch.randn(sources, source_len, config.d_model)
    heads = config.decoder_attention_heads
    of_source = (_SOURCES, "encoder_sequence_length")
    given = {
        "encoder_attention_mask": (mask, of_source),
        "input_ids": (torch.ones(rows, length, dtype=torch.long), (_ROWS, "decoder_sequence_length")),
        "encoder_hidden_states": (states, (*of_source, None)),
    }
    kept, passed = {}, {}
    for name in past_names(config):
        _, layer, side, kind = name.split(".")
        is_own = side == "decoder"
        shape = (rows, past) if is_own else (sources, source_len)
        axes = (_ROWS, "past_decoder_sequence_length") if is_own else of_source
        state = torch.randn(shape[0], heads, shape[1], config.d_model // heads)
        given[name] = state, (axes[0], None, axes[1], None)
        kept[name] = None if is_own else f"{layer}.{kind}"
        if not is_own:
            passed[name] = present_name(name)
    before = config._attn_implementation
    model.set_attn_implementation("eager")  # of standard operators alone
    # one tensor for both would be one input
    encoder_inputs = {"input_ids": (torch.ones_like(mask), of_source), "attention_mask": (mask, of_source)}
    encoder = export_graph(_Encoder(model, attentions), encoder_inputs)
    first = export_graph(_SourceStates(model), {"encoder_hidden_states": given["encoder_hidden_states"]})
    body = export_graph(_Decoder(model, attentions), given)
    model.set_attn_implementation(before)
    for precision in precisions:
        parts = [convert_precision(graph, precision) for graph in (body, first)]
        yield ENCODER, precision, convert_precision(encoder, precision)
        yield DECODER, precision, merge_branches(*parts, SWITCH, kept, passed)
