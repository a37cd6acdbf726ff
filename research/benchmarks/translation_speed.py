"""Training and generation speed beside MarianMTModel of the same shape, interleaved in one process.

    python research/benchmarks/translation_speed.py train    --data train.jsonl.gz --source_lang en --target_lang de
    python research/benchmarks/translation_speed.py generate --data test.jsonl.gz  --source_lang en --target_lang de

`train` compares `TranslationTrainer` with a stock `Seq2SeqTrainer` on `MarianMTModel` with `group_by_length`, whose
number of rows a batch is chosen so that its padded batches (rows times longest side) hold as many tokens on average as
ours may. Counted are real tokens of both sides a second, without padding.

`generate` compares sentences a second with the same beams and the same number of steps, which neither ends earlier,
and by `--ctranslate2 float32 int8` CTranslate2 on Marian's weights as well (`pip install 'reluformers[benchmark]'`);
`--dtypes float32 bfloat16 int8` are ours. A vocabulary that the data do not fill is filled with unused tokens.

Seconds are those of the processor if there is one thread. Every round runs all candidates once, in turn; ratios are
taken inside a round.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
from attention import in_turn, ratios_to
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

from reluformers import ATTENTION_PRESETS, seq2seq_config
from reluformers.data.batching import PairCollator
from reluformers.errors import run_main
from reluformers.evaluation.results import markdown_table
from reluformers.saved_models import DTYPES, set_precision
from reluformers.translation.loading import PairColumns, load_translation_split
from reluformers.translation.recipe import TranslationTrainingArguments
from reluformers.translation.tokenization import train_tokenizer
from reluformers.translation.tokenized_rows import token_lengths, tokenize_pairs
from reluformers.translation.trainer import TranslationTrainer

PEER = "marian"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the shape of Marian's layers is that of PostNorm with one matrix for all embeddings
PLAIN = {
    "norm_position": "post",
    "embedding_norm": "none",
    "embedding_bias": False,
    "output_bias": False,
    "tying": "all",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "word_dropout": 0.0,
    "max_position_embeddings": 256,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["train", "generate"])
    parser.add_argument("--data", required=True, help="file of sentence pairs")
    parser.add_argument("--source_lang", required=True)
    parser.add_argument("--target_lang", required=True)
    presets = ["softmax", "reluformer", "rela-g", "qknorm"]
    parser.add_argument("--presets", nargs="+", choices=ATTENTION_PRESETS, default=presets)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab_size", type=int, default=4000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--d_model", type=int, default=128)
    parser.add_argument("--max_tokens", type=int, default=2000, help="train: tokens a batch")
    parser.add_argument("--steps", type=int, default=20, help="train: updates a round")
    parser.add_argument("--rows", type=int, default=50, help="generate: sentences a batch")
    parser.add_argument("--batches", type=int, default=4, help="generate: batches a round")
    parser.add_argument("--num_beams", type=int, default=5)
    parser.add_argument("--new_tokens", type=int, default=20, help="generate: steps, the same for all")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--ffn_dim", type=int, help="twice d_model if missing")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"], help="generate: of our models")
    parser.add_argument(
        "--ctranslate2",
        nargs="+",
        choices=["float32", "int8"],
        default=[],
        help="generate: CTranslate2 on Marian's weights too",
    )
    return parser.parse_args()


def build(name: str, options: argparse.Namespace) -> PreTrainedModel:
    """A fresh model of the shape asked for; `PEER` is transformers' own."""
    set_seed(1)
    shape = {
        "vocab_size": options.vocab_size,
        "d_model": options.d_model,
        "encoder_layers": options.layers,
        "decoder_layers": options.layers,
        "encoder_attention_heads": options.heads,
        "decoder_attention_heads": options.heads,
        "encoder_ffn_dim": options.ffn_dim or 2 * options.d_model,
        "decoder_ffn_dim": options.ffn_dim or 2 * options.d_model,
    }
    if name != PEER:
        return AutoModelForSeq2SeqLM.from_config(seq2seq_config(name, **shape, **PLAIN))
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    dropout = {"dropout": 0.1, "attention_dropout": 0.1, "activation_function": "relu", "scale_embedding": True}
    # with fresh weights of the usual size all sentences get the same tokens, by which nothing could be compared
    size = {"init_std": 0.1} if options.job == "generate" else {}
    config = MarianConfig(**shape, **ids, **dropout, **size, max_position_embeddings=256, forced_eos_token_id=None)
    return MarianMTModel(config)


