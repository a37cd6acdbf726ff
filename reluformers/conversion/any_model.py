"""From any model of transformers to the same with another attention, whole or as its parameters alone."""

import logging
from collections.abc import Sequence
from pathlib import Path

import transformers
from transformers import AutoProcessor, PreTrainedModel

from reluformers.errors import describe_error
from reluformers.exchange import exchange_attention, save_adapter
from reluformers.families import config_class_of
from reluformers.files import atomic_directory, check_output_folder
from reluformers.saved_models import check_weights, load_config, opening

from .convert import read_config_file, write_origin
from .sources import SOURCES
from .timm_models import is_timm

logger = logging.getLogger(__name__)


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
    check_output_folder(folder, source, inside=True)
    config = load_config(place)
    with opening(place, "a model of transformers"):
        model_class = getattr(transformers, config.architectures[0])
        model, info = model_class.from_pretrained(place, output_loading_info=True, ignore_mismatched_sizes=True)
    check_weights(place, info)
    exchange_attention(model, preset, sites)
    with atomic_directory(folder, overwrite=overwrite) as unfinished:
        if adapter:
            save_adapter(model, unfinished)
        else:
            model.save_pretrained(unfinished)
            try:
                AutoProcessor.from_pretrained(place, trust_remote_code=False).save_pretrained(unfinished)
            except Exception as error:  # each library has its own; a model may have none
                logger.warning("%s: no tokenizer or processor was saved: %s", place, describe_error(error))
            write_origin(unfinished, place, None)
    return model
