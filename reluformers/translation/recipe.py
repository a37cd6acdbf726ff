"""Recipes of translation: their sections and checks."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy

from reluformers.configuration.field_checks import check_number
from reluformers.data.sources import DataSection
from reluformers.families import seq2seq_config
from reluformers.training.recipe import Recipe, TaskTrainingArguments
from reluformers.training.yaml_files import read_yaml

from .decoding import Search
from .loading import load_translation_split
from .rows import PairColumns

Source = str | dict[str, str]

# Default recipes follow from these numbers.
TOKENS_PER_WORD = 1.3  # Vocabularies of this size have so many.
BATCH_FILL = 0.9  # This share of a batch is no padding.
UPDATES = 10_000
HELD_OUT_SEED = 1


@dataclass
class TokenizerSection:
    """Which tokenizer.

    Args:
        path: folder or Hub id of a tokenizer to use; None trains one on the training set, with the keys below.
        vocab_size: number of tokens of a trained tokenizer.
        shared: one tokenizer for both sides; False trains one for each side.
        min_frequency: how often a merge must occur in the training set.
        byte_fallback: unknown characters become bytes instead of <unk>.
        max_digits: cut numbers into groups of this many digits; None merges digits like letters.
        source_normalization: Unicode form of the source, if each side has a tokenizer. A target's or a shared
            tokenizer always has nfc, which keeps the text as it was written.
    """

    path: str | None = None
    vocab_size: int = 32000
    shared: bool = True
    min_frequency: int = 2
    byte_fallback: bool = False
    max_digits: int | None = None
    source_normalization: Literal["nfc", "nfkc"] = "nfc"


@dataclass
class TranslationDataSection(PairColumns, DataSection):
    """Which sentence pairs.

    Args:
        held_out: without a validation set, hold out this many random pairs of the training set; other pairs with the
            same sources leave the training set too.
        held_out_seed: seed of this draw; None means 0.
        document_tokens: join consecutive sentences of a document, up to this many tokens (ReLUFormer, App. B).
        max_length: drop training pairs with a longer side, in tokens with </s>; None means the model's limit.
        max_length_ratio: drop training pairs whose longer side has more than this many times the other's tokens.
        scale_length_percentile: L of QKNorm eq. 3 is this percentile of the training lengths of both sides, above 0
            and at most 100 (QKNorm, table 5).
        streaming: read the training set during training; its files are shards, which come in random order.
        buffer_rows: how many rows of a stream each process shuffles and sorts into batches together.
        num_proc: processes that tokenise the training set, unless it is a stream; None means one process.
    """

    held_out: int | None = None
    held_out_seed: int | None = None
    document_tokens: int | None = None
    max_length: int | None = None
    max_length_ratio: float | int | None = None
    scale_length_percentile: float | int = 97.5
    streaming: bool = False
    buffer_rows: int = 100_000
    num_proc: int | None = None

    def __post_init__(self):
        if self.held_out is not None and (self.validation or self.streaming or self.document_tokens):
            raise ValueError("data.held_out is without data.validation, data.streaming and data.document_tokens")
        if self.held_out is not None:  # A negative number would hold out all rows but so many.
            check_number("data", "held_out", self.held_out, "[1, inf)", integer=True)

    @property
    def needed(self) -> tuple[str, ...]:
        """Splits that there must be."""
        if self.held_out is None:
            return ("train", "validation")
        return ("train",)


@dataclass(kw_only=True)
class DecodingSection(Search):
    """How the finished model translates: for the last evaluation and as its generation defaults; `penalty` alone is of
    the evaluation only.

    Args:
        max_new_tokens: longest output of the saved model's `generate`, in tokens: at least `data.document_tokens`,
            and at most as many as the model has positions. Evaluation and pipeline take `longest_translation`
            instead.
    """

    max_new_tokens: int = 256


@dataclass
class TranslationTrainingArguments(TaskTrainingArguments, Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with batches by tokens, the papers' schedules and what `TaskTrainingArguments` adds.

    Args:
        max_tokens: size of a batch on one device, in tokens: rows times the longest side with padding. It replaces
            `per_device_train_batch_size` and `per_device_eval_batch_size`.
        schedule: `"noam"` (`learning_rate` is the factor in front) or `"warmup_then_plateau"` (`learning_rate` is the
            peak; options factor, patience, min_lr in `lr_scheduler_kwargs`); None means `lr_scheduler_type`.
        evaluate_bleu: translate at each evaluation and log `eval_bleu`, with `generation_num_beams` beams (1 if None).

    Raises:
        ValueError: a field has a value that is not allowed beside the others.
    """

    max_tokens: int = 4096
    schedule: Literal["noam", "warmup_then_plateau"] | None = None
    evaluate_bleu: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.schedule == "warmup_then_plateau" and not (self.evaluate_bleu and self.eval_strategy != "no"):
            raise ValueError("schedule warmup_then_plateau follows BLEU: set evaluate_bleu and an eval_strategy")


