"""Attentions by name in every model of transformers: which there are, one's own, what refuses them and saves names.

import reluformers
model = AutoModelForCausalLM.from_pretrained(ID, attn_implementation="relu_attention")
"""

import copy
import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, DataCollatorWithFlattening, PreTrainedConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager, input_outputs
from transformers.utils import logging

from .configuration.configuration_attention import AttentionConfig
from .modeling.attention import AttentionVariant
from .modeling.attention_interface import InterfaceAttention, register
from .modeling.modeling_exchanged import IMPLEMENTATION, is_made_here, opener, refuse_another

logger = logging.get_logger(__name__)
# These attentions have names from the start. They have no parameters.
ATTENTIONS: dict[str, str | dict[str, Any]] = {
    "softmax_attention": "softmax",
    "softmax1_attention": {"activation": "softmax1"},
    "softpick_attention": {"activation": "softpick"},
    "sparsemax_attention": "sparsemax",
    "entmax15_attention": "entmax15",
    "relu_attention": "relu-vit",
    "relu_sum_attention": "relu-sum",
    "reluformer_attention": "reluformer",
    "sigmoid_attention": {"activation": "sigmoid", "threshold": 1.0, "threshold_form": "log_length"},
    "tda_attention": {  # Threshold rectified attention, arXiv 2601.12145.
        "score": "cosine",
        "scale": 1.0,
        "activation": "relu2",
        "threshold": 1.0,
        "threshold_form": "sqrt_log_length",
    },
}
_LEARNED = ("learned_scale", "learned_length_exponent", "learned_threshold")
# These fields of configurations cap scores before softmax.
_SOFTCAPS = ("attn_logit_softcapping", "attn_logit_softcap", "attention_logits_soft_cap")
# transformers reads a meaning into names with these parts.
_NAMES_OF_OTHERS = ("flash", "sdpa", "flex_attention", "paged", "/", ":", "|")
_LEARNS_A_SCALE = ("timesfm", "timesfm2_5")  # These models learn a scale of their queries.
NAMED = "Reluformers"  # A config.json with an attention of ours names its class with this prefix.

# Why the attention of a model type cannot be exchanged; tests/any_model/every_type.py finds these.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("inkling2", "inkling2_text", "inkling2_loop", "inkling2_loop_text"), "its attention has sinks of its own kind"
    ),
    **dict.fromkeys(
        ("git", "gemma4_audio", "informer", "lightglue", "nemotron_asr_streaming", "nemotron_asr_streaming_encoder"),
        "its own code computes with the mask",
    ),
    **dict.fromkeys(
        ("swin", "clap", "clap_audio_model"), "it hides keys by a score of -100, which only softmax does not see"
    ),
    **dict.fromkeys(
        (
            "EvollaModel",
            "bigbird_pegasus",
            "bridgetower",
            "bridgetower_vision_model",
            "evolla",
            "gemma3n_audio",
            "deepseek_ocr2_sam_vision_model",
            "longt5",
            "pegasus_x",
            "pp_formulanet_vision",
            "sam_vision_model",
            "sam_hq_vision_model",
            "unlimited_ocr_sam_vision_model",
        ),
        "its own code computes softmax, beside the attention interface",
    ),
    "deepseek_v4": "it adds compressed keys that its mask does not know",
}
_ATTENTIONS_OF_TORCH = ("scaled_dot_product_attention", "multi_head_attention_forward", "_native_multi_head_attention")
# Modules whose class has such a name may keep softmax, as they are no attention of the model.
KEEPS_SOFTMAX = {
    "Pool": "a pooling head",
    "DeformableAttention": "deformable attention, which has no keys",
    "AriaCrossAttention": "a projector of images",
    "AttnBlock": "a convolutional tokenizer of images",
    "MHAttentionMap": "a mask head",
    "PatchTSMixerGatedAttention": "",  # It is a gate over features.
    "Sam2MultiScaleAttention": "",  # It throws its softmax away and calls the interface.
}


