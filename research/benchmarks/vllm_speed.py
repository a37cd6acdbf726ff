"""Tokens per second of vLLM on CPUs, with attentions by name beside its own softmax, in one interleaved run.

Example:
    VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
        python research/benchmarks/vllm_speed.py
"""

import tempfile
from functools import partial
from statistics import median
from timeit import timeit

import torch
from attention import in_turn, ratios_to
from transformers import AutoModelForCausalLM, LlamaConfig
from vllm import LLM, SamplingParams

NAMES = ("sdpa", "relu_attention", "entmax15_attention")
REQUESTS = 8
PROMPT = 256  # tokens that are read, of each request
ROUNDS = 5
NEW = 33  # tokens that are written
SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}


def main() -> None:
    """Print the median of each attention and of its ratio to softmax in the same round."""
    engines = {}
    for name in NAMES:
        config = LlamaConfig(vocab_size=1024, num_attention_heads=4, num_key_value_heads=2, **SIZES)
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config, attn_implementation=name).save_pretrained(folder)
            engines[name] = LLM(
                folder,
                dtype="float32",
                enforce_eager=True,
                skip_tokenizer_init=True,
                max_model_len=512,
                enable_prefix_caching=False,
            )
    prompts = [{"prompt_token_ids": ids} for ids in torch.randint(1024, (REQUESTS, PROMPT)).tolist()]
    times = {}
    for count in (1, NEW):
        settings = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        calls = {
            name: partial(timeit, partial(engine.generate, prompts, settings), number=1)
            for name, engine in engines.items()
        }
        in_turn(calls, 1)  # warms up
        times[count] = in_turn(calls, ROUNDS)
    for name, ratios in ratios_to("sdpa", times[NEW]).items():
        reading = median(times[1][name])
        read = REQUESTS * PROMPT / reading
        wrote = REQUESTS * (NEW - 1) / (median(times[NEW][name]) - reading)
        print(
            f"{name}: {read:.0f} tokens/s read, {wrote:.0f} tokens/s written, {median(ratios):.2f} of softmax's time"
        )


if __name__ == "__main__":
    main()
