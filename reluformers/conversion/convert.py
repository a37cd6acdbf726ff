"""From a model of transformers or timm to one of ours or to itself, perhaps with another attention, and back."""

import copy
import dataclasses
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoProcessor,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    ViTImageProcessorPil,
)
from transformers.utils import GENERATION_CONFIG_NAME, cached_file

from reluformers.configuration.configuration_base import TransformerConfig
from reluformers.data.checked_fields import check_name
from reluformers.errors import describe_error
from reluformers.exchange import exchange_attention, save_adapter
from reluformers.families import FAMILIES, config_class_of, seq2seq_config, vision_config
from reluformers.files import atomic_directory
from reluformers.saved_models import CARD_FILE, card_metadata, check_weights, load_config

from .sources import SOURCES, config_back, fields_of, target_of
from .timm_models import from_timm, is_timm, timm_fields, timm_image_processor
from .weights import State, load_renamed, read_weights, to_ours, to_theirs

logger = logging.getLogger(__name__)

# Only some variants of an attention have these weights.
VARIANT_WEIGHTS = re.compile(r"(?:_attn|\.attention)\.(?!(?:q|k|v|out)_proj\.)")
# These fields belong to the file that the configuration was in.
_OF_A_FILE = {"architectures", "dtype", "transformers_version", "label2id"}
# A preset's family brings its own values of these fields.
_OF_AN_ATTENTION = ("normalization_loss_weight", "entropy_loss_weight")
PIPELINE_TAGS = {AutoModelForSeq2SeqLM: "translation", AutoModelForImageClassification: "image-classification"}


@dataclass
class Opened:
    """A model that ours can start from, before it is built.

    Args:
        name_or_path: folder or Hub id.
        auto_class: opens models of its task; of one that keeps its class, that.
        fields: of our configuration, with its own attention.
        weights: by our names.
        generation_config: of an encoder–decoder model.
    """

    name_or_path: str
    auto_class: type
    fields: dict[str, Any]
    weights: State
    generation_config: GenerationConfig | None = None


def open_source(name_or_path: str | Path, **given: Any) -> Opened:
    """Open a model of another architecture or of ours for conversion: read its configuration and weights.

    Args:
        name_or_path: folder or Hub id of a model of `SOURCES`, of a Vision Transformer of timm, or of one of ours.
        given: fields of our configuration that override those of the source.

    Raises:
        ValueError: it has something that ours cannot compute.
    """
    name_or_path = str(name_or_path)
    content = PreTrainedConfig.get_config_dict(name_or_path)[0]
    if is_timm(content):
        weights = read_weights(name_or_path)
        fields = timm_fields(content, weights, given) | given
        weights = from_timm(weights, fields["pooling"])
        return Opened(name_or_path, AutoModelForImageClassification, fields, weights)
    config = load_config(name_or_path)
    if config_class_of(config.model_type) is not None:
        auto_class = next(auto for auto in FAMILIES[type(config)] if auto in PIPELINE_TAGS)
        known = {item.name for item in dataclasses.fields(config)} - _OF_A_FILE
        fields = {name: getattr(config, name) for name in known} | {"model_type": config.model_type} | given
        weights = read_weights(name_or_path)
        return Opened(name_or_path, auto_class, fields, weights, _generation_config(name_or_path, config))
    source = SOURCES[config.model_type]
    fields = fields_of(config) | given
    weights = to_ours(read_weights(name_or_path), source, fields.get("tying", "none"))
    if source.is_seq2seq:
        fields.setdefault("output_bias", "lm_head.bias" in weights)
    return Opened(name_or_path, source.auto_class, fields, weights, _generation_config(name_or_path, config))


def keeps_its_class(source: str | Path) -> bool:
    """Whether a model gets another attention as it is, since `convert` makes none of ours of it."""
    config = PreTrainedConfig.get_config_dict(str(source))[0]
    model_type = config.get("model_type")
    return not is_timm(config) and model_type not in SOURCES and config_class_of(model_type) is None


