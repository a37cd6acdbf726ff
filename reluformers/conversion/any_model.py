"""From any model of transformers to the same with another attention, whole or as its parameters alone."""

from collections.abc import Sequence
from pathlib import Path

import transformers
from transformers import PreTrainedModel

from reluformers.exchange import exchange_attention, save_adapter
from reluformers.families import config_class_of
from reluformers.files import atomic_directory, check_output_folder
from reluformers.saved_models import check_weights, load_config, opening

from .convert import Opened, read_config_file, write_model
from .sources import SOURCES
from .timm_models import is_timm


def is_exchanged_as_it_is(source: str | Path) -> bool:
    """Whether a model keeps its own class: it is none that `convert` makes one of ours."""
    if is_timm(read_config_file(str(source))):
        return False
    model_type = load_config(str(source)).model_type
    return model_type not in SOURCES and config_class_of(model_type) is None


def exchange_source(
    source: str | Path,
    folder: str | Path,
    preset: str,
    sites: Sequence[str] | None = None,
    *,
    adapter: bool = False,
    overwrite: bool = False,
) -> PreTrainedModel:
    """Write a model of transformers with another attention, with its tokenizer or processor and where it is from.

    Args:
        source: folder or Hub id.
        folder: to write, whole or not at all.
        preset: the attention.
        sites: patterns of names of attention modules; None for all.
        adapter: whether to write the parameters of the attention alone.
        overwrite: whether to replace a folder that is there.
    """
    place = str(source)
    check_output_folder(folder, source)
    config = load_config(place)
    with opening(place, "a model of transformers"):
        model_class = getattr(transformers, config.architectures[0])
        model, info = model_class.from_pretrained(place, output_loading_info=True, ignore_mismatched_sizes=True)
    check_weights(place, info)
    exchange_attention(model, preset, sites)
    if not adapter:
        return write_model(model, Opened(place, model_class, {}, {}), folder, overwrite)
    with atomic_directory(folder, overwrite=overwrite) as unfinished:
        save_adapter(model, unfinished)
    return model
