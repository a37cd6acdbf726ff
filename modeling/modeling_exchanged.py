# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose attention is exchanged: they stay what they are but for what their attention computes.

Scalars, gains and thresholds of an attention hang as a sub-module on the attention modules of the model. A saved
folder has a configuration around the model's own, so that it opens as what it was, or not at all.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from typing import Any, ClassVar

import transformers
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.dynamic_module_utils import custom_object_save
from transformers.models.auto import modeling_auto

from ..configuration.configuration_attention import AttentionConfig
from ..configuration.configuration_exchanged import SHARED, ExchangedConfig
from .attention_interface import InterfaceAttention, register
from .normalization import NormGate

SUBMODULE = "exchanged_attention"
IMPLEMENTATION = "reluformers_exchanged"  # `attn_implementation` of every model whose softmax was exchanged.


class Caller:  # torch.compile does not take a SimpleNamespace.
    """What an attention reads of its module, without the weights, which hooks would move."""

    def __init__(self, module: nn.Module):
        for name in ("training", "scaling", "is_causal"):
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))


class ExchangeableAttention(InterfaceAttention):
    """Compute the attention that hangs on a module, or softmax where nothing hangs, for the interface."""

    def forward(self, module: nn.Module, *states: Any, **keywords: Any) -> tuple[Tensor, Tensor | None]:
        """Attend by the module's own attention.

        Raises:
            ValueError: nothing was exchanged: a stock class was built from the configuration of an exchanged model.
        """
        if SUBMODULE not in module._modules:
            raise ValueError(f"{type(module).__name__} has no exchanged attention: open its model by from_pretrained")
        attention = module._modules[SUBMODULE]
        if attention is None:
            return super().forward(module, *states, **keywords)
        return attention(Caller(module), *states, **keywords)


register(IMPLEMENTATION, ExchangeableAttention("softmax"))
# Some fields belong to an `ExchangedConfig` itself, and not to the stock configuration in it.
_OF_THE_WHOLE = {
    *("base", "base_type", "base_class", "attention", "modules", "model_type", "architectures", "auto_map"),
    *("dtype", "transformers_version", "attn_implementation", "reluformers_version", "custom_pipelines"),
}
# `is_made_here` is true while an exchanged model is made.
is_made_here: ContextVar[bool] = ContextVar("is_made_here", default=False)


