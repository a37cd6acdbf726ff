"""A tiny model of nearly every type that transformers has: the sizes of its default configuration are made small."""

import importlib
import inspect
import itertools
import re
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, ResNetConfig, ViTConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH = 32
HEADS = 4
LENGTH = 11
MOST_PARAMETERS = 100_000_000
GROUPED = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads")
# value → fields that get it, where a configuration has such a field of that kind
_FIELDS_OF_SIZE = {
    WIDTH: """hidden_size d_model n_embd embed_dim encoder_hidden_size decoder_hidden_size dim projection_dim
        hidden_dim text_embed_dim emb_dim embedding_size word_embed_proj_dim output_hidden_size out_hidden_size width
        encoder_width cross_attention_hidden_size""",
    HEADS: """num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads
        attention_heads encoder_num_attention_heads decoder_num_attention_heads num_experts num_local_experts
        n_routed_experts patch_size rotary_dim num_frames frames_per_clip prediction_length""",
    WIDTH // HEADS: """head_dim d_kv attention_head_dim kv_channels d_head qk_rope_head_dim qk_nope_head_dim v_head_dim
        mamba_n_heads mamba_d_head hidden_size_per_layer_input hidden_size_per_head""",
    2: """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth num_encoder_layers
        num_decoder_layers encoder_num_hidden_layers decoder_num_hidden_layers num_experts_per_tok
        num_experts_per_token moe_k moe_topk zero_expert_num attn_layer_period tubelet_size""",
    64: """intermediate_size ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_ff ffn_hidden_size
        expert_ffn_hidden_size moe_intermediate_size shared_expert_intermediate_size mlp_dim max_position_embeddings
        n_positions n_ctx max_sequence_length max_source_positions max_target_positions""",
    99: "vocab_size encoder_vocab_size decoder_vocab_size vocab_size_per_layer_input",
    16: "image_size q_lora_rank kv_lora_rank qk_head_dim context_length context_size",
    6: "sliding_window attention_window_size local_attention",
    3: "num_channels",
    1: "n_group topk_group attn_layer_offset n_shared_experts",
    0: "num_kv_shared_layers",
}
SIZES: dict[str, Any] = {name: size for size, names in _FIELDS_OF_SIZE.items() for name in names.split()}
SIZES |= {**dict.fromkeys(GROUPED, 2), "crop_size": 32}
OFTEN_NONE = {
    "vocab_size",
    "head_dim",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "n_routed_experts",
    "num_experts",
    "num_key_value_heads",
    "n_shared_experts",
    "prediction_length",
    "context_length",
    "moe_intermediate_size",
}
# two models in one, whose widths meet, and whose frames are of 8 values
CODEC = {"quantization_dim": 2 * WIDTH, "quantization_levels": [4, 4], "downsampling_ratios": [2, 4]}
CODEC_INPUTS = {"input_values": (2, 1, 8 * LENGTH), "input_features": (2, LENGTH, 160)}
# model type, or class of a configuration that has none → fields that no size says: without them its model cannot be
# built, or has no attention
FIELDS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": {"<image>": 3}},
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "kyutai_speech_to_text": {"audio_pad_token_id": 1},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "neucodec": CODEC,
    "patchtsmixer": {"self_attn": True},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xcodec2": CODEC,
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 6, "layers_block_type": ["mamba", "mamba", "hybrid"] * 2},
}
# model type → shapes of inputs that nothing general finds
INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "muse_glimmer_assistant": {
        "noise_embeds": (2, LENGTH, WIDTH),
        "context_hidden_states": (2, LENGTH, 5 * WIDTH),  # of as many layers of its target
        "attention_mask": (2, 2 * LENGTH),
    },
    "neucodec": CODEC_INPUTS,
    "xcodec2": CODEC_INPUTS,
}
# backbones that need a further package, or that are refused themselves
OTHER_BACKBONES = ("timm_backbone", "timm_wrapper", "swin", "maskformer-swin")
MAPPINGS = [
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
]


def shrink(config: PreTrainedConfig, widths: bool = True, groups: bool = True) -> PreTrainedConfig:
    """The configuration with small sizes, those in it too.

    Without `widths` only layers and tokens are fewer, without `groups` every head has keys and values of its own.
    """
    fields = {}
    sizes = SIZES if widths else {name: size for name, size in SIZES.items() if size in (2, 99)}
    for name, value in list(config.__dict__.items()):
        if name == "backbone_config" and getattr(value, "model_type", "") in OTHER_BACKBONES:
            stages = {"hidden_sizes": [16, 16, 32, WIDTH], "depths": [1, 1, 1, 1], "embedding_size": 16}
            fields[name] = ResNetConfig(
                **stages, layer_type="basic", out_indices=getattr(value, "out_indices", None) or [4]
            )
        elif getattr(value, "model_type", "") == "timm_wrapper":
            fields[name] = shrink(ViTConfig(num_labels=value.num_labels))
        elif isinstance(value, PreTrainedConfig):
            fields[name] = shrink(value, widths, groups)
        elif name == "image_size" and (isinstance(value, list | tuple) or not widths):
            fields[name] = [64, 64] if isinstance(value, list | tuple) else 64
        elif name in sizes and ((isinstance(value, int) and not isinstance(value, bool)) or name in OFTEN_NONE):
            fields[name] = [sizes[name]] * len(value) if isinstance(value, list) else sizes[name]
        elif name in ("layer_types", "mlp_layer_types", "attention_types", "layers_block_type") and value:
            if isinstance(value, list):
                seen = list(dict.fromkeys(map(str, value)))  # one layer of each kind, as far as two layers go
                fields[name] = (sorted(seen, key=lambda kind: "attention" not in kind) * 2)[:2]
        elif name in ("pad_token_id", "bos_token_id", "eos_token_id") and isinstance(value, int) and value > 98:
            fields[name] = 1
        elif name == "rope_parameters" and isinstance(value, dict) and value and widths and _has_sections(config):
            fields[name] = {**value, "mrope_section": [2, 1, 1]}
    if widths and "kv_lora_rank" in vars(config):  # each head has keys of its own, made of what is shared
        fields["num_key_value_heads"] = HEADS
    if not groups:
        fields |= dict.fromkeys(fields.keys() & set(GROUPED), HEADS)
    fields |= {"use_cache": False, **FIELDS.get(config.model_type or type(config).__name__, {})}
    for name, value in fields.items():
        try:
            setattr(config, name, value)
        except (AttributeError, NotImplementedError):
            continue
    return config


def _has_sections(config: PreTrainedConfig) -> bool:
    return "mrope_section" in inspect.getsource(module_of(config))


def module_of(config: PreTrainedConfig) -> ModuleType:
    """The module of transformers with the models of a configuration."""
    return importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))


def model_types() -> list[str]:
    """Every model type of the installed transformers, without those of this library."""
    return sorted(name for name in CONFIG_MAPPING if CONFIG_MAPPING[name].__module__.startswith("transformers."))


def has_model(model_type: str) -> bool:
    """Whether a model type is more than a configuration in that of another."""
    try:
        return model_class_of(AutoConfig.for_model(model_type)) is not None
    except LookupError:
        return False
    except Exception:  # whatever a default configuration raises that does not pass its own checks
        return True


def model_class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that takes the plainest inputs: of the auto classes, else the first that has such a configuration."""
    for mapping in MAPPINGS:
        found = getattr(modeling_auto, mapping, {}).get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found
    for found, part in parts_of(config):
        if part is config:
            return found
    raise LookupError(f"no model class of {config.model_type}")


def configs_in(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """The configuration and all that are in it, the outermost first."""
    found = [config]
    for part in found:
        found += [value for value in vars(part).values() if isinstance(value, PreTrainedConfig)]
    return found


def parts_of(config: PreTrainedConfig) -> Iterator[tuple[type[PreTrainedModel], PreTrainedConfig]]:
    """The classes of models in the file of a configuration, each with that of its own which is in it."""
    configs = configs_in(config)
    for found in vars(module_of(config)).values():
        is_model = isinstance(found, type) and issubclass(found, PreTrainedModel)
        if is_model and found.__module__ == module_of(config).__name__ and "PreTrained" not in found.__name__:
            for part in configs:
                if found.config_class is type(part):
                    yield found, part
                    break


def models_of(model_type: str) -> Iterator[tuple[str, PreTrainedModel | Exception]]:
    """Tiny models of a type in evaluation mode, from seed 0: the whole, then its parts, or why there is none."""
    seen = []
    for place, sizes in itertools.product(("whole", "part"), ((True, True), (True, False), (False, True))):
        try:
            config = shrink(AutoConfig.for_model(model_type), *sizes)
            classes = [(model_class_of(config), config)] if place == "whole" else list(parts_of(config))
        except TimeoutError:
            raise
        except Exception as error:  # whatever a model raises that was made too small
            yield place, error
            continue
        if (place, str(config)) in seen:
            continue
        seen.append((place, str(config)))
        for model_class, part in classes:
            try:
                yield place, build(model_class, part)
            except TimeoutError:
                raise
            except Exception as error:
                yield place, error


def build(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a small configuration."""
    config._attn_implementation = "eager"
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class._from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise LookupError(f"it has {size} parameters with its other sizes as they are")
    torch.manual_seed(0)
    model = model_class._from_config(config).eval()
    spread(model)
    return model


@torch.no_grad()
def spread(model: PreTrainedModel) -> None:
    """Draw parameters anew where a fresh model's are so alike that attention hardly shows: biases, small weights."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            scale = 0.5 if "bias" in name else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def inputs_of(model: PreTrainedModel) -> Generator[dict[str, torch.Tensor], Exception, None]:
    """Inputs that the model may take, the likeliest first; of text two rows, the second padded on the left.

    Send back the error of a model that refused its inputs: what it names comes along with the next.
    """
    if model.config.model_type in INPUTS:
        generator = torch.Generator().manual_seed(1)
        found = {
            name: torch.randn(shape, generator=generator) for name, shape in INPUTS[model.config.model_type].items()
        }
        if "attention_mask" in found:
            found["attention_mask"] = torch.ones(found["attention_mask"].shape, dtype=torch.long)
            found["attention_mask"][1:, :3] = 0
        yield found
    arguments = inspect.signature(model.forward).parameters
    required = [
        name for name, one in arguments.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    main = main_of(model)
    media = [
        name for name in ("pixel_values", "pixel_values_videos", "input_features", "input_values") if name in arguments
    ]
    chosen = [[main], *([main, name] for name in media), *([name] for name in media)]
    beside = [name for name in ("decoder_input_ids",) if name in arguments]
    seen = []
    for names in chosen:
        names = list(dict.fromkeys(name for name in [*required, *names, *beside] if name))
        for _ in range(4):
            if sorted(names) in seen:
                break
            seen.append(sorted(names))
            named = set()
            found = {}
            error = None
            values = [list(values_of(name, model)) for name in names]
            tried = []
            for one in itertools.islice(itertools.product(*values), 24):
                found = dict(zip(names, one, strict=True))
                if "attention_mask" in arguments and found.get("input_ids", torch.empty(0)).shape == (2, LENGTH):
                    found["attention_mask"] = torch.ones_like(found["input_ids"])
                    found["attention_mask"][1:, :3] = 0
                error = yield found
                tried.append((found, error))
                named |= set(re.findall(r"\w+", str(error))) & set(arguments)
            for found, error in [*tried[:2], *tried[-1:]]:
                for number in {int(number) for number in re.findall(r"\d+", str(error))} - {1, 2, LENGTH}:
                    for name, value in found.items() if number < 4096 else ():  # a width that it wants
                        if value.is_floating_point():
                            length = value.shape[1] if value.dim() == 3 else 32
                            generator = torch.Generator().manual_seed(1)
                            error = yield {**found, name: torch.randn(2, length, number, generator=generator)}
            names = [*names, *(name for name in sorted(named) if name not in names)]


def main_of(model: PreTrainedModel) -> str:
    """Name of a model's first input."""
    arguments = inspect.signature(model.forward).parameters
    main = model.main_input_name if isinstance(model.main_input_name, str) else model.main_input_name[0]
    return main if main in arguments else next(iter(arguments), "")


def values_of(name: str, model: PreTrainedModel) -> Iterator[torch.Tensor]:
    """Values that an argument of a model may take, the likeliest first."""
    generator = torch.Generator().manual_seed(1)
    config = model.config
    vision = getattr(config, "vision_config", config)
    parts = [vision, *configs_in(config)]

    def number(default: int, *names: str) -> int:
        found = (getattr(part, name, None) for part in parts for name in names)
        found = next((one for one in found if one), default)
        return found[0] if isinstance(found, list | tuple) else found

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    width = number(WIDTH, "hidden_size", "d_model", "embed_dim", "dim")
    channels = number(3, "num_channels", "in_channels", "in_chans")
    size = number(16, "image_size")
    audio = ("input_size", "num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim")
    bins = number(8, *audio, "input_dim")
    patch = number(4, "patch_size")
    times = number(1, "temporal_patch_size")
    frames = 2 * number(32, "max_source_positions")
    count = number(4, "num_frames", "frames_per_clip")
    sides = list(dict.fromkeys([size, 64, 32]))
    has_grid = any("grid_thw" in one for one in inspect.signature(model.forward).parameters)
    if name in ("input_ids", "decoder_input_ids") or name.endswith("_input_ids"):
        length = 7 if name.startswith("decoder") else LENGTH
        yield torch.randint(3, 90, (2, length), generator=generator)
        books = number(0, "num_codebooks", "num_channels", "num_quantizers")
        if books:
            yield torch.randint(3, 90, (2, length, books), generator=generator)
            yield torch.randint(3, 90, (2 * books, length), generator=generator)
    elif name.endswith("grid_thw"):
        yield torch.tensor([[1, 4, 4]])
    elif name in ("pixel_values", "hidden_states", "patch_embeds", main_of(model)) and has_grid:
        yield draw(16, channels * times * patch * patch)
        yield draw(16, channels, patch, patch)
    elif name == "pixel_values":
        if getattr(config, "num_frames", None):
            yield draw(2, count, channels, size, size)
        for side in sides:
            yield draw(2, channels, side, side)
        yield draw(2, 2, channels, 64, 64)
        yield draw(2, 4, channels * patch * patch)
    elif name == "pixel_values_videos":
        yield draw(2, count, channels, size, size)
    elif name == "input_features":
        yield from (draw(2, bins, frames), draw(2, frames, bins), draw(2, 1, bins, frames))
    elif name == "input_values":
        yield from (draw(2, 1600), draw(2, 1, 1600), draw(2, 1, 1920), draw(2, 1024, 128), draw(2, 128, 1024))
    elif name in ("input_features_mask",):
        yield torch.ones(2, frames, dtype=torch.long)
    elif name == "bbox":
        yield torch.tensor([1, 2, 5, 7]).expand(2, LENGTH, 4)
    elif name in ("past_values", "past_time_features", "past_observed_mask"):
        past = number(32, "context_length", "prediction_length") + max(getattr(config, "lags_sequence", None) or [0])
        past = {"past_values": draw(2, past), "past_observed_mask": torch.ones(2, past)}.get(
            name, draw(2, past, getattr(config, "num_time_features", 2))
        )
        yield past
        if name == "past_values":
            yield draw(2, past.shape[1], number(1, "num_input_channels"))
    elif name.endswith("mask"):
        yield torch.ones(2, LENGTH, dtype=torch.long)
        yield torch.ones(2, LENGTH, dtype=torch.bool)
    elif name.endswith(("states", "embeds", "features", "latents", "context", "feats")):
        for part in dict.fromkeys([number(width, "visual_feat_dim", "encoder_hidden_size"), width, WIDTH]):
            yield draw(2, LENGTH, part)
            yield draw(2, part, 4, 4)
