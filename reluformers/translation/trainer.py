"""Trainer for translation: batches by tokens, dev BLEU and the papers' schedules."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, Seq2SeqTrainer, Trainer

from reluformers.data.batching import PairCollator, PerProcessDataLoader
from reluformers.data.streaming import BatchStream
from reluformers.training.trainer import TaskTrainer

from .decoding import translate
from .metrics import CorpusMetric, bleu_metric
from .recipe import TranslationTrainingArguments
from .tokenization import save_tokenizers
from .tokenized_rows import PairStream, token_batches


class TranslationTrainer(TaskTrainer, Seq2SeqTrainer):
    """`Seq2SeqTrainer` for sentence pairs.

    What it does differently: batches hold `args.max_tokens` tokens and are split by rank here, not by accelerate;
    `evaluate` gives the loss per token and, by generating, BLEU; `args.schedule` adds the papers' schedules; the
    training log also holds tokens per second, and the regulariser and null rate of models that report them.

    Args:
        model: encoder–decoder whose loss takes `num_items_in_batch`.
        args: training arguments.
        train_dataset: columns `input_ids` and `labels`, lists of int; others are ignored. Or a stream of such rows.
        eval_dataset: those and, for BLEU, the texts `source` and `target`; or a dict of such data sets.
        processing_class: tokenizer of the source side.
        target_tokenizer: of the target side; None if it is the same.
        target_lang: of the references; sacreBLEU's tokenizer follows from it.
        decoding: options of `translation.decoding.translate` for the BLEU of evaluations that give none; None for
            `args.generation_num_beams` and its defaults.
        options: of `Seq2SeqTrainer`, such as `callbacks`.
    """

    args: TranslationTrainingArguments

    def __init__(
        self,
        model: nn.Module,
        args: TranslationTrainingArguments,
        *,
        processing_class: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        decoding: dict[str, Any] | None = None,
        target_lang: str | None = None,
        **options: Any,
    ):
        self.target_tokenizer = target_tokenizer or processing_class
        self.decoding = decoding or {}
        self.bleu = bleu_metric(target_lang)
        # The last evaluation with BLEU wrote these, in the order of its rows.
        self.last_translations: list[str] = []
        # `evaluate` keeps its search options here for `measure`.
        self._asked: dict[str, Any] = {}
        use_cache = model.config.use_cache
        options.setdefault("data_collator", PairCollator(processing_class.pad_token_id))
        super().__init__(model, args, processing_class=processing_class, count=count_tokens, **options)
        # Trainer turns the cache off for good; saved models would then generate without it.
        self.model.config.use_cache = use_cache

    def get_train_dataloader(self) -> DataLoader | BatchStream:
        """Batches of this process, within the budget and in a new order each epoch; of a stream, without end."""
        if isinstance(self.train_dataset, PairStream):
            return self.resumed(
                self.train_dataset.batches(self.args.max_tokens, self.data_collator, **self.sampler_options())
            )
        return self._token_loader(self.train_dataset.select_columns(["input_ids", "labels"]), shuffle=True)

    def get_eval_dataloader(self, eval_dataset: Dataset | None = None) -> DataLoader:
        """Batches of this process, within the budget if every row is."""
        return self._token_loader(self.eval_dataset if eval_dataset is None else eval_dataset, shuffle=False)

    def _token_loader(self, rows: Dataset, *, shuffle: bool) -> DataLoader:
        batches = token_batches(rows, max_tokens=self.args.max_tokens, shuffle=shuffle, **self.sampler_options())
        return PerProcessDataLoader(
            rows, batch_sampler=batches, collate_fn=self.data_collator, **self.loader_options()
        )

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Make the schedule that `args.schedule` or `args.lr_scheduler_type` names."""
        if self.lr_scheduler is not None or self.args.schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        optimizer = self.optimizer if optimizer is None else optimizer
        warmup_steps = self.args.get_warmup_steps(num_training_steps)
        options = self.args.lr_scheduler_kwargs or {}
        if self.args.schedule == "noam":
            d_model = self.model.config.hidden_size
            self.lr_scheduler = get_noam_schedule(optimizer, d_model=d_model, warmup_steps=warmup_steps, **options)
        else:
            self.lr_scheduler = WarmupThenPlateau(optimizer, warmup_steps=warmup_steps, **options)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def evaluate(
        self,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **decoding: Any,
    ) -> dict[str, float]:
        """`loss` (nats per target token) and, with `args.evaluate_bleu`, `bleu` (0 to 100).

        Args:
            eval_dataset, ignore_keys, metric_key_prefix: as of `Trainer`.
            decoding: options of `translation.decoding.translate`; with any, BLEU is measured in every case.
        """
        self._asked = decoding
        # Skip Seq2SeqTrainer, which takes these options for those of `generate`.
        metrics = Trainer.evaluate(self, eval_dataset, ignore_keys, metric_key_prefix)
        is_score = self.is_in_train and self.state.global_step > 0 and "eval_bleu" in metrics
        if is_score and isinstance(self.lr_scheduler, WarmupThenPlateau):
            self.control.should_training_stop |= self.lr_scheduler.add_score(metrics["eval_bleu"])
        return metrics

    def measure(self, dataloader: DataLoader) -> tuple[dict[str, float], int]:
        """`loss` per target token and, where it is asked for, `bleu`."""
        dataset = dataloader.dataset
        scores = {"loss": self._loss_per_token(dataloader)}
        if self.args.evaluate_bleu or self._asked:
            self.last_translations = self.translations(list(dataset["source"]))
            texts = {"predictions": self.last_translations, "references": list(dataset["target"])}
            scores["bleu"] = CorpusMetric(self.bleu).compute(**texts)["score"]
        return scores, len(dataset)

    def _loss_per_token(self, dataloader: DataLoader) -> float:
        totals = torch.zeros(2, device=self.args.device)
        for batch in dataloader:
            inputs = self._prepare_inputs(batch)
            count = (inputs["labels"] >= 0).sum()
            loss = self.model(**inputs).loss.float()
            totals += torch.stack([loss * count, count.float()])
        loss_sum, tokens = self.accelerator.reduce(totals, reduction="sum").tolist()
        return loss_sum / tokens

    def translations(self, sources: list[str]) -> list[str]:
        """Translate texts, each process its share; every process gets all translations in the given order."""
        options = {"num_beams": self.args.generation_num_beams or 1, "max_tokens": self.args.max_tokens}
        options |= self._asked or self.decoding
        # The first process shows a progress bar where the output is a terminal; the others show none.
        options["progress"] = False if self.args.process_index or self.args.disable_tqdm else None
        share = range(self.args.process_index, len(sources), self.args.world_size)
        texts = []
        tokenizers = (self.processing_class, self.target_tokenizer)
        if self.accelerator.is_fsdp2:  # Processes of FSDP must make the same steps.
            return translate(self.model, tokenizers, sources, **options)
        if share:
            texts = translate(self.model, tokenizers, [sources[row] for row in share], **options)
        return [text for _, text in sorted(gather_object(list(zip(share, texts, strict=True))))]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, without rows per second where transformers takes each batch to have `per_device_train_batch_size`."""
        if self.args.max_steps > 0:
            logs.pop("train_samples_per_second", None)
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model and tokenizers."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and self.target_tokenizer is not self.processing_class:
            save_tokenizers(Path(output_dir or self.args.output_dir), self.processing_class, self.target_tokenizer)


def count_tokens(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`source_tokens` and `target_tokens` of a batch, without padding."""
    return {"source_tokens": inputs["attention_mask"].sum(), "target_tokens": (inputs["labels"] >= 0).sum()}


