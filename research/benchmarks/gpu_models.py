r"""Whole models on one GPU: a training step and `generate` with our attention, as ratios to the stock model's time.

    python research/benchmarks/gpu_models.py --seconds 420

Needs torch, transformers and this library. The candidates of a comparison run in turn, round by round; a ratio is
taken inside its round, and the median over the rounds is printed with their spread, the memory of a step and the time
until the first step had run. No comparison begins after --seconds.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import transformers
from attention import in_turn, ratios_to
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MarianConfig,
    MarianMTModel,
    ViTConfig,
    ViTForImageClassification,
)

import reluformers

STEPS = 4  # of a candidate in a round
Step = Callable[[], object]


def train_step(model: torch.nn.Module, **inputs: object) -> Step:
    """One forward and backward pass in bfloat16."""
    model = model.to("cuda", torch.bfloat16).train()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()

    return step


def llama(attention: str, batch: int, length: int) -> Step:
    """Llama of 124 million parameters by name, or exchanged with a preset given as "exchanged PRESET"."""
    config = LlamaConfig(
        **{"vocab_size": 16384, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12},
        **{"num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 16384},
    )
    preset = attention.removeprefix("exchanged ")
    is_exchanged = preset != attention
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa" if is_exchanged else attention)
    if is_exchanged:
        reluformers.exchange_attention(model, preset)
    ids = torch.randint(3, 16000, (batch, length), device="cuda")
    return train_step(model, input_ids=ids, labels=ids, use_cache=False)


def vit(attention: str, batch: int) -> Step:
    """ViT-B/16 at 224 pixels."""
    model = ViTForImageClassification(ViTConfig(attn_implementation=attention, num_labels=1000))
    pixels = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return train_step(model, pixel_values=pixels, labels=labels)


def build_translator(kind: str) -> torch.nn.Module:
    """Marian, or a preset of ours, at Transformer-base's widths: d 512, 6 + 6 layers."""
    sizes = {"vocab_size": 32000, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6}
    sizes |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    sizes |= {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    if kind != "marian":
        return reluformers.ReLUFormerForConditionalGeneration(reluformers.seq2seq_config(kind, **sizes))
    ends = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    return MarianMTModel(MarianConfig(**sizes, **ends, attn_implementation="sdpa"))


def draw_pairs(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Sources, half of them with a quarter of padding, and targets."""
    ids, labels = (torch.randint(5, 31000, (batch, length), device="cuda") for _ in range(2))
    mask = torch.ones_like(ids)
    mask[::2, length * 3 // 4 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def translate(kind: str, batch: int, length: int) -> Step:
    """A training step of a translation model."""
    return train_step(build_translator(kind), **draw_pairs(batch, length))


def generate(kind: str, batch: int, beams: int, tokens: int = 48) -> Step:
    """So many tokens for each sentence, by beam search, or greedily with one beam."""
    model = build_translator(kind).to("cuda", torch.bfloat16).eval()
    inputs = draw_pairs(batch, tokens)
    del inputs["labels"]
    options = {"num_beams": beams, "max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}

    def step() -> None:
        with torch.no_grad():
            model.generate(**inputs, **options)

    return step


NAMES = ("relu", "relu_sum", "entmax15", "softmax1", "sigmoid", "tda")
BY_NAME = ("sdpa", *(f"{name}_attention" for name in NAMES))
PRESETS = ("marian", "softmax", "reluformer", "rela-g", "qknorm")
# title → candidates, the peer first, and how each is built
COMPARISONS: dict[str, tuple[tuple[str, ...], Callable[[str], Step]]] = {
    "translation 128 x 64": (PRESETS, lambda kind: translate(kind, 128, 64)),
    "Llama 8 x 1024": ((*BY_NAME, "exchanged rela-g", "exchanged qknorm"), lambda kind: llama(kind, 8, 1024)),
    "ViT-B/16 x 128": (("sdpa", "relu_attention", "entmax15_attention"), lambda kind: vit(kind, 128)),
    "generate 64 x 4 beams": (PRESETS[:4], lambda kind: generate(kind, 64, 4)),
}


def seconds_of(step: Step, number: int) -> float:
    """Time of one of so many steps in a row."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / number


def compare(title: str, rounds: int) -> None:
    """Print milliseconds, ratio to the first candidate, memory and time to the first step of each candidate."""
    names, build = COMPARISONS[title]
    steps = {}
    notes = {}
    for name in names:
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step = build(name)
        try:
            first = seconds_of(step, 1)
        except Exception as error:  # one candidate does not cost the others their numbers
            print(f"{title:30} {name:22} fails: {type(error).__name__} {str(error).strip()[:300]}", flush=True)
            continue
        seconds_of(step, 2)
        steps[name] = step
        notes[name] = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:7.0f} MB  first {first:.1f} s"
    number = 1 if title.startswith("generate") else STEPS
    times = in_turn({name: partial(seconds_of, step, number) for name, step in steps.items()}, rounds)
    for name, ratios in ratios_to(names[0], times).items():
        spread = f"{statistics.median(ratios):5.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        milliseconds = 1e3 * statistics.median(times[name])
        print(f"{title:30} {name:22} {milliseconds:9.2f} ms  {spread}  {notes[name]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=420, help="after which no comparison begins")
    parser.add_argument("--rounds", type=int, default=5, help="of each comparison")
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS), help="comparisons")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    end = time.monotonic() + options.seconds
    for title in options.only:
        if time.monotonic() < end:
            compare(title, options.rounds)
        else:
            print(f"{title:30} left out: the time is over")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