class CTranslate2Model:
    """Marian's weights in CTranslate2, with as much of `generate` as is timed here."""

    def __init__(
        self, marian: MarianMTModel, tokenizer: PreTrainedTokenizerBase, batch: dict, threads: int, dtype: str
    ):
        from ctranslate2 import Translator  # of the extra `benchmark`
        from ctranslate2.converters import Converter
        from ctranslate2.converters.transformers import BartLoader

        class LoadedMarianConverter(Converter):
            def _load(self):
                # the loader of Marian takes the last row of the embeddings for padding and begins with zeros; those of
                # this vocabulary begin and end otherwise, and that of BART, of which it is made, leaves them alone
                marian.config.normalize_before = marian.config.normalize_embedding = False
                with torch.no_grad():
                    return BartLoader()(marian, tokenizer)

        with tempfile.TemporaryDirectory() as folder:
            LoadedMarianConverter().convert(folder, force=True)
            self.translator = Translator(folder, DEVICE, compute_type=dtype, intra_threads=threads)
        self.tokenizer = tokenizer
        if dtype != "float32":
            return
        steps = {"num_beams": 1, "max_new_tokens": 20, "eos_token_id": None}
        theirs = marian.generate(**batch, **steps, suppress_tokens=[tokenizer.eos_token_id])[:, 1:].cpu()
        if not torch.equal(self.generate(**batch, **steps), theirs):
            raise ValueError("ctranslate2 writes other tokens than Marian with the same weights")

    def generate(
        self, input_ids: Tensor, attention_mask: Tensor, num_beams: int, max_new_tokens: int, eos_token_id: None
    ) -> Tensor:
        """Ids [batch, max_new_tokens] of the best hypotheses, without the end of a sentence among them."""
        rows = zip(input_ids, attention_mask.bool(), strict=True)
        results = self.translator.translate_batch(
            [self.tokenizer.convert_ids_to_tokens(ids[is_real].tolist()) for ids, is_real in rows],
            beam_size=num_beams,
            min_decoding_length=max_new_tokens,
            max_decoding_length=max_new_tokens,
        )
        return torch.tensor([self.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results])


class Stopwatch(TrainerCallback):
    """Times the updates of a run but for the first ones, which warm up."""

    def __init__(self, clock: Callable[[], float], warmup: int = 3):
        self.clock = clock
        self.warmup = warmup
        self.seconds = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.warmup:
            self.seconds = -self.clock()
        elif state.global_step == args.max_steps:
            self.seconds += self.clock()


class CountingCollator:
    """Counts the real tokens that it has collated, batch by batch."""

    def __init__(self, collate):
        self.collate = collate
        self.tokens = []

    def __call__(self, rows: list[dict]) -> dict:
        self.tokens.append(sum(len(row["input_ids"]) + len(row["labels"]) for row in rows))
        return self.collate(rows)


