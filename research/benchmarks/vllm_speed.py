"""Tokens per second of vLLM on CPUs, with attentions by name beside its own softmax, in one interleaved run.

Example:
    VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
        python research/benchmarks/vllm_speed.py --rounds 5
"""

import argparse
import statistics
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from vllm import LLM, SamplingParams

SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64}


def main() -> None:
    """Print the median of each attention and of its ratio to softmax in the same round."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--names", nargs="+", default=["relu_attention", "entmax15_attention"])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=33, help="tokens that are written")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    engines = {}
    for name in ("sdpa", *options.names):
        config = LlamaConfig(vocab_size=1024, num_attention_heads=4, num_key_value_heads=2, **SIZES)
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config, attn_implementation=name).save_pretrained(folder)
            engines[name] = LLM(
                folder,
                dtype="float32",
                enforce_eager=True,
                skip_tokenizer_init=True,
                max_model_len=options.prompt + options.new,
                max_num_seqs=options.requests,
                enable_prefix_caching=False,
            )
    prompts = [{"prompt_token_ids": ids} for ids in torch.randint(1024, (options.requests, options.prompt)).tolist()]
    rates = {name: [] for name in engines}
    for count in (1, options.new):
        settings = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        times = {name: [] for name in engines}
        for _ in range(options.rounds + 1):
            for name, engine in engines.items():
                start = time.perf_counter()
                engine.generate(prompts, settings, use_tqdm=False)
                times[name].append(time.perf_counter() - start)
        for name, seconds in times.items():
            rates[name].append(seconds[1:])  # The first round warms up.
    for name, (reading, whole) in rates.items():
        read = [options.requests * options.prompt / seconds for seconds in reading]
        ratios = [own / other for own, other in zip(whole, rates["sdpa"][1], strict=True)]
        wrote = options.requests * (options.new - 1) / (statistics.median(whole) - statistics.median(reading))
        print(
            f"{name}: {statistics.median(read):.0f} tokens/s read, {wrote:.0f} tokens/s written, "
            f"{statistics.median(ratios):.2f} of softmax's time"
        )


if __name__ == "__main__":
    main()
