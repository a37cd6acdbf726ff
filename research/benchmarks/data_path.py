r"""How fast sentence pairs come from files into batches, in seconds of processor time, without a model.

The lines of a file are repeated until there are enough, in 32 shards. Streamed: read, tokenised, cleaned and sorted
into batches by one process. Map-style: the sampler of as many rows, with its memory.

Example:
    python research/benchmarks/data_path.py train.jsonl.gz --lines 1000000
"""

import argparse
import json
import os
import resource
import tempfile
import time
import tracemalloc
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from reluformers.data.batches import PairCollator
from reluformers.data.batching import TokenBudgetBatchSampler
from reluformers.files import iterate_lines
from reluformers.translation.loading import stream_translation_split
from reluformers.translation.preparation import make_tokenizers, tokenise_block
from reluformers.translation.recipe import TokenizerSection
from reluformers.translation.streaming import PairStream

SHARDS = 32
MAX_TOKENS = 4096
TOKENIZER_ROWS = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="JSON lines with a translation of en and de")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--sampler_rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for rows in options.sampler_rows:
        measure_sampler(rows)
    with tempfile.TemporaryDirectory() as folder:
        measure_stream(write_shards(options.file, Path(folder), options.lines))


def write_shards(file: str, folder: Path, lines: int) -> list[str]:
    source = cycle(list(iterate_lines(file)))
    paths = [folder / f"{shard:02}.jsonl" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        path.write_text("\n".join(islice(source, lines // SHARDS + (shard < lines % SHARDS))) + "\n", encoding="utf-8")
    return list(map(str, paths))


def measure_stream(files: list[str]) -> None:
    stream = PairStream(*stream_translation_split(files, "train", source_lang="en", target_lang="de"), 100_000)
    started = time.process_time()
    tokenizers = make_tokenizers(TokenizerSection(vocab_size=8000), next(stream.texts(TOKENIZER_ROWS)), 256)
    report("tokenizer", rows=TOKENIZER_ROWS, cpu_seconds=time.process_time() - started)
    stream.tokenise = partial(tokenise_block, tokenizers=tokenizers, limits={"max_tokens": 256})
    batches = stream.batches(MAX_TOKENS, PairCollator(tokenizers[0].pad_token_id))
    started, wall, rows, tokens, slots, number = time.process_time(), time.perf_counter(), 0, 0, 0, 0
    for batch in batches:
        if batches.state_dict()["block"]["epoch"]:
            break
        number += 1
        rows += len(batch["labels"])
        tokens += int(batch["attention_mask"].sum() + (batch["labels"] >= 0).sum())
        slots += batch["input_ids"].numel() + batch["labels"].numel()
    seconds = time.process_time() - started
    report(
        "stream",
        rows=rows,
        tokens=tokens,
        batches=number,
        padding=1 - tokens / slots,
        cpu_seconds=seconds,
        seconds=time.perf_counter() - wall,
        rows_per_cpu_second=rows / seconds,
        tokens_per_cpu_second=tokens / seconds,
        peak_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        bytes_on_disk=sum(Path(file).stat().st_size for file in files),
    )


def measure_sampler(rows: int) -> None:
    random = np.random.default_rng(0)
    source = np.clip(random.gamma(3, 8, rows), 1, 128).astype(np.int32)
    target = np.clip(source * random.normal(1, 0.25, rows), 1, 128).astype(np.int32)
    tracemalloc.start()
    started = time.process_time()
    sampler = TokenBudgetBatchSampler(source, target, MAX_TOKENS)
    made, held = time.process_time() - started, tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    started = time.process_time()
    batches = iter(sampler)
    next(batches)
    during, peak = tracemalloc.get_traced_memory()
    report(
        "sampler",
        rows=rows,
        batches=len(sampler),
        cpu_seconds_to_make=made,
        cpu_seconds_to_first_batch=time.process_time() - started,
        bytes_per_row_held=held / rows,
        bytes_per_row_in_an_epoch=during / rows,
        bytes_per_row_at_its_start=peak / rows,
    )
    tracemalloc.stop()


def report(what: str, **numbers: float) -> None:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in numbers.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


if __name__ == "__main__":
    main()
