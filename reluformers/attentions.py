"""Attentions by name in every model of transformers: which there are, one's own, and what refuses and saves them.

import reluformers
model = AutoModelForCausalLM.from_pretrained(ID, attn_implementation="relu_attention")
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, GenerationMixin, PreTrainedConfig, PreTrainedModel

from .configuration.configuration_attention import AttentionConfig
from .modeling.attention_interface import InterfaceAttention, register
from .modeling.modeling_exchanged import BEING_MADE, IMPLEMENTATION, calls_interface, refuse_another

# what has a name from the start: attentions without parameters
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
    "tda_attention": {  # threshold rectified attention, arXiv 2601.12145
        "score": "cosine",
        "scale": 1.0,
        "activation": "relu2",
        "threshold": 1.0,
        "threshold_form": "sqrt_log_length",
    },
}
_LEARNED = ("learned_scale", "learned_length_exponent", "learned_threshold")
_CALL = "ALL_ATTENTION_FUNCTIONS.get_interface("
_OWN_SCALE = ("scaling=1.0", "self.scaling = nn.Parameter")  # of code that scales queries before it calls attention
# fields of configurations by which scores are capped before softmax
_SOFTCAPS = ("attn_logit_softcapping", "attn_logit_softcap", "attention_logits_soft_cap")
_NAMES_OF_OTHERS = ("flash", "sdpa", "flex_attention", "paged", "/", ":", "|")  # transformers reads more into these

# model type → why its attention cannot be exchanged, where its code does not show it
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
    **dict.fromkeys(  # others are found by `check_modules`; but for the first, these would raise a KeyError before
        (
            *("bigbird_pegasus", "deepseek_ocr2_sam_vision_model", "pp_formulanet_vision"),
            *("sam_hq_vision_model", "sam_vision_model", "unlimited_ocr_sam_vision_model"),
        ),
        "its own code computes softmax, beside the attention interface",
    ),
    "deepseek_v4": "it adds compressed keys that its mask does not know",
}
_SOFTMAX = re.compile(r"\b(softmax|Softmax|scaled_dot_product_attention|MultiheadAttention)\(")
# pattern of classes of modules → what of a model beside its attention may keep softmax
KEEPS_SOFTMAX = {
    "Pool": "a pooling head",
    "DeformableAttention": "deformable attention, which has no keys",
    "AriaCrossAttention": "a projector of images",
    "AttnBlock": "a convolutional tokenizer of images",
    "MHAttentionMap": "a mask head",
    "PatchTSMixerGatedAttention": "",  # a gate over features
    "Sam2MultiScaleAttention": "",  # which throws it away, and calls the interface
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
    known = {key for key, found in AttentionInterface._global_mapping.items() if not _is_ours(found)}
    if (
        not isinstance(name, str)
        or not name
        or name in known | {"eager", IMPLEMENTATION}
        or any(part in name for part in _NAMES_OF_OTHERS)
    ):
        raise ValueError(f"name is {name!r}, but must be one that transformers does not use or read more into")
    activation = None
    if callable(attention) and not isinstance(attention, AttentionConfig):
        if "activation" in fields:
            raise ValueError(f"activation is {fields['activation']!r}, but the function that is given stands for it")
        attention, activation = {"activation": "identity"}, attention
    elif fields:
        if not isinstance(attention, str | dict):
            raise ValueError(f"attention is {attention!r}, but must be a preset's name or a dict beside other fields")
        attention = {"preset": attention} if isinstance(attention, str) else attention
    config = AttentionConfig.parse({**attention, **fields} if fields else attention)
    learned = [field for field in _LEARNED if getattr(config, field)]
    learned += [field for field in ("query_key_norm", "output_norm") if getattr(config, field) != "none"]
    if learned:
        raise ValueError(f"the attention {name!r} has parameters ({', '.join(learned)}): use exchange_attention")
    register(name, InterfaceAttention(config, activation))


def _is_ours(function: Any) -> bool:
    return isinstance(function, InterfaceAttention)


def _ours(name: Any) -> InterfaceAttention | None:
    """The attention of ours behind a name, or None."""
    found = AttentionInterface._global_mapping.get(name) if isinstance(name, str) else None
    return found if _is_ours(found) else None


def check_attention(model_class: type, config: PreTrainedConfig, attention: AttentionConfig, name: str) -> None:
    """Refuse a model in which an attention by name would not be what it says.

    Args:
        model_class: the model's class.
        config: its configuration.
        attention: the mathematics.
        name: that of the attention.

    Raises:
        ValueError: the model has no attention interface, or its attention has something that this one has not.
    """
    owner = model_class.__name__
    if not model_class._can_set_attn_implementation():
        raise ValueError(
            f"{owner} does not take {name}: its code does not call the attention interface of transformers"
        )
    for field in _SOFTCAPS:
        if getattr(config, field, None) is not None:
            raise ValueError(
                f"{owner} does not take {name}: its {field} is {getattr(config, field)}, a cap for softmax"
            )
    if config.model_type in REFUSED:
        raise ValueError(f"{owner} does not take {name}: {REFUSED[config.model_type]}")
    has_fixed_scale = attention.score == "dot" and attention.scale is not None and not attention.learned_scale
    if has_fixed_scale and all(part in _source_of(model_class) for part in _OWN_SCALE):
        raise ValueError(f"{owner} does not take {name}: it learns a scale of its queries, so that none is fixed")
    if "s_aux=" in _source_of(model_class) and attention.activation not in ("softmax", "softmax1"):
        raise ValueError(
            f"{owner} does not take {name}: its softmax has sinks; take 'softmax_attention' or 'softmax1_attention'"
        )


def check_modules(model: PreTrainedModel, name: str) -> None:
    """Refuse a model in which an attention would keep softmax, as its class does not call the interface.

    Args:
        model: built; those of its parts that are models themselves are left out.
        name: that of the attention.

    Raises:
        ValueError: there is one, and it is none of `KEEPS_SOFTMAX`.
    """
    left = sorted({one.__name__ for one in map(type, _own_modules(model)) if computes_softmax(one)})
    if left := [one for one in left if kept_by(one) is None]:
        raise ValueError(
            f"{type(model).__name__} does not take {name}: its own code computes softmax, beside the attention "
            f"interface: {', '.join(left)}"
        )


def kept_by(module_class: str) -> str | None:
    """What in `KEEPS_SOFTMAX` a class of a module is, by its name; None for an attention that is none of them."""
    return next((what for part, what in KEEPS_SOFTMAX.items() if part in module_class), None)


def _own_modules(module: nn.Module) -> Iterator[nn.Module]:
    for part in module.children():
        if not isinstance(part, PreTrainedModel):
            yield part
            yield from _own_modules(part)


@functools.cache
def computes_softmax(module_class: type[nn.Module]) -> bool:
    """Whether an attention of transformers has softmax in its code, and no call of the interface."""
    if "Att" not in module_class.__name__ or calls_interface(module_class):
        return False
    bases = [one for one in module_class.__mro__ if one.__module__.startswith("transformers.models.")]
    return any(_SOFTMAX.search(_code_of(one)) for one in bases)


def _code_of(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


@functools.cache
def _source_of(model_class: type) -> str:
    return _code_of(sys.modules.get(model_class.__module__))


def is_ours(name: Any) -> bool:
    """Whether an attention of this library has this name."""
    return _ours(name) is not None


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
    found = {name: part for name, part in parts.items() if part is not None and part != own}
    return {"": own, **found} if found or (parts and not is_ours(own)) else own


def _given_to(config: PreTrainedConfig, names: Any) -> dict[int, Any]:
    """What `attn_implementation` gives each configuration in one, by its identity.

    Raises:
        ValueError: it gives an attention of ours to a part that is not there.
    """
    if not isinstance(names, dict):
        parts, own = dict.fromkeys(config.sub_configs, names), names
    else:
        parts, own = {key: part for key, part in names.items() if key}, names.get("")
    found = {id(config): own}
    for key, name in parts.items():
        if isinstance(part := getattr(config, key, None), PreTrainedConfig):
            found |= _given_to(part, name)
        elif key not in config.sub_configs and (isinstance(name, dict) or is_ours(name)):
            known = ", ".join(map(repr, config.sub_configs)) or "none"
            raise ValueError(
                f"attn_implementation is {names!r}, but {key!r} is no part of {type(config).__name__}: {known}"
            )
    return found


def guard_models() -> None:
    """Let the models of transformers check an attention of ours before they take it, and save its name.

    transformers only warns where a model takes no attention by name, and saves none. So six methods are wrapped:
    where a model begins to be built and where it has been, is given another attention or made ready for continuous
    batching, and where a configuration is saved or read; and a property, where a configuration is given names.
    """
    if hasattr(PreTrainedModel, "_has_guarded_attentions"):
        return
    PreTrainedModel._has_guarded_attentions = True
    check, give = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.set_attn_implementation
    save, name_of = PreTrainedConfig.save_pretrained, PreTrainedConfig._attn_implementation
    built = PreTrainedModel.post_init

    def check_model(model: PreTrainedModel, name: Any, given: dict[int, Any] | None) -> None:
        attention = _ours(name)
        if attention is None:
            return
        if name == IMPLEMENTATION and not BEING_MADE:
            raise ValueError(f"{type(model).__name__} does not take {name}, which is what exchange_attention gives")
        check_attention(type(model), model.config, attention.attention, name)
        if given is None:
            return
        parts = [getattr(model.config, part, None) for part in model.config.sub_configs]
        parts = [part for part in parts if isinstance(part, PreTrainedConfig)]
        names = [given.get(id(part), part._attn_implementation) for part in parts]
        if names and name not in names and _CALL not in _source_of(type(model)):
            raise ValueError(
                f"{type(model).__name__} does not take {name}: it has no attention of its own, and its parts have "
                f"{', '.join(sorted(set(map(str, names))))}"
            )

    @functools.wraps(check)
    def get_correct_attn_implementation(self, requested_attention, is_init_check=False):
        check_model(self, requested_attention, {} if is_init_check else None)
        return check(self, requested_attention, is_init_check)

    @functools.wraps(built)
    def post_init(self):
        if is_ours(self.config._attn_implementation):
            check_modules(self, self.config._attn_implementation)
        built(self)

    @functools.wraps(give)
    def set_attn_implementation(self, attn_implementation, *args, **keywords):
        if hasattr(self.config, "exchanged"):
            refuse_another(attn_implementation)
        given = _given_to(self.config, attn_implementation)
        is_name_of_ours = is_ours(attn_implementation)
        for part in self.modules():
            if isinstance(part, PreTrainedModel):
                name = attn_implementation if is_name_of_ours else given.get(id(part.config))
                check_model(part, name, given)
                if is_ours(name):
                    check_modules(part, name)
        give(self, attn_implementation, *args, **keywords)
        if is_name_of_ours:  # transformers 5.17 forgets the copies of a configuration that parts may have
            for part in self.modules():
                if isinstance(part, PreTrainedModel):
                    part.config._attn_implementation = attn_implementation

    @functools.wraps(save)
    def save_pretrained(self, *args, **keywords):
        # config.json leaves names of attentions out: the model would reopen with softmax
        names = _names_of_ours(self)
        if names is None:
            return save(self, *args, **keywords)
        self.attn_implementation = names
        try:
            return save(self, *args, **keywords)
        finally:
            del self.attn_implementation

    def take_name(self, name):
        # None, where nothing is asked for, must not take a saved name of ours off
        if name is None and is_ours(self.__dict__.get("_attn_implementation_internal")):
            return
        if isinstance(name, dict):
            _given_to(self, name)
        name_of.fset(self, name)

    read = PreTrainedConfig.from_dict.__func__

    @functools.wraps(read)
    def from_dict(cls, config_dict, **keywords):
        if keywords.get("attn_implementation", "") is None:  # would go before what the file says
            del keywords["attn_implementation"]
        return read(cls, config_dict, **keywords)

    batch = GenerationMixin.init_continuous_batching

    @functools.wraps(batch)
    def init_continuous_batching(self, *args, **keywords):
        if is_ours(self.config._attn_implementation):  # it would be exchanged for flash attention's softmax
            raise ValueError(f"continuous batching does not take {self.config._attn_implementation}: use generate")
        return batch(self, *args, **keywords)

    GenerationMixin.init_continuous_batching = init_continuous_batching
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    PreTrainedModel.post_init, PreTrainedModel.set_attn_implementation = post_init, set_attn_implementation
    PreTrainedConfig.save_pretrained, PreTrainedConfig.from_dict = save_pretrained, classmethod(from_dict)
    PreTrainedConfig._attn_implementation = property(name_of.fget, take_name)


def register_attentions() -> None:
    """Register all `ATTENTIONS`, and guard the models that take them."""
    for name, attention in ATTENTIONS.items():
        register_attention(name, attention)
    guard_models()
