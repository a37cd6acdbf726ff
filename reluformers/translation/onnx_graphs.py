"""The graphs of a translation model: its encoder, and its decoder with a cache, as optimum cuts and names them."""

from collections.abc import Iterator
from functools import partial

import onnx
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from reluformers.onnx.graphs import export_graph, merge_branches, numbered_layers
from reluformers.onnx.precision import convert_precision

ENCODER = "encoder_model"
DECODER = "decoder_model_merged"
SWITCH = "use_cache_branch"
_ROWS = "batch_size"
_SOURCES = "encoder_batch_size"


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


def _encode(model: PreTrainedModel, attentions: bool, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    outputs = model.get_encoder()(**inputs, output_attentions=attentions)
    layers = {f"encoder_{name}": weights for name, weights in numbered_layers(outputs, "attentions").items()}
    return {"last_hidden_state": outputs.last_hidden_state, **layers}


def _make_source_states(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys and values of the source, which the first step makes and all others are given."""
    (states,) = inputs.values()
    made = {}
    for number, layer in enumerate(model.model.decoder.layers):
        key, value = layer.cross_attn._keys_and_values(states, states, None)
        made |= {f"{number}.key": key, f"{number}.value": value}
    return made


def _decode(model: PreTrainedModel, attentions: bool, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Decode behind a cache that already has the keys and values of the source."""
    own = DynamicCache()
    source = DynamicCache()
    cache = EncoderDecoderCache(own, source)
    past = iter(inputs[name] for name in past_names(model.config))
    for layer in range(model.config.decoder_layers):
        own.update(next(past), next(past), layer)
        source.update(next(past), next(past), layer)
        cache.is_updated[layer] = True
    outputs = model.model.decoder(
        input_ids=inputs["input_ids"],
        encoder_hidden_states=inputs["encoder_hidden_states"],
        encoder_attention_mask=inputs["encoder_attention_mask"],
        past_key_values=cache,
        use_cache=True,
        output_attentions=attentions,
    )
    states = [tensor for layer in own.layers for tensor in (layer.keys, layer.values)]
    names = [name for name in past_names(model.config) if ".decoder." in name]
    return {
        "logits": model.lm_head(outputs.last_hidden_state),
        **{present_name(name): tensor for name, tensor in zip(names, states, strict=True)},
        **{f"decoder_{name}": weights for name, weights in numbered_layers(outputs, "attentions").items()},
        **numbered_layers(outputs, "cross_attentions"),
    }


def export_translation_graphs(
    model: PreTrainedModel, precisions: tuple[str, ...], attentions: bool
) -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """Export a translation model as ONNX graphs: the encoder, and the decoder with its cache, in each precision.

    Rows of the target may be a multiple of the source's, as those of beams are.

    Args:
        model: on the CPU, in float32, with the attention "eager".
        precisions: some of `SUFFIXES`.
        attentions: whether the weights of each layer are outputs too: `encoder_attentions.0`, ….

    Yields:
        Name, precision and graph.
    """
    config = model.config
    sources = 3
    rows = 6
    source_len = 7
    length = 5
    past = 4
    mask = torch.ones(sources, source_len, dtype=torch.long)
    states = torch.randn(sources, source_len, config.d_model)
    heads = config.decoder_attention_heads
    of_source = (_SOURCES, "encoder_sequence_length")
    given = {
        "encoder_attention_mask": (mask, of_source),
        "input_ids": (torch.ones(rows, length, dtype=torch.long), (_ROWS, "decoder_sequence_length")),
        "encoder_hidden_states": (states, (*of_source, None)),
    }
    kept = {}
    passed = {}
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
    # Two tensors, because the exporter would make one input of one tensor.
    encoder_inputs = {"input_ids": (torch.ones_like(mask), of_source), "attention_mask": (mask, of_source)}
    encoder = export_graph(model, partial(_encode, model, attentions), encoder_inputs)
    states_inputs = {"encoder_hidden_states": given["encoder_hidden_states"]}
    first = export_graph(model, partial(_make_source_states, model), states_inputs)
    body = export_graph(model, partial(_decode, model, attentions), given)
    for precision in precisions:
        parts = [convert_precision(graph, precision) for graph in (body, first)]
        yield ENCODER, precision, convert_precision(encoder, precision)
        yield DECODER, precision, merge_branches(*parts, SWITCH, kept, passed)
