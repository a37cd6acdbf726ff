"""Training arguments of translation models."""

from dataclasses import dataclass, field

from transformers import Seq2SeqTrainingArguments

from reluformers.training.arguments import TaskTrainingArguments

from .schedules import SCHEDULE_OPTIONS, SCHEDULES


@dataclass
class TranslationTrainingArguments(TaskTrainingArguments, Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with batches by tokens, the papers' schedules and what `TaskTrainingArguments` adds.

    Args:
        max_tokens: budget of a batch on one device, in tokens: rows times the longest side with padding. It takes the
            place of `per_device_train_batch_size` and `per_device_eval_batch_size`.
        schedule: `"noam"` (`learning_rate` is the factor in front) or `"warmup_then_plateau"` (`learning_rate` is the
            peak; options factor, patience, min_lr in `lr_scheduler_kwargs`); None for `lr_scheduler_type`.
        evaluate_bleu: generate at each evaluation and log `eval_bleu`, with `generation_num_beams` beams (1 if None).

    Raises:
        ValueError: a field has a value that is not allowed, alone or beside the others.
    """

    max_tokens: int = field(default=4096, metadata={"help": "Tokens of a batch on one device."})
    schedule: str | None = field(default=None, metadata={"help": "noam, warmup_then_plateau or none."})
    evaluate_bleu: bool = field(default=True, metadata={"help": "Log BLEU at each evaluation."})

    def __post_init__(self):
        super().__post_init__()
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, but must be 1 or more")
        if self.schedule is None:
            return
        if self.schedule not in SCHEDULES or set(self.lr_scheduler_kwargs or {}) - set(
            SCHEDULE_OPTIONS[self.schedule]
        ):
            raise ValueError(f"schedule {self.schedule!r} with lr_scheduler_kwargs: there are {SCHEDULE_OPTIONS}")
        if self.schedule == "warmup_then_plateau" and not (self.evaluate_bleu and self.eval_strategy != "no"):
            raise ValueError("schedule warmup_then_plateau follows BLEU: set evaluate_bleu and an eval_strategy")