def stock_rows(dataset: Dataset, max_tokens: int) -> int:
    """Rows a batch with which batches that are grouped by source length hold `max_tokens` padded tokens."""
    sources, targets = (torch.as_tensor(list(token_lengths(dataset, column))) for column in ("input_ids", "labels"))
    lengths = torch.maximum(sources, targets)[sources.argsort(stable=True)]
    rows = 1
    while rows < len(lengths):
        padded = (rows + 1) * lengths[: len(lengths) // (rows + 1) * (rows + 1)].view(-1, rows + 1).amax(1)
        if padded.float().mean() > max_tokens:
            break
        rows += 1
    return rows


def tokens_per_second(name: str, dataset: Dataset, tokenizer, options: argparse.Namespace, folder: str) -> float:
    """Real tokens a second of one training run, set-up and warm-up left out."""
    watch = Stopwatch(choose_clock(options))
    common = {
        "output_dir": folder,
        "max_steps": watch.warmup + options.steps,
        "use_cpu": DEVICE == "cpu",
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 1,
    }
    model = build(name, options)
    if name == PEER:
        arguments = Seq2SeqTrainingArguments(
            **common,
            per_device_train_batch_size=stock_rows(dataset, options.max_tokens),
            train_sampling_strategy="group_by_length",
            label_smoothing_factor=0.1,
        )
        collator = CountingCollator(DataCollatorForSeq2Seq(tokenizer, model=model))
        trainer_class = Seq2SeqTrainer
    else:
        arguments = TranslationTrainingArguments(**common, max_tokens=options.max_tokens)
        collator = CountingCollator(PairCollator(tokenizer.pad_token_id))
        trainer_class = TranslationTrainer
    trainer = trainer_class(
        model, arguments, train_dataset=dataset, processing_class=tokenizer, callbacks=[watch], data_collator=collator
    )
    trainer.train()
    return sum(collator.tokens[watch.warmup : watch.warmup + options.steps]) / watch.seconds


def choose_clock(options: argparse.Namespace) -> Callable[[], float]:
    """Seconds of the processor, which other programs do not change, where they are those that a user waits."""
    if options.threads == 1 and DEVICE == "cpu":
        return time.process_time
    return time.perf_counter


def sentences_per_second(
    model: PreTrainedModel | CTranslate2Model, batches: list[dict], options: argparse.Namespace
) -> float:
    """Sentences a second through `generate` with a fixed number of steps."""
    steps = {"max_new_tokens": options.new_tokens, "eos_token_id": None}
    clock = choose_clock(options)
    start = clock()
    with torch.inference_mode():
        for batch in batches:
            # the ids come back to the host, which waits for the device
            model.generate(**batch, num_beams=options.num_beams, **steps).cpu()
    return sum(len(batch["input_ids"]) for batch in batches) / (clock() - start)


def source_batches(dataset: Dataset, tokenizer, options: argparse.Namespace) -> list[dict]:
    """Batches of sentences of like length, as a user would form them."""
    rows = sorted(dataset["input_ids"], key=len)
    size = options.rows
    starts = [int(i * (len(rows) - size) / max(options.batches - 1, 1)) for i in range(options.batches)]
    batches = [{"input_ids": [list(ids) for ids in rows[start : start + size]]} for start in starts]
    return [dict(tokenizer.pad(batch, return_tensors="pt").to(DEVICE)) for batch in batches]


def print_table(speeds: dict[str, list[float]], unit: str) -> None:
    """Median speed and its ratio to the peer's, taken round by round."""
    lines = []
    for name, ratios in ratios_to(PEER, speeds).items():
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        lines.append([name, f"{statistics.median(speeds[name]):,.0f}", spread])
    print(markdown_table(["model", f"{unit}, median", f"ratio to {PEER}, median (min–max)"], lines))


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__} on {DEVICE}, {options.threads} threads of {os.cpu_count()} cores, {options}")
    pairs = load_translation_split(options.data, "train", PairColumns(options.source_lang, options.target_lang))
    texts = [text for side in ("source", "target") for text in pairs[side]]
    tokenizer = train_tokenizer(texts, options.vocab_size)
    if options.job == "generate":
        tokenizer.add_tokens([f"<unused{number}>" for number in range(options.vocab_size - len(tokenizer))])
    options.vocab_size = len(tokenizer)
    dataset = tokenize_pairs(pairs, tokenizer, tokenizer).select_columns(["input_ids", "labels"])
    if options.job == "generate":
        models = {PEER: build(PEER, options).eval().to(DEVICE)}
        for name in options.presets:
            for dtype in options.dtypes:
                models[f"{name}, {dtype}"] = set_precision(build(name, options).eval().to(DEVICE), dtype)
        batches = source_batches(dataset, tokenizer, options)
        for dtype in options.ctranslate2:
            arguments = (models[PEER], tokenizer, batches[0], options.threads, dtype)
            models[f"ctranslate2, {dtype}"] = CTranslate2Model(*arguments)
        for model in models.values():  # warm up
            sentences_per_second(model, batches[:1], options)
        measures = {name: partial(sentences_per_second, model, batches, options) for name, model in models.items()}
    with tempfile.TemporaryDirectory() as folder:
        if options.job == "train":
            names = (PEER, *options.presets)
            measures = {name: partial(tokens_per_second, name, dataset, tokenizer, options, folder) for name in names}
        speeds = in_turn(measures, options.rounds)
    print_table(speeds, "tokens/s" if options.job == "train" else "sentences/s")


if __name__ == "__main__":
    run_main(main)
