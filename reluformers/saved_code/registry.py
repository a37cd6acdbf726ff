"""Makes the families known to transformers and to the writer of code files."""

import logging
from pathlib import Path

import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto import modeling_auto

from reluformers.configuration.configuration_exchanged import ExchangedConfig
from reluformers.families import FAMILIES
from reluformers.modeling.modeling_exchanged import ExchangedBaseModel, ExchangedModel, _class_of
from reluformers.modeling.pipeline_translation import TranslationPipeline

from .payload import payload_files, write_payload

logger = logging.getLogger(__name__)

# Each auto class has the module of modeling/ whose `EndpointHandler` answers requests with the models that it opens.
HANDLERS = {
    AutoModelForSeq2SeqLM.__name__: "handler_translation",
    AutoModelForImageClassification.__name__: "handler_images",
}


def auto_map(config_class: type[PreTrainedConfig]) -> dict[str, str]:
    """Auto class → "file.Class" of a family, as config.json names them."""
    classes = {"AutoConfig": config_class, **{auto.__name__: model for auto, model in FAMILIES[config_class].items()}}
    return {auto: f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}" for auto, cls in classes.items()}


def custom_pipelines(config_class: type[PreTrainedConfig]) -> dict[str, dict]:
    """Tasks that transformers has no pipeline for, as config.json names them: translation has one of ours."""
    if AutoModelForSeq2SeqLM not in FAMILIES[config_class]:
        return {}
    implementation = f"pipeline_translation.{TranslationPipeline.__name__}"
    return {"translation": {"impl": implementation, "pt": [AutoModelForSeq2SeqLM.__name__], "type": "text"}}


def code_of(config_class: type[PreTrainedConfig]) -> dict[str, str]:
    """Name and text of the code files that are saved with a model of a family."""
    return payload_files(sorted({target.partition(".")[0] for target in auto_map(config_class).values()}))


def endpoint_code(config_class: type[PreTrainedConfig]) -> str:
    """Text of the handler.py that answers requests to an Inference Endpoint with a model of a family."""
    head = next(HANDLERS[auto.__name__] for auto in FAMILIES[config_class] if auto.__name__ in HANDLERS)
    return payload_files([head])[f"{head}.py"]


def save_payload(config: PreTrainedConfig, folder: str | Path) -> None:
    """Write the code of a configuration's family beside its config.json; that of a user's own class is the user's."""
    if type(config) in FAMILIES:
        write_payload(config, folder, auto_map(type(config)), custom_pipelines(type(config)))
    else:
        logger.warning("%s is no class of reluformers: its code is not saved with it", type(config).__name__)


def register() -> None:
    """Make every family known to the Auto classes, and every way of saving write its code."""
    for config_class, models in FAMILIES.items():
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        for auto_class, model_class in models.items():
            auto_class.register(config_class, model_class, exist_ok=True)
        config_class.payload_writer = staticmethod(save_payload)
    register_exchanged()


def save_exchanged_code(config: ExchangedConfig, folder: str | Path) -> None:
    """Write the code of an exchanged model beside its config.json, and name it there."""
    model_class = getattr(transformers, config.base_class)
    write_payload(config, folder, exchanged_auto_map(model_class, type(config.base_config())))


def register_exchanged() -> None:
    """Make exchanged models known to the auto classes, and every way of saving them write their code."""
    AutoConfig.register(ExchangedConfig.model_type, ExchangedConfig, exist_ok=True)
    for auto in _auto_classes():
        auto.register(ExchangedConfig, _opened_by(auto), exist_ok=True)
    ExchangedModel.payload_writer = staticmethod(save_exchanged_code)


def _opened_by(auto: type) -> type[ExchangedModel]:
    """What an auto class opens: an exchanged model of a class that it has for such a configuration, and no other."""

    def check(config: PreTrainedConfig) -> None:
        if config.model_type == ExchangedConfig.model_type and auto.__name__ not in (openers := _openers(config)):
            raise ValueError(
                f"{auto.__name__} does not open an exchanged {config.base_class}: "
                f"take {' or '.join(openers) or ExchangedModel.__name__}"
            )

    class Opened(ExchangedModel):
        @classmethod
        def from_pretrained(cls, name, *arguments, config=None, **keywords):
            if config is not None:
                check(config)
            return _class_for(auto).from_pretrained(name, *arguments, config=config, **keywords)

        @classmethod
        def _from_config(cls, config, **keywords):
            check(config)
            return _class_for(auto)._from_config(config, **keywords)

    return Opened


def _openers(config: ExchangedConfig) -> list[str]:
    entries = exchanged_auto_map(_class_of(config), type(config.base_config()))
    return [name for name in entries if name != "AutoConfig"]


def _auto_classes() -> list[type]:
    classes = [value for value in vars(modeling_auto).values() if isinstance(value, type)]
    return [auto for auto in classes if getattr(auto, "_model_mapping", None) is not None]


def exchanged_auto_map(model_class: type[PreTrainedModel], config_class: type) -> dict[str, str]:
    """Auto class → "file.Class", of the auto classes of transformers that open a model of this class."""
    entries = {"AutoConfig": f"configuration_exchanged.{ExchangedConfig.__name__}"}
    for auto in _auto_classes():
        if config_class in auto._model_mapping:
            classes = auto._model_mapping[config_class]
            if auto is AutoModel or model_class in (classes if isinstance(classes, tuple) else (classes,)):
                entries[auto.__name__] = f"modeling_exchanged.{_class_for(auto).__name__}"
    return entries


def _class_for(auto: type) -> type[ExchangedModel]:
    return ExchangedBaseModel if auto is AutoModel else ExchangedModel