def get_noam_schedule(optimizer: Optimizer, *, d_model: int, warmup_steps: int) -> LambdaLR:
    r"""Schedule by which update t, from 1, has the optimizer's learning rate times

    d_model^(−½) · min(t^(−½), t · w^(−3/2))

    Args:
        optimizer: its learning rate is the factor in front.
        d_model: width of the model.
        warmup_steps: w, in updates; the rate peaks at t = w with (d_model · w)^(−½).

    Source: Vaswani et al. 2017, eq. 3; ReLA's released code, with learning rate 1 and w = 4,000.
    """
    return LambdaLR(optimizer, lambda done: d_model**-0.5 * min((done + 1) ** -0.5, (done + 1) * warmup_steps**-1.5))


class WarmupThenPlateau(LRScheduler):
    r"""Linear warm-up, then a constant rate that falls when a validation score does.

    lr = peak · min(t/w, 1) · f^r,  t = update number from 1, w = `warmup_steps`, f = `factor`,
    r = how often, once warm-up was over, a score was below the minimum of the `patience` scores before it

    All of it is in `state_dict`, so that a resumed run goes on as if it had not stopped.

    Args:
        optimizer: its learning rate is the peak.
        warmup_steps: w, in updates.
        factor: f in (0, 1).
        patience: number of earlier scores to compare with.
        min_lr: training should stop once warm-up is over and the rate is below it.

    Source: QKNorm's released code, schedule "UPFLAT_WU" (Nguyen & Salazar 2019): w = 8,000, f = 0.8, patience 3.
    """

    def __init__(
        self, optimizer: Optimizer, *, warmup_steps: int, factor: float = 0.8, patience: int = 3, min_lr: float = 1e-5
    ):
        self.warmup_steps = warmup_steps
        self.factor = factor
        self.patience = patience
        self.min_lr = min_lr
        self.scores: list[float] = []
        self.reductions = 0
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Learning rate of the next update, one for each parameter group."""
        warmup = min((self.last_epoch + 1) / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        return [base * warmup * self.factor**self.reductions for base in self.base_lrs]

    def add_score(self, score: float) -> bool:
        """Take the newest validation score (higher is better) and say whether training should stop."""
        previous = self.scores[-self.patience :]
        self.scores.append(score)
        if self.last_epoch < self.warmup_steps:
            return False
        if len(previous) == self.patience and score < min(previous):
            self.reductions += 1
            self._last_lr = self.get_lr()
            for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
                group["lr"] = rate
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether training should stop."""
        return bool(self.scores) and self.last_epoch >= self.warmup_steps and max(self.get_lr()) < self.min_lr