def build_model(
    opened: Opened,
    preset: str | None = None,
    sites: Sequence[str] | None = None,
    *,
    new_head: bool = False,
    config_fields: dict[str, Any] | None = None,
) -> PreTrainedModel:
    """Build one of our models with the weights of another; an exchange of the attention is not calibrated here.

    Args:
        opened: out of `open_source`; its weights become those of the model and are not copied.
        preset: attention to exchange its own for; None keeps it.
        sites: where, names of the configuration's `sites`; None = everywhere.
        new_head: whether an image classifier gets a head that starts anew, for other classes.
        config_fields: fields that hold whatever the source says.

    Returns:
        The model in evaluation mode, in the dtype of the weights; with softmax it computes what the source does.
    """
    config = exchanged_config(opened, preset, sites, **(config_fields or {}))
    model_class = FAMILIES[type(config)][opened.auto_class]
    weights = dict(opened.weights)
    may_miss = []
    if new_head:
        may_miss.append(r"classifier\.")
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
    if preset is not None:  # Weights that only one of the two attentions has may be missing or left over.
        with torch.device("meta"):
            expected = model_class(config).state_dict().keys()
        names = [name for name in weights if name in expected or not VARIANT_WEIGHTS.search(name)]
        weights = {name: weights[name] for name in names}
        may_miss.append(f".*{VARIANT_WEIGHTS.pattern}")
    model = load_renamed(model_class, config, weights, opened.name_or_path, may_miss=may_miss)
    if opened.generation_config is not None:
        model.generation_config = copy.deepcopy(opened.generation_config)
    return model


def exchanged_config(
    opened: Opened, preset: str | None = None, sites: Sequence[str] | None = None, **config_fields: Any
) -> TransformerConfig:
    """The configuration of an opened model with the attention of a preset at some of its sites, all if None."""
    make = seq2seq_config if opened.auto_class is AutoModelForSeq2SeqLM else vision_config
    fields = dict(opened.fields)
    config_class = config_class_of(fields.pop("model_type", None)) or partial(make, "softmax")
    if preset is None:
        return config_class(**{**fields, **config_fields})
    before = make("softmax", **fields)
    for site in sites or ():
        check_name(site, before.sites, "site")
    kept = [site for site in before.sites if sites is not None and site not in sites]
    belongs = ("attention", *_OF_AN_ATTENTION)
    fields = {name: value for name, value in fields.items() if not name.endswith(belongs)}
    fields |= {f"{site}_attention": before.attention_for(site) for site in kept}
    return make(preset, **{**fields, **config_fields})


def convert(
    source: str | Path,
    folder: str | Path,
    preset: str | None = None,
    sites: Sequence[str] | None = None,
    *,
    overwrite: bool = False,
    **given: Any,
) -> PreTrainedModel:
    """Write one of our models with the weights of another, its tokenizer or image processor, and where it is from.

    Args:
        source: as in `open_source`.
        folder: to write, whole or not at all.
        preset, sites: as in `build_model`.
        overwrite: whether to replace a folder that is there.
        given: fields of our configuration that override those of the source.
    """
    opened = open_source(source, **given)
    model = build_model(opened, preset, sites, config_fields=given)
    for name in given:  # A preset would take names that are no fields.
        check_name(name, [*model.config.__dataclass_fields__, *model.config.attribute_map], "field")
    return write_model(model, opened.name_or_path, opened.auto_class, folder, overwrite)


