r"""What a small causal Llama loses when its softmax is exchanged, and how fast updates bring it back.

    python research/benchmarks/exchanged_llama.py train.jsonl.gz validation.jsonl.gz --output runs/exchanged_llama

Trains `LlamaForCausalLM` with softmax on the sentences of both languages of a translation set, byte-level BPE, in rows
of whole sentences; then exchanges the attention of copies of it, fits them in closed form, and trains each on. Losses
are nats a token on the validation rows. The output folder keeps each stage, so that a call that was cut off goes on.
"""

import argparse
import gzip
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from reluformers import exchange_attention, restore_attention
from reluformers.conversion.exchanged_fit import fit_attention

ATTENTIONS = {
    "softmax": {"learned_scale": True},  # the same updates with softmax
    "relu-sum": "relu-sum",
    "reluformer": "reluformer",
    "reluformer, learned a": {"preset": "reluformer", "learned_scale": True},
    "rela-g": "rela-g",
    "qknorm": "qknorm",
    "entmax15": "entmax15",
}
LENGTH, ROWS = 128, 32


def sentences(path: Path) -> list[str]:
    """Sentences of both languages, shuffled."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    found = [text for pair in pairs for text in pair.get("translation", pair).values()]
    random.Random(0).shuffle(found)
    return found


def rows_of(texts: list[str], tokenizer: Tokenizer) -> torch.Tensor:
    """Rows of `LENGTH` tokens, sentences one after the other with an end token between."""
    ids = [number for encoded in tokenizer.encode_batch(texts) for number in (*encoded.ids, 0)]
    return torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)


def train(model, rows: torch.Tensor, updates: int, rate: float, seed: int, held: torch.Tensor, every: int) -> list:
    """Train, and measure the loss every some updates."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    warmup = max(1, updates // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * min(1, step / updates)))
    )
    generator, losses, start = torch.Generator().manual_seed(seed), [], time.time()
    for step in range(1, updates + 1):
        batch = rows[torch.randint(len(rows), (ROWS,), generator=generator)]
        model.train()
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % every == 0 or step == updates:
            losses.append((step, evaluate(model, held)))
            print(f"{step}/{updates} {losses[-1][1]:.3f} after {time.time() - start:.0f} s", flush=True)
    return losses


@torch.no_grad()
def evaluate(model, held: torch.Tensor) -> float:
    """Mean loss, nats a token."""
    model.eval()
    return sum(model(input_ids=part, labels=part).loss.item() * len(part) for part in held.split(ROWS)) / len(held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("validation", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=600, help="with softmax")
    parser.add_argument("--tuning", type=int, default=100, help="updates after the exchange")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    texts = sentences(options.train)
    if not (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=4096, special_tokens=["<end>"], initial_alphabet=alphabet)
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows, held = rows_of(texts, tokenizer), rows_of(sentences(options.validation), tokenizer)[:96]
    print(f"{len(rows):,} rows of {LENGTH} tokens, {len(held)} of validation", flush=True)
    if not (folder / "softmax" / "config.json").exists():
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=4096,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config)
        train(model, rows, options.updates, 2e-3, 1, held, 50)
        model.save_pretrained(folder / "softmax")
    results_file = folder / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    for name, attention in ATTENTIONS.items():
        if name in results:
            continue
        model = AutoModelForCausalLM.from_pretrained(folder / "softmax", attn_implementation="sdpa")
        before = evaluate(model, held)
        exchange_attention(model, attention)
        directly = evaluate(model, held)
        errors = fit_attention(model, [{"input_ids": part} for part in rows[: 4 * ROWS].split(ROWS)])
        fitted = evaluate(model, held)
        print(f"{name}: {before:.3f}, exchanged {directly:.3f}, fitted {fitted:.3f}", flush=True)
        losses = train(model, rows, options.tuning, 5e-4, 2, held, max(1, options.tuning // 4))
        results[name] = {
            **{"before": before, "exchanged": directly, "fitted": fitted, "tuned": losses},
            "error": sum(errors.values()) / len(errors),
        }
        restore_attention(model)
        results_file.write_text(json.dumps(results, indent=2) + "\n")
    steps = [str(step) for step, _ in next(iter(results.values()))["tuned"]]
    print("| attention | before | exchanged | fitted |", " | ".join(f"{step} updates" for step in steps), "|")
    print("|---" * (4 + len(steps)) + "|")
    for name, found in results.items():
        numbers = [found["before"], found["exchanged"], found["fitted"], *(loss for _, loss in found["tuned"])]
        print(f"| {name} |", " | ".join(f"{number:.2f}" for number in numbers), "|")


if __name__ == "__main__":
    main()
