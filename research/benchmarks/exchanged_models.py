r"""What a small model of transformers loses when its softmax is exchanged, and how fast updates bring it back.

    python research/benchmarks/exchanged_models.py llama --train train.jsonl.gz --validation validation.jsonl.gz \
        --output runs/exchanged_llama
    python research/benchmarks/exchanged_models.py marian --train … --validation … --output runs/exchanged_marian
    python research/benchmarks/exchanged_models.py vit --output runs/exchanged_vit

Trains a stock model with softmax: `LlamaForCausalLM` on the sentences of both sides of a translation set, in rows of
whole sentences; `MarianMTModel` on its pairs; `ViTForImageClassification` on scikit-learn's digits, moved by a pixel
at random. Then it exchanges the attention of copies, fits them in closed form, and trains each on. Losses are nats a
token or image of the validation set. The output folder keeps each stage, so that a call that was cut off goes on.
"""

import argparse
import gzip
import json
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from reluformers import exchange_attention, restore_attention
from reluformers.conversion.exchanged_fit import fit_attention
from reluformers_research.causal.text import train_tokenizer

ATTENTIONS = {
    "softmax": {"learned_scale": True},  # the same updates with softmax
    "relu-sum": "relu-sum",
    "reluformer": "reluformer",
    "reluformer, learned a": {"preset": "reluformer", "learned_scale": True},
    "rela-g": "rela-g",
    "qknorm": "qknorm",
    "entmax15": "entmax15",
}
LENGTH, ROWS, HELD_OUT = 128, 32, 512
Batch = dict[str, Tensor]


@dataclass
class Case:
    """A model and its data.

    Args:
        build: makes a fresh model.
        draw: draws a batch of training rows.
        held_out: batches of the validation set.
        unpadded: training batches for the fit.
        rate: highest learning rate.
        tuning_rate: that after an exchange.
    """

    build: Callable[[], PreTrainedModel]
    draw: Callable[[torch.Generator], Batch]
    held_out: list[Batch]
    unpadded: list[Batch]
    rate: float = 2e-3
    tuning_rate: float = 5e-4