def exchange(
    source: str | Path,
    folder: str | Path,
    preset: str,
    sites: Sequence[str] | None = None,
    *,
    adapter: bool = False,
    overwrite: bool = False,
) -> PreTrainedModel:
    """Write a model of transformers with another attention, its tokenizer or image processor, and where it is from.

    Args:
        source: folder or Hub id.
        folder: to write, whole or not at all.
        preset: the attention.
        sites: patterns of names of attention modules; None for all.
        adapter: whether to write the parameters of the attention alone.
        overwrite: whether to replace a folder that is there.
    """
    name_or_path = str(source)
    model_class = getattr(transformers, load_config(name_or_path).architectures[0])
    model, info = model_class.from_pretrained(name_or_path, output_loading_info=True, ignore_mismatched_sizes=True)
    check_weights(name_or_path, model, info)
    exchange_attention(model, preset, sites)
    if not adapter:
        return write_model(model, name_or_path, model_class, folder, overwrite)
    with atomic_directory(folder, name_or_path, overwrite=overwrite) as unfinished:
        save_adapter(model, unfinished)
    return model


def convert_back(source: str | Path, folder: str | Path, *, overwrite: bool = False) -> PreTrainedModel:
    """Write one of our softmax models as the model of transformers that computes the same, if there is one."""
    name_or_path = str(source)
    config = load_config(name_or_path)
    target = target_of(config)
    weights = to_theirs(read_weights(name_or_path), target, getattr(config, "tying", "none"))
    model_class = getattr(transformers, target.architecture)
    theirs = config_back(config, target)
    model = load_renamed(model_class, theirs, weights, name_or_path, may_miss=["final_logits_bias"])
    if target.is_seq2seq:
        model.generation_config = _generation_config(name_or_path, config)
    return write_model(model, name_or_path, target.auto_class, folder, overwrite)


def write_model(
    model: PreTrainedModel, name_or_path: str, auto_class: type, folder: str | Path, overwrite: bool
) -> PreTrainedModel:
    """Save a model with its processor and a card that names the source, whole or not at all."""
    with atomic_directory(folder, name_or_path, overwrite=overwrite) as unfinished:
        model.save_pretrained(unfinished)
        if (processor := open_processor(name_or_path, auto_class)) is not None:
            processor.save_pretrained(unfinished)
        write_origin(unfinished, name_or_path, PIPELINE_TAGS.get(auto_class))
    return model


def open_processor(name_or_path: str, auto_class: type) -> Any | None:
    """The tokenizer or image processor of a source; None, after a warning, if there is none."""
    if is_timm(content := PreTrainedConfig.get_config_dict(name_or_path)[0]):
        return timm_image_processor(content)
    try:
        # The processor of Pillow gives the same pixels with and without torchvision.
        if auto_class is AutoModelForImageClassification:
            return ViTImageProcessorPil.from_pretrained(name_or_path)
        return AutoProcessor.from_pretrained(name_or_path, trust_remote_code=False)
    except Exception as error:  # Each library has exceptions of its own.
        logger.warning("%s: no tokenizer or image processor comes along: %s", name_or_path, describe_error(error))
        return None


def write_origin(folder: Path, name_or_path: str, pipeline_tag: str | None) -> None:
    """Write a README.md whose metadata name the source and its licence, as far as they are known."""
    known = origin(name_or_path)
    known["license"] = known["license"] or "unknown"  # The Hub knows this word.
    relation = "finetune" if known["base_model"] else None
    data = ModelCardData(**known, base_model_relation=relation, library_name="transformers", pipeline_tag=pipeline_tag)
    name = known["base_model"] if isinstance(known["base_model"], str) else "another model"
    text = f"# Weights of {name}\n\nConverted by `reluformers convert`.\n"
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}").save(folder / CARD_FILE)


def origin(name_or_path: str) -> dict[str, Any]:
    """Where a model is from: `base_model`, the Hub id or what a local folder's card says, and `license`, or None."""
    card = card_metadata(name_or_path)
    return {
        "base_model": card.get("base_model") if Path(name_or_path).exists() else name_or_path,
        "license": card.get("license"),
    }


def _generation_config(name_or_path: str, config: PreTrainedConfig) -> GenerationConfig | None:
    """Read the generation settings of a source; one saved without a file of its own has it in config.json."""
    if not config.is_encoder_decoder:
        return None
    if cached_file(name_or_path, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False) is None:
        return GenerationConfig.from_model_config(config)
    return GenerationConfig.from_pretrained(name_or_path)