class ExchangedModel(PreTrainedModel):
    """Base of models whose attention is exchanged: how they are opened, saved and pickled; see `exchanged_class`."""

    config_class = ExchangedConfig
    # The installed library sets `payload_writer`, so that every way of saving writes the code beside config.json.
    payload_writer: ClassVar[Any] = None
    base_class: ClassVar[type[PreTrainedModel] | None] = None

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str, *arguments: Any, config: Any = None, **keywords: Any
    ) -> PreTrainedModel:
        """Open a saved folder or a repository, by an `ExchangedConfig` or its own, and with no other attention."""
        refuse_another(keywords.get("attn_implementation") or IMPLEMENTATION)
        if config is None:
            names = ("revision", "token", "cache_dir", "subfolder", "local_files_only")
            config = ExchangedConfig.from_pretrained(
                pretrained_model_name_or_path, **{name: keywords[name] for name in names if name in keywords}
            )
        # The configuration's class may come from another copy of this code, so its model type decides.
        if config.model_type == ExchangedConfig.model_type:
            refuse_another(config._attn_implementation or IMPLEMENTATION)
            for name in [name for name in keywords if name == "num_labels" or name in config.base]:
                if name not in _OF_THE_WHOLE:
                    setattr(config, name, keywords.pop(name))
            model_class, config = cls._opened(config)
        else:
            model_class = cls
        for name in ("trust_remote_code", "code_revision"):
            keywords.pop(name, None)
        return super(ExchangedModel, model_class).from_pretrained(
            pretrained_model_name_or_path, *arguments, config=config, **keywords
        )

    @classmethod
    def _from_config(cls, config: PreTrainedConfig, **keywords: Any) -> PreTrainedModel:
        if config.model_type == ExchangedConfig.model_type:
            refuse_another(keywords.get("attn_implementation") or IMPLEMENTATION)
            model_class, config = cls._opened(config)
            return model_class._from_config(config, **keywords)
        return super()._from_config(config, **keywords)

    @classmethod
    def _opened(cls, config: ExchangedConfig) -> tuple[type["ExchangedModel"], PreTrainedConfig]:
        """The class that opens a configuration, and the model's own configuration."""
        return exchanged_class(_class_of(config)), base_with(config)

    def initialize_weights(self) -> None:
        """Start what hangs on the parts of a model too, which do not know it."""
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, InterfaceAttention):
                for name, parameter in module.named_parameters():
                    if name.endswith("norm.weight"):
                        init.ones_(parameter)
                module.reset_parameters()
            elif isinstance(module, NormGate):
                module.reset_gate()

    def save_pretrained(
        self,
        save_directory: str,
        is_main_process: bool = True,
        *arguments: Any,
        push_to_hub: bool = False,
        **keywords: Any,
    ) -> None:
        """Save the weights, the configuration around that of the model, and the code."""
        repo_id = keywords.pop("repo_id", None)
        super().save_pretrained(save_directory, is_main_process, *arguments, **keywords)
        # One process saves the configuration, because others would write the same files at the same time.
        if self.should_save_on_this_rank(is_main_process):
            config = self.exchanged_config()
            if self.payload_writer is not None:
                self.payload_writer(config, save_directory)
            elif ExchangedModel._auto_class is not None:  # Code that came with a model is saved with it again.
                ExchangedConfig.register_for_auto_class()
                custom_object_save(ExchangedModel.__new__(ExchangedModel), save_directory, config=config)
            config.save_pretrained(save_directory)
        if push_to_hub:
            names = inspect.signature(self.push_to_hub).parameters
            options = {name: value for name, value in keywords.items() if name in names}
            self.push_to_hub(repo_id or PurePath(save_directory).name, **options)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute, unless a part was given another attention, which would be softmax.

        Methods of transformers assign "eager" for the weights, which the exchanged attention returns too.
        """
        for config in (self.config, *(getattr(self.config, name, None) for name in self.config.sub_configs)):
            if isinstance(config, PreTrainedConfig):
                if config._attn_implementation == "eager":
                    config._attn_implementation_internal = IMPLEMENTATION
                refuse_another(config._attn_implementation)
        return super().__call__(*arguments, **keywords)

    def set_attn_implementation(self, attn_implementation: str | dict, *arguments: Any, **keywords: Any) -> None:
        """Refuse every attention but the exchanged one."""
        refuse_another(attn_implementation)
        with being_made():
            super().set_attn_implementation(attn_implementation, *arguments, **keywords)

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Pickle the model by the class that it was made of."""
        return _empty_model, (self.base_class,), self.__dict__

    def exchanged_config(self) -> ExchangedConfig:
        """The configuration that is saved."""
        base = self.config.to_dict()
        exchanged = base.pop("exchanged")
        base.pop("attn_implementation", None)
        return ExchangedConfig(
            base_type=base.pop("model_type"),
            base=base,
            base_class=self.base_class.__name__,
            attention=exchanged["attention"],
            modules=exchanged["modules"],
            # The first of the architectures opens the folder, and no program takes the model for one with softmax.
            architectures=[auto for auto in (opener(self.base_class, type(self.config)),) if auto]
            + [f"Exchanged{self.base_class.__name__}"],
            dtype=base.get("dtype"),
            attn_implementation=IMPLEMENTATION,  # A stock class that opens the folder must not compute softmax.
        )


class ExchangedBaseModel(ExchangedModel):
    """Exchanged model without its head, as `AutoModel` opens it."""

    @classmethod
    def _opened(cls, config: ExchangedConfig) -> tuple[type[ExchangedModel], PreTrainedConfig]:
        whole, base = _class_of(config), base_with(config)
        model_class = AutoModel._model_mapping[type(base)]
        model_class = model_class[0] if isinstance(model_class, tuple) else model_class
        if model_class is not whole:
            prefix = f"{whole.base_model_prefix}."
            modules = {name.removeprefix(prefix): sizes for name, sizes in config.modules.items()}
            base.exchanged = {**base.exchanged, "modules": modules}
        return exchanged_class(model_class), base


def refuse_another(name: str | dict | None) -> None:
    """Raise a `ValueError` for the name of any attention but the exchanged one."""
    if name != IMPLEMENTATION:
        raise ValueError(
            f"attn_implementation is {name!r}, but the attention of this model is exchanged: restore_attention takes "
            "it off"
        )


@contextmanager
def being_made() -> Iterator[None]:
    """Let parts of a model take the name of its exchanged attention, in this thread."""
    token = is_made_here.set(True)
    try:
        yield
    finally:
        is_made_here.reset(token)


