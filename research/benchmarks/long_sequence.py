"""Memory and time of a training step on one long sequence: forward, backward and AdamW of a 6 + 6 layer Transformer.

The peak is that of the process: parameters, gradients, optimizer and PyTorch itself included.

Example:
    python research/benchmarks/long_sequence.py --length 8192 --preset reluformer
"""

import argparse
import resource
import time

import torch
from transformers import AutoModelForSeq2SeqLM

from reluformers import seq2seq_config
from reluformers.errors import run_main

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Memory and time of a training step on one long sequence.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--length", type=int, default=8192, help="tokens of the source")
    parser.add_argument("--target_length", type=int, default=8192, help="tokens of the target")
    parser.add_argument("--gradient_checkpointing", action="store_true", help="compute activations again")
    parser.add_argument("--preset", default="reluformer")
    parser.add_argument("--backend", default="fused", choices=("fused", "eager"))
    parser.add_argument("--d_model", type=int, default=512)
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def peak_megabytes() -> float:
    """Most memory that the process has held so far: on the GPU if there is one, else resident."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = seq2seq_config(
        options.preset,
        vocab_size=options.vocab_size,
        d_model=options.d_model,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=options.d_model // 64,
        decoder_attention_heads=options.d_model // 64,
        encoder_ffn_dim=4 * options.d_model,
        decoder_ffn_dim=4 * options.d_model,
        max_position_embeddings=max(options.length, options.target_length),
    )
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=options.backend).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    source, target = (
        torch.randint(4, options.vocab_size, (1, length), device=DEVICE)
        for length in (options.length, options.target_length)
    )
    before = peak_megabytes()
    started = time.perf_counter()
    model(input_ids=source, labels=target).loss.backward()
    optimizer.step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    backend = f"{options.preset} {options.backend}"
    print(f"torch {torch.__version__} on {DEVICE}, {options.threads} threads, fp32, {backend}")
    print(f"one step at {options.length} + {options.target_length} tokens: {seconds:.1f} s")
    print(f"peak {peak_megabytes():.0f} MB, of them {before:.0f} MB before the step")


if __name__ == "__main__":
    run_main(main)