def register_attention(
    name: str, attention: str | dict[str, Any] | AttentionConfig | Callable[[Tensor], Tensor], **fields: Any
) -> None:
    """Make an attention known by a name, for `attn_implementation=name` in this process.

    Args:
        name: such as `"my_attention"`; one that is taken by this library is given anew.
        attention: a preset's name, fields of an `AttentionConfig`, or φ, a function of scores [batch, heads,
            query_len, key_len] that gives weights of the same shape; they are set to 0 where a mask hides the key.
        fields: of the `AttentionConfig`, beside φ.

    Raises:
        ValueError: the name is taken by transformers or means something to it, a field is not valid, or the attention
            has parameters, which a name cannot hold: see `exchange_attention`.
    """
    known = {"", "eager", IMPLEMENTATION, *(key for key in AttentionInterface._global_mapping if not is_ours(key))}
    if name in known or any(part in name for part in _NAMES_OF_OTHERS):
        raise ValueError(f"name is {name!r}, but must be one that transformers does not use or read more into")
    activation = None
    if callable(attention):
        activation = attention
        attention = {}
        fields = dict(**fields, activation="identity")  # A second activation is a TypeError.
    if fields:
        attention = {**({"preset": attention} if isinstance(attention, str) else attention), **fields}
    config = AttentionConfig.parse(attention)
    learned = [field for field in _LEARNED if getattr(config, field)]
    learned += [field for field in ("query_key_norm", "output_norm") if getattr(config, field) != "none"]
    if learned:
        raise ValueError(f"the attention {name!r} has parameters ({', '.join(learned)}): use exchange_attention")
    register(name, InterfaceAttention(config, activation))


def named_attention(name: Any) -> InterfaceAttention | None:
    """The attention of ours behind a name, or None."""
    attention = AttentionInterface._global_mapping.get(name) if isinstance(name, str) else None
    return attention if isinstance(attention, InterfaceAttention) else None


def is_ours(name: Any) -> bool:
    """Whether an attention of this library has this name."""
    return named_attention(name) is not None


def check_attention(model_class: type, config: PreTrainedConfig, attention: AttentionConfig, name: str) -> None:
    """Refuse a model in which an attention by name would not be what it says.

    Raises:
        ValueError: the model has no attention interface, or its attention has something that this one has not.
    """
    caps = {field: getattr(config, field, None) for field in _SOFTCAPS}
    reasons = [f"its {field} is {cap}, a cap for softmax" for field, cap in caps.items() if cap is not None]
    if not model_class._can_set_attn_implementation():
        reasons.append("its code does not call the attention interface of transformers")
    if config.model_type in REFUSED:
        reasons.append(REFUSED[config.model_type])
    has_fixed_scale = attention.score == "dot" and attention.scale is not None and not attention.learned_scale
    if has_fixed_scale and config.model_type in _LEARNS_A_SCALE:
        reasons.append("it learns a scale of its queries, so that none is fixed")
    if reasons:
        raise ValueError(f"{model_class.__name__} does not take {name}: {reasons[-1]}")


def kept_by(module_class: str) -> str | None:
    """What in `KEEPS_SOFTMAX` a class of a module is, by its name; None for an attention that is none of them."""
    return next((what for part, what in KEEPS_SOFTMAX.items() if part in module_class), None)


