"""Weights of a saved model, read where they lie and not into memory, under our names or under others'."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import load_state_dict
from transformers.utils import cached_file, has_file

from reluformers.saved_models import check_weights, read_index

from .names import SHARED_NAMES, rename, reversed_table
from .sources import Source

_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENS = "embed_tokens.weight"
_ENCODER_TOKENS = f"model.encoder.{_TOKENS}"
_DECODER_TOKENS = f"model.decoder.{_TOKENS}"
# For each value of `tying`, these names are one matrix.
_TIED = {
    "all": (_ENCODER_TOKENS, _DECODER_TOKENS, "lm_head.weight"),
    "decoder": (_DECODER_TOKENS, "lm_head.weight"),
    "none": (),
}

State = dict[str, Tensor]


def read_weights(name_or_path: str | Path) -> State:
    """All tensors of a folder or Hub id by name, mapped from its files: one `.safetensors` or `.bin`, or several."""
    name = str(name_or_path)
    weights_file = next((file for file in _FILES if has_file(name, file)), _FILES[0])
    path = Path(cached_file(name, weights_file))
    if not weights_file.endswith(".json"):
        return load_state_dict(path)
    weights: State = {}
    for shard in read_index(path):
        weights |= load_state_dict(cached_file(name, shard))
    return weights


def load_renamed(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    weights: State,
    name_or_path: str,
    *,
    may_miss: Sequence[str] = (),
) -> PreTrainedModel:
    """Make a model of weights that have its names, in their dtype and in evaluation mode; none of them is copied.

    Args:
        model_class, config: of the model.
        weights: by its names.
        name_or_path: where they come from, for errors.
        may_miss: patterns of names, from their beginning, of weights that may start anew.

    Raises:
        ValueError: a weight is missing, unknown to the model, or of another shape.
    """
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    model, info = model_class.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    missing = info["missing_keys"]
    info["missing_keys"] = [name for name in missing if not any(re.match(pattern, name) for pattern in may_miss)]
    if unexpected := sorted(info["unexpected_keys"]):
        raise ValueError(f"{name_or_path}: has the weight {unexpected[0]}, which the model does not have")
    check_weights(name_or_path, model, info)
    return model.eval()


def keep_one_of_tied(weights: State, tying: str) -> None:
    """Keep one of several matrices that are tied, under the first of their names, whichever of them a file has."""
    names = _TIED[tying]
    if tied := [weights.pop(name) for name in names if name in weights]:
        weights[names[0]] = tied[0]


def to_ours(weights: State, source: Source, tying: str) -> State:
    """Rename the weights of a model of transformers to our names.

    Args:
        weights: by the names of its files; moved out of this dict.
        source: its kind.
        tying: of our configuration; of tied matrices one is kept.
    """
    if not source.is_seq2seq:
        return {rename(name, source.names): weights.pop(name) for name in list(weights)}
    renamed: State = {}
    # A model that was saved without its head has no such prefix.
    is_whole = any(name.startswith("model.") for name in weights)
    for name in list(weights):
        tensor = weights.pop(name)
        if name.endswith(source.ignored):
            continue
        prefix = "" if is_whole or name == "final_logits_bias" else "model."
        renamed[prefix + rename(name, source.names)] = tensor
    shared = renamed.pop("model.shared.weight", None)
    if tying == "all" and shared is not None:
        renamed[_ENCODER_TOKENS] = shared
    keep_one_of_tied(renamed, tying)
    if "lm_head.bias" in renamed:
        renamed["lm_head.bias"] = renamed["lm_head.bias"].flatten()
    return renamed


def to_theirs(weights: State, source: Source, tying: str) -> State:
    """Our weights under the names of a model of transformers; the way back of `to_ours`."""
    table: Mapping[str, str] = reversed_table(source.names)
    if not source.is_seq2seq:
        return {rename(name, table): weights.pop(name) for name in list(weights)}
    keep_one_of_tied(weights, tying)
    if tying == "all":
        table = {**table, **reversed_table(SHARED_NAMES)}
    renamed = {rename(name, table): weights.pop(name) for name in list(weights)}
    if "final_logits_bias" in renamed:
        renamed["final_logits_bias"] = renamed["final_logits_bias"][None]
    if tying == "none" and source.config_class.model_type != "marian":  # Their models have a third matrix.
        # Without a copy, only one of the two would be saved.
        renamed["model.shared.weight"] = renamed[_ENCODER_TOKENS].clone()
    return renamed