def pairs_of(path: Path) -> list[list[str]]:
    """Both sides of each pair."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [list(row.get("translation", row).values()) for row in rows]


def llama(train: Path, validation: Path) -> Case:
    """A causal model of whole sentences, both languages shuffled."""
    texts, held = ([text for pair in pairs_of(path) for text in pair] for path in (train, validation))
    random.Random(0).shuffle(texts)
    tokenizer = train_tokenizer(texts, 4096)

    def rows_of(sentences: list[str]) -> Tensor:
        ids = [number for encoded in tokenizer.encode_batch(sentences) for number in (*encoded.ids, 0)]
        return torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)

    rows, held_rows = rows_of(texts), rows_of(held)[:96]
    as_batch = lambda part: {"input_ids": part, "labels": part}  # noqa: E731
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
    return Case(
        lambda: LlamaForCausalLM(config),
        lambda generator: as_batch(rows[torch.randint(len(rows), (ROWS,), generator=generator)]),
        list(map(as_batch, held_rows.split(ROWS))),
        list(map(as_batch, rows[: 4 * ROWS].split(ROWS))),
    )


def marian(train: Path, validation: Path) -> Case:
    """A translator of the first side of the pairs into the second."""
    pairs, held = pairs_of(train), pairs_of(validation)
    tokenizer = train_tokenizer([text for pair in pairs for text in pair], 4094)
    start, pad = 4094, 4095

    def encode(sentences: list[list[str]]) -> list[list[list[int]]]:
        sides = (tokenizer.encode_batch([pair[side] for pair in sentences]) for side in (0, 1))
        return [[[*one.ids, 0], [*two.ids, 0]] for one, two in zip(*sides, strict=True)]

    def as_batch(rows: Iterable[list[list[int]]]) -> Batch:
        source, target = (
            nn.utils.rnn.pad_sequence(list(map(torch.tensor, side)), batch_first=True, padding_value=pad)
            for side in zip(*rows, strict=True)
        )
        labels = target.masked_fill(target == pad, -100)
        return {"input_ids": source, "attention_mask": (source != pad).long(), "labels": labels}

    rows, held_rows = encode(pairs), encode(held)[:HELD_OUT]
    by_lengths = defaultdict(list)
    for row in rows[:20_000]:
        by_lengths[tuple(map(len, row))].append(row)
    same = sorted(by_lengths.values(), key=len)[-4:]
    config = MarianConfig(
        vocab_size=4096,
        d_model=192,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        max_position_embeddings=512,
        dropout=0.0,
        pad_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=start,
    )

    def draw(generator: torch.Generator) -> Batch:
        return as_batch(rows[number] for number in torch.randint(len(rows), (4 * ROWS,), generator=generator))

    return Case(
        lambda: MarianMTModel(config),
        draw,
        [as_batch(held_rows[first : first + 128]) for first in range(0, len(held_rows), 128)],
        [as_batch(group[: 2 * ROWS]) for group in same],
        rate=1e-3,
    )


def vit() -> Case:
    """A classifier of 8 × 8 digits, a patch of 2 × 2 each."""
    from sklearn.datasets import load_digits  # needed here alone

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images = torch.tensor(digits.images[order], dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target[order])
    train = len(images) - 360

    def draw(generator: torch.Generator) -> Batch:
        chosen = torch.randint(train, (2 * ROWS,), generator=generator)
        moves = torch.randint(-1, 2, (2,), generator=generator).tolist()
        return {"pixel_values": images[chosen].roll(moves, (2, 3)), "labels": labels[chosen]}

    as_batch = lambda part: {"pixel_values": images[part], "labels": labels[part]}  # noqa: E731
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_labels=10,
    )
    return Case(
        lambda: ViTForImageClassification(config),
        draw,
        [as_batch(slice(train, None))],
        [as_batch(slice(0, 128))],
        rate=1e-3,
        tuning_rate=3e-4,
    )


def train_model(model, case: Case, updates: int, rate: float, seed: int, every: int) -> list[tuple[int, float]]:
    """Train, and measure the loss every some updates."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    warmup = max(1, updates // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * min(1, step / updates)))
    )
    generator, losses, start = torch.Generator().manual_seed(seed), [], time.time()
    for step in range(1, updates + 1):
        model.train()
        loss = model(**case.draw(generator)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % every == 0 or step == updates:
            losses.append((step, evaluate(model, case.held_out)))
            print(f"{step}/{updates} {losses[-1][1]:.3f} after {time.time() - start:.0f} s", flush=True)
    return losses


@torch.no_grad()
def evaluate(model, batches: list[Batch]) -> float:
    """Mean loss, nats a token or image."""
    model.eval()
    counts = [int((batch["labels"] != -100).sum()) for batch in batches]
    losses = [model(**batch).loss.item() * count for batch, count in zip(batches, counts, strict=True)]
    return sum(losses) / sum(counts)


def exchange(case: Case, folder: Path, attention, tuning: int, seed: int) -> dict:
    """Losses of one attention in the model of a folder."""
    model = type(case.build()).from_pretrained(folder, attn_implementation="sdpa")
    before = evaluate(model, case.held_out)
    exchange_attention(model, attention)
    directly = evaluate(model, case.held_out)
    inputs = [{name: part for name, part in batch.items() if name != "attention_mask"} for batch in case.unpadded]
    errors = fit_attention(model, inputs)
    fitted = evaluate(model, case.held_out)
    losses = train_model(model, case, tuning, case.tuning_rate, seed + 1, max(1, tuning // 4))
    restore_attention(model)
    error = sum(errors.values()) / len(errors)
    return {"before": before, "exchanged": directly, "fitted": fitted, "tuned": losses, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("llama", "marian", "vit"))
    parser.add_argument("--train", type=Path)
    parser.add_argument("--validation", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=600, help="with softmax")
    parser.add_argument("--tuning", type=int, default=100, help="updates after the exchange")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.model != "vit" and None in (options.train, options.validation):
        parser.error(f"{options.model} needs --train and --validation")
    torch.set_num_threads(options.threads)
    files = () if options.model == "vit" else (options.train, options.validation)
    case = {"llama": llama, "marian": marian, "vit": vit}[options.model](*files)
    options.output.mkdir(parents=True, exist_ok=True)
    results_file = options.output / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    for seed in options.seeds:
        folder = options.output / f"softmax-{seed}"
        if not (folder / "config.json").exists():
            torch.manual_seed(seed)
            model = case.build()
            train_model(model, case, options.updates, case.rate, seed, max(1, options.updates // 10))
            model.save_pretrained(folder)
        for name, attention in ATTENTIONS.items():
            found = results.setdefault(name, {})
            if str(seed) not in found:
                found[str(seed)] = exchange(case, folder, attention, options.tuning, seed)
                print(f"{name}, seed {seed}: {found[str(seed)]}", flush=True)
                results_file.write_text(json.dumps(results, indent=2) + "\n")
    steps = [str(step) for step, _ in next(iter(next(iter(results.values())).values()))["tuned"]]
    print("| attention | before | exchanged | fitted |", " | ".join(f"{step} updates" for step in steps), "|")
    print("|---" * (4 + len(steps)) + "|")
    for name, seeds in results.items():
        rows = [
            [one["before"], one["exchanged"], one["fitted"], *(loss for _, loss in one["tuned"])]
            for one in seeds.values()
        ]
        print(f"| {name} |", " | ".join(f"{statistics.mean(column):.3f}" for column in zip(*rows, strict=True)), "|")


if __name__ == "__main__":
    main()