class SoftmaxWatch(TorchFunctionMode):
    """Refuses softmax in what is named an attention, and attentions of torch, where this library does not call them.

    Args:
        model: whose forward is watched, and nothing else; None for all.

    Raises:
        ValueError: there is one, and it is none of `KEEPS_SOFTMAX`.
    """

    def __init__(self, model: PreTrainedModel | None):
        super().__init__()
        self.model = model
        self.hook = None
        self.is_on = True

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function, after a look at the modules that call it."""
        name = getattr(function, "__name__", "")
        if name == "softmax" or name in _ATTENTIONS_OF_TORCH:
            callers = [frame.f_locals.get("self") for frame, _ in traceback.walk_stack(None)]
            modules = [one for one in callers if isinstance(one, nn.Module)]
            owner = next((one for one in modules if not type(one).__module__.startswith("torch.")), None)
            is_attention = name != "softmax" or "Att" in type(owner).__name__
            if is_attention and not isinstance(owner, AttentionVariant) and self.model in (None, *modules):
                self.note(type(owner).__name__)
        return function(*args, **(kwargs or {}))

    def note(self, owner: str) -> None:
        """Judge a class of modules that computes softmax by its own code."""
        if kept_by(owner) is None:
            raise ValueError(f"{owner} computes softmax by its own code, beside the attention of the model")


def watch_first_forward(model: PreTrainedModel) -> None:
    """Let the first forward of a model that comes to its end be watched for softmax."""
    if _begin not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_begin)


def _begin(model: PreTrainedModel, arguments: tuple) -> None:
    # The model may have another attention by now.
    if torch.compiler.is_compiling() or _names_of_ours(model.config) is None:
        return
    watch = SoftmaxWatch(model)
    watch.hook = model.register_forward_hook(functools.partial(_end, watch), always_call=True)
    watch.__enter__()


def _end(watch: SoftmaxWatch, model: PreTrainedModel, arguments: tuple, output: Any) -> None:
    if watch.is_on:
        watch.__exit__(None, None, None)
        watch.is_on = False
    if output is not None:  # The forward pass came to its end. After a failure torch takes no hook off.
        watch.hook.remove()
        for key in [key for key, hook in model._forward_pre_hooks.items() if hook is _begin]:
            model._forward_pre_hooks.pop(key, None)


def _names_of_ours(config: PreTrainedConfig) -> str | dict[str, Any] | None:
    """What `attn_implementation` gives a configuration the attentions of ours that it has; None if it has none."""
    parts = {
        name: _names_of_ours(part)
        for name in config.sub_configs
        if isinstance(part := getattr(config, name, None), PreTrainedConfig)
    }
    own = config._attn_implementation
    if not is_ours(own) and not any(parts.values()):
        return None
    named_parts = {name: part for name, part in parts.items() if part is not None and part != own}
    if named_parts or (parts and not is_ours(own)):
        return {"": own, **named_parts}
    return own


def _named(architectures: list[str] | None, config_class: type) -> list[str] | None:
    """Names of architectures that no program takes for those of a model with softmax; transformers opens the first."""
    names = [name for name in architectures or () if hasattr(transformers, name)]
    openers = {name: opener(getattr(transformers, name), config_class) for name in names}
    return [one for name, auto in openers.items() if auto for one in (auto, NAMED + name)] or architectures


# Only these are given the attention that a user names. Everything else that assigns it means another attention.
_ASKED_BY = {
    inspect.unwrap(function).__code__
    for function in (PreTrainedModel.from_pretrained, PreTrainedModel._from_config, PreTrainedConfig.__post_init__)
}
# The assignment passes these on its way, also those of subclasses and of the configuration around a part.
_SETTERS = ("_attn_implementation", "__setattr__", "__strict_setattr__")


def _is_asked_by_a_user() -> bool:
    """Whether `attn_implementation=` of a user led to the assignment that is under way."""
    frame = sys._getframe(1)
    while frame.f_code.co_name in _SETTERS:
        frame = frame.f_back
    return frame.f_code in _ASKED_BY


def _refuse_kernels(fields: dict[str, Any], is_attention: bool = False) -> None:
    """Refuse a kernel of the Hub as the attention of a saved configuration: a model's files must not name code to run.

    transformers saves no such name, but loads the kernel that it finds.
    """
    for name, value in fields.items():
        names_attention = is_attention or name == "attn_implementation"
        if isinstance(value, dict):
            _refuse_kernels(value, names_attention)
        elif names_attention and "/" in str(value):
            raise ValueError(
                f"attn_implementation of a saved configuration is {value!r}, a kernel whose code would run: give it "
                "to from_pretrained if you trust it"
            )


def guard_configurations() -> None:
    """Let a configuration keep an attention of ours: when it is assigned another one, copied as a dict or saved."""
    own_property = PreTrainedConfig._attn_implementation
    own_output = PreTrainedConfig.output_attentions
    read = PreTrainedConfig.from_dict.__func__
    write = PreTrainedConfig.to_dict
    save = PreTrainedConfig.save_pretrained
    validate = PreTrainedConfig.validate_output_attentions

    def _attn_implementation(self, value):
        own = self.__dict__.get("_attn_implementation_internal")
        name = value.get("", own) if isinstance(value, dict) else value
        changes_ours = own not in (None, name) and (is_ours(own) or is_ours(name))
        if changes_ours and (name is None or not _is_asked_by_a_user()):
            if name not in (None, "eager"):
                if own == IMPLEMENTATION:
                    refuse_another(name)
                raise ValueError(
                    f"the attention of this configuration is {own!r}, which assigning {name!r} to "
                    "_attn_implementation does not change: use set_attn_implementation of the model"
                )
            if name is not None:  # Methods of transformers assign "eager" for the weights, which ours return too.
                logger.warning_once(
                    f"The attention stays {own!r}, which returns its weights too; set_attn_implementation('eager') "
                    "changes it."
                )
            parts = value if isinstance(value, dict) else dict.fromkeys(self.sub_configs, value)
            value = {**parts, "": own}
        own_property.fset(self, value)

    def output_attentions(self, value):
        if is_ours(self._attn_implementation):
            self._output_attentions = value
        else:
            own_output.fset(self, value)

    @functools.wraps(validate)
    def validate_output_attentions(self):
        if not is_ours(self._attn_implementation):
            validate(self)

    @functools.wraps(read)
    def from_dict(cls, config_dict, **keywords):
        if keywords.get("attn_implementation", "") is None:  # None would hide the saved name.
            del keywords["attn_implementation"]
        _refuse_kernels({name: value for name, value in config_dict.items() if name not in keywords})
        return read(cls, config_dict, **keywords)

    @functools.wraps(write)
    def to_dict(self):
        # transformers leaves names of attentions out, so the copy would compute softmax.
        fields = write(self)
        names = _names_of_ours(self)
        for part in self.sub_configs:  # The entry of the whole names the attentions of its parts.
            if isinstance(fields.get(part), dict):
                fields[part].pop("attn_implementation", None)
        return fields if names is None else {**fields, "attn_implementation": names}

    @functools.wraps(save)
    def save_pretrained(self, *args, **keywords):
        saved = self
        if _names_of_ours(self) not in (None, IMPLEMENTATION):
            saved = copy.copy(self)  # Other threads may be reading this configuration.
            saved.architectures = _named(self.architectures, type(self))
        return save(saved, *args, **keywords)

    PreTrainedConfig._attn_implementation = property(own_property.fget, _attn_implementation)
    PreTrainedConfig.output_attentions = property(own_output.fget, output_attentions)
    PreTrainedConfig.validate_output_attentions = validate_output_attentions
    PreTrainedConfig.from_dict = classmethod(from_dict)
    PreTrainedConfig.to_dict = to_dict
    PreTrainedConfig.save_pretrained = save_pretrained
    configurations = [PreTrainedConfig]
    for config_class in configurations:  # Classes that exist already hold the old validators.
        configurations += config_class.__subclasses__()
        validators = vars(config_class).get("__class_validators__", [])
        validators[:] = [validate_output_attentions if one is validate else one for one in validators]


def allow_continuous_batching() -> None:
    """Let `generate_batch` take attentions of ours, and give them a mask as it does to "sdpa".

    transformers 5.24 has lists of names there; see scripts/continuous_batching.patch for what it would have to change.
    """
    switch = ContinuousBatchingManager.switch_to_cb_friendly_attn
    needs_mask = input_outputs.attn_mask_is_needed
    # Without this parameter transformers lets attentions update the cache.
    if "auto_switch_to_flash" not in inspect.signature(switch).parameters:
        return

    @functools.wraps(switch)
    def switch_to_cb_friendly_attn(self, model, *args, **keywords):
        if not is_ours(model.config._attn_implementation):
            switch(self, model, *args, **keywords)

    @functools.wraps(needs_mask)
    def attn_mask_is_needed(config):
        return is_ours(config._attn_implementation) or needs_mask(config)

    ContinuousBatchingManager.switch_to_cb_friendly_attn = switch_to_cb_friendly_attn
    input_outputs.attn_mask_is_needed = attn_mask_is_needed


def guard_models() -> None:
    """Let the models of transformers check an attention of ours before they take it."""
    if hasattr(PreTrainedModel, "_has_guarded_attentions"):
        return
    PreTrainedModel._has_guarded_attentions = True
    guard_configurations()
    allow_continuous_batching()
    check = PreTrainedModel.get_correct_attn_implementation
    build = PreTrainedModel._from_config.__func__

    @functools.wraps(build)
    def _from_config(cls, config, **keywords):
        name = keywords.get("attn_implementation")
        own = config._attn_implementation
        if name is not None and own not in (None, name):
            config = copy.deepcopy(config)  # It may belong to a model, which would get the other attention too.
        return build(cls, config, **keywords)

    @functools.wraps(check)
    def get_correct_attn_implementation(self, requested_attention, is_init_check=False):
        attention = named_attention(requested_attention)
        owner = type(self).__name__
        if hasattr(self.config, "exchanged"):
            refuse_another(requested_attention)
        if requested_attention == IMPLEMENTATION and not is_made_here.get():
            raise ValueError(f"{owner} does not take {IMPLEMENTATION}, which is what exchange_attention gives")
        if attention is not None:
            check_attention(type(self), self.config, attention.attention, requested_attention)
            watch_first_forward(self)
        else:
            named = [name for name in self.config.architectures or () if name.startswith(NAMED)]
            is_lost = (
                _names_of_ours(self.config) is None if is_init_check else is_ours(self.config._attn_implementation)
            )
            if named and is_lost and requested_attention is None:
                raise ValueError(f"{named[0]} was saved with an attention by name, but attn_implementation is None")
            if named and is_lost:  # Tools set "eager" too, and some then compute softmax by their own code.
                logger.warning_once(
                    f"{named[0]} was saved with an attention by name, but now has "
                    f"attn_implementation={requested_attention!r}, which computes softmax."
                )
        if attention is not None or _names_of_ours(self.config) is not None:
            self._supports_flash_attn = False  # Continuous batching would take flash attention instead.
        else:
            self.__dict__.pop("_supports_flash_attn", None)
        implementation = check(self, requested_attention, is_init_check)
        if not is_init_check:  # transformers 5.17 forgets the copies of a configuration that parts may have.
            for part in self.modules():
                if isinstance(part, PreTrainedModel) and type(part.config) is type(self.config):
                    part.config._attn_implementation_internal = implementation
        return implementation

    PreTrainedModel._from_config = classmethod(_from_config)
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation


def register_attentions() -> None:
    """Register all `ATTENTIONS`, and guard the models that take them."""
    for name, attention in ATTENTIONS.items():
        register_attention(name, attention)
    guard_models()


def flatten_inputs(model: nn.Module) -> nn.Module:
    """Let a `SentenceTransformer` read the texts of a batch as one row without padding, in place.

    sentence-transformers does so by itself with attentions whose names contain "flash".

    Args:
        model: loaded with `model_kwargs={"attn_implementation": NAME}`.

    Returns:
        The same model.

    Raises:
        ValueError: its attention is none of this library, and might let texts see each other.
    """
    part = model[0]
    name = part.model.config._attn_implementation
    if not is_ours(name):
        raise ValueError(f"the attention of the model is {name!r}, but must be one of this library to flatten inputs")
    options = {"return_position_ids": True, "return_flash_attn_kwargs": True, "return_seq_idx": True}
    part.data_collator = DataCollatorWithFlattening(**options)
    if part.model_forward_params is not None:  # It would leave these keywords out.
        part.model_forward_params |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
    part._flatten_position_offset = getattr(part, "_infer_flatten_position_offset", lambda: 0)()
    part.can_flatten_inputs = True
    return model