@dataclass
class TranslationRecipe(Recipe):
    """Everything that defines the training of a translation model.

    Args:
        model: `preset` (a name of `ATTENTION_PRESETS`, "softmax" if missing) and fields of its configuration class.
        tokenizer, data, decoding: see the sections.
        training: fields of `TranslationTrainingArguments`, all but `output_dir`.
    """

    task: ClassVar[str] = "translation"
    make_config = staticmethod(seq2seq_config)
    arguments_class: ClassVar[type[TranslationTrainingArguments]] = TranslationTrainingArguments
    # The tokenizer decides them.
    decided_fields: ClassVar[Collection[str]] = (
        "vocab_size",
        "decoder_vocab_size",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
    )

    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    data: TranslationDataSection = field(default_factory=TranslationDataSection)
    training: dict[str, Any] = field(default_factory=dict)
    decoding: DecodingSection = field(default_factory=DecodingSection)

    def training_arguments(self, output_dir: str | Path) -> TranslationTrainingArguments:
        """Arguments of the trainer; a stream goes by updates, since it has no known end.

        Raises:
            ValueError: a field has a value that is not allowed.
        """
        args = super().training_arguments(output_dir)
        if not self.data.streaming:
            return args
        strategies = (args.eval_strategy, args.logging_strategy, args.save_strategy)
        if args.max_steps < 1 or IntervalStrategy.EPOCH in strategies:
            raise ValueError("data.streaming has no epochs: set training.max_steps, and strategies to steps or no")
        # The stream knows where it stands, so Trainer must not skip batches.
        args.ignore_data_skip = True
        return args


def default_recipe(
    train: Source, source_lang: str, target_lang: str, validation: Source | None = None
) -> dict[str, Any]:
    """Make a recipe of default_recipe.yaml, with the sizes that follow from some sentence pairs.

    With W words on both sides, vocabulary: 4·√W tokens, 1,000 to 32,000. Training: 10,000 updates, though 3 to 50
    epochs, or until five evaluations are no better. Without a validation set, one in twenty rows, at most 1,000, is
    held out for it.

    Args:
        train: a file of rows, or {"source": file, "target": file} of text.
        source_lang, target_lang: languages, keys or columns of the rows.
        validation: as `train`.

    Raises:
        ValueError: the training set cannot be read.
    """
    rows = load_translation_split({"train": train}, "train", PairColumns(source_lang, target_lang))
    characters: set[str] = set()
    counts = []
    for row in rows:
        characters.update(row["source"], row["target"])
        counts.append((_count_words(row["source"]), _count_words(row["target"])))
    words = sum(map(sum, counts))
    longer = sum(map(max, counts))
    vocab_size = round(min(max(4 * words**0.5, 1000), 32_000), -2) + round(len(characters), -2)
    sections = read_yaml(Path(__file__).with_name("default_recipe.yaml"))
    data = sections["data"]
    training = sections["training"]
    per_epoch = max(round(longer * TOKENS_PER_WORD / (training["max_tokens"] * BATCH_FILL)), 1)
    epochs = min(max(round(UPDATES / per_epoch), 3), 50)
    updates = epochs * per_epoch
    sections["tokenizer"] = {"vocab_size": int(vocab_size)}
    data |= {"train": train, "source_lang": source_lang, "target_lang": target_lang}
    if validation is None:
        data |= {"held_out": min(max(len(rows) // 20, 1), 1000), "held_out_seed": HELD_OUT_SEED}
    else:
        data["validation"] = validation
    training |= {
        "num_train_epochs": epochs,
        "warmup_steps": min(max(updates // 10, 50), 2000),
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "ema_decay": round(1 - 1 / min(max(updates / 20, 10), 2000), 5),
        "logging_steps": min(max(updates // 100, 1), 100),
        **dict.fromkeys(("eval_steps", "save_steps"), min(max(per_epoch, 200), 2000)),
    }
    return sections


def _count_words(text: str) -> int:
    """Number of words, of a language that does not separate them about that."""
    words = len(text.split())
    if len(text) < 15 * words:
        return words
    return len(text) // 2
