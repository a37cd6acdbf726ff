"""The entry point that vLLM calls in each of its processes; nothing of vLLM is imported before."""

from ..configuration.configuration_exchanged import ExchangedConfig
from ..modeling.modeling_exchanged import base_with

# Of these all layers call vLLM's `Attention`, and tests compare their tokens with those of transformers.
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
PREFIXES = ("Reluformers", "Exchanged")  # A folder's class begins so, with an attention by name or exchanged.
VERSION = "0.32."  # Backends of vLLM change from version to version.


def register() -> None:
    """Make folders with an attention of this library known to vLLM, and touch no other model."""
    from vllm import ModelRegistry

    # vLLM reads the sizes of a model there. transformers asks an empty configuration too, for its defaults.
    ExchangedConfig.get_text_config = lambda config, **_: base_with(config) if config.base_type else config
    for name in [prefix + architecture for prefix in PREFIXES for architecture in ARCHITECTURES]:
        # vLLM imports the module only for such a folder, so that other models work with every version of vLLM.
        ModelRegistry.register_model(name, f"{__package__}.vllm_models:{name}")
