"""Training arguments of translation models."""

from dataclasses import dataclass, field
from typing import Literal

from transformers import Seq2SeqTrainingArguments

from reluformers.training.arguments import TaskTrainingArguments


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

    max_tokens: int = field(default=4096, metadata={"help": "Tokens of a batch on one device."})
    schedule: Literal["noam", "warmup_then_plateau"] | None = field(default=None, metadata={"help": "Of the papers."})
    evaluate_bleu: bool = field(default=True, metadata={"help": "Log BLEU at each evaluation."})

    def __post_init__(self):
        super().__post_init__()
        if self.schedule == "warmup_then_plateau" and not (self.evaluate_bleu and self.eval_strategy != "no"):
            raise ValueError("schedule warmup_then_plateau follows BLEU: set evaluate_bleu and an eval_strategy")