def opener(model_class: type, config_class: type) -> str | None:
    """Name of an auto class that opens models of just this class from a configuration; None if there is none."""
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None) if isinstance(auto, type) else None
        if mapping is not None and name != "AutoModelForPreTraining" and config_class in mapping:
            opened = mapping[config_class]
            if (opened[0] if isinstance(opened, tuple) else opened) is model_class:
                return name
    return None


@functools.cache
def exchanged_class(base_class: type[PreTrainedModel]) -> type[ExchangedModel]:
    """The class of a model of transformers with an exchanged attention: a subclass of its own."""

    def build(self, config: PreTrainedConfig, *arguments: Any, **keywords: Any) -> None:
        config._attn_implementation = IMPLEMENTATION
        with being_made():
            base_class.__init__(self, config, *arguments, **keywords)
        attach(self)
        extend_tp_plan(self)

    fields = {"__init__": build, "__module__": base_class.__module__, "base_class": base_class}
    fields |= {"config_class": base_class.config_class, "_auto_class": None}
    return type(f"Exchanged{base_class.__name__}", (ExchangedModel, base_class), fields)


def _empty_model(base_class: type[PreTrainedModel]) -> ExchangedModel:
    model_class = exchanged_class(base_class)
    return model_class.__new__(model_class)


@functools.cache
def calls_interface(module_class: type[nn.Module]) -> bool:
    """Whether a module calls the attention interface of transformers itself."""
    code = getattr(inspect.unwrap(module_class.forward), "__code__", None)
    return code is not None and {"ALL_ATTENTION_FUNCTIONS", "get_interface"} <= {*code.co_names}


def attach(model: PreTrainedModel) -> None:
    """Hang the attentions that `model.config.exchanged` describes on the modules of a model.

    Raises:
        ValueError: it names no module, or one that is no attention module.
    """
    exchanged = model.config.exchanged
    modules = dict(model.named_modules())
    for name in exchanged["modules"] or [""]:
        if name not in modules or not calls_interface(type(modules[name])):
            raise ValueError(f"ExchangedConfig.modules has {name!r}, which is no attention module of this model")
    for module in modules.values():
        if calls_interface(type(module)):
            # A submodule of None marks an attention module that was looked at, so that a stock class cannot pass for
            # it. Its attention is softmax unless another one is put there later.
            module.add_module(SUBMODULE, None)
    for name, (num_heads, head_dim, output_dim) in exchanged["modules"].items():
        attention = InterfaceAttention(exchanged["attention"], None, num_heads, head_dim, output_dim)
        model.get_submodule(name).add_module(SUBMODULE, attention)


def extend_tp_plan(model: PreTrainedModel) -> None:
    """Extend the model's rules of tensor parallelism to the parameters that hang on its attention modules.

    Each process holds the whole attention where a parameter is as long as all heads together.
    """
    plan = model._tp_plan
    exchanged = model.config.exchanged
    attention = AttentionConfig.parse(exchanged["attention"])
    for pattern in {re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in exchanged["modules"]}:
        rules = [rule for rule in plan if rule.startswith(f"{pattern}.")]
        if attention.spans_heads:
            for rule in rules:
                del plan[rule]
        elif any(plan[rule] == "colwise" for rule in rules):  # Split columns leave each process some heads.
            for part in attention.parts_for_each_head(f"{pattern}.{SUBMODULE}"):
                plan[part] = "replicated_with_grad_allreduce"


def _class_of(config: ExchangedConfig) -> type[PreTrainedModel]:
    base_class = getattr(transformers, str(config.base_class), None)
    is_model = isinstance(base_class, type) and issubclass(base_class, PreTrainedModel)
    if not is_model or base_class.config_class is not type(config.base_config()):
        raise ValueError(
            f"ExchangedConfig.base_class is {config.base_class!r}, but must be a model of transformers of the type "
            f"{config.base_type!r}"
        )
    return base_class


def base_with(config: ExchangedConfig) -> PreTrainedConfig:
    """The configuration of the stock model, with the fields that were changed since it was saved."""
    base = config.base_config()
    # Fields that were changed since the model was saved, as by from_pretrained(…, problem_type=…), go into the stock
    # configuration. Setting a default may be a change too.
    shared = {name: getattr(config, name) for name in SHARED if name in config.base}
    for name, value in (config.to_diff_dict() | shared).items():
        if name not in _OF_THE_WHOLE:
            setattr(base, name, value)
    base.exchanged = {"attention": AttentionConfig.parse(config.attention).to_dict(), "modules": config.modules}
    return base
