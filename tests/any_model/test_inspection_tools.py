"""Tools that look inside of models: each computes or shows our attention, or says that it does not."""

import logging

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from .test_by_name import build

IDS = torch.arange(3, 15)[None]


@pytest.fixture
def model():
    return build("llama", "relu_attention")


@pytest.fixture
def folder(model, tmp_path):
    """The saved model with a tokenizer, as most tools want one."""
    backend = Tokenizer(models.WordLevel({f"w{token}": token for token in range(99)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize("when", ["opened", "set"])
def test_softmax_in_a_model_that_was_saved_with_another_attention_is_said_once(name, when, folder, caplog):
    transformers.utils.logging.get_logger().warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            if when == "opened":
                AutoModelForCausalLM.from_pretrained(folder, attn_implementation=name)
            else:
                AutoModelForCausalLM.from_pretrained(folder).set_attn_implementation(name)
    assert caplog.text.count(f"attn_implementation='{name}', which computes softmax") == 1


def test_transformer_lens_computes_our_attention_where_it_keeps_that_of_the_model(model, folder):
    pytest.importorskip("transformer_lens")
    from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
    from transformer_lens.model_bridge.supported_architectures.llama import LlamaArchitectureAdapter

    class OwnAttention(LlamaArchitectureAdapter):
        def __init__(self, cfg):
            super().__init__(cfg)
            cfg.attn_implementation = "relu_attention"

        def _build_attention_bridge(self):
            parts = {name: LinearBridge(name=f"{name}_proj") for name in "qkvo"}
            return AttentionBridge("self_attn", self.cfg, submodules=parts, maintain_native_attention=True)

    ArchitectureAdapterFactory.register_adapter("LlamaForCausalLM", OwnAttention)
    try:
        bridge = TransformerBridge.boot_transformers(folder, device="cpu")
    finally:
        ArchitectureAdapterFactory.register_adapter("LlamaForCausalLM", LlamaArchitectureAdapter)
    logits, cache = bridge.run_with_cache(IDS)
    expected = model(IDS, output_attentions=True)
    torch.testing.assert_close(logits, expected.logits)
    for layer, weights in enumerate(expected.attentions):
        assert torch.equal(cache[f"blocks.{layer}.attn.hook_pattern"], weights)
