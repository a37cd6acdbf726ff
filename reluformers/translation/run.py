"""Training runs of translation models."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics import BLEU
from transformers import PreTrainedModel
from transformers.trainer import SCHEDULER_NAME

from reluformers.data.sources import naming
from reluformers.evaluation.alignments import measure_layers
from reluformers.files import write_text
from reluformers.training.dry_run import estimate
from reluformers.training.identity import describe_tokens
from reluformers.training.run import TaskRun

from .examples import choose_examples
from .metrics import corpus_score
from .preparation import PreparedData, build_model, prepare_data
from .recipe import DecodingSection, TranslationRecipe
from .streaming import PairStream
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)

HELD_OUT_FILE = "validation.jsonl"


def train_translation(
    recipe: TranslationRecipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
    dry_run: bool = False,
    report: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Train a translation model, evaluate it and save everything that belongs to it.

    Under `accelerate launch` or `torchrun` every process calls this; the first one writes and reports.

    Args:
        recipe: what to train on what.
        output_dir: folder for checkpoints and, at the end, the model, tokenizer, generation settings, `recipe.yaml`,
            `log_history.json`, `results.json` and `curves.png`.
        resume: None for a fresh run, `"last"`, `"auto"` or a checkpoint's path: see `checkpoint_to_resume`.
        dry_run: write nothing, and return what the run would take: see `training.dry_run.estimate`.
        report: takes lines for the user.

    Returns:
        The content of `results.json`: `validation_bleu`, `validation_loss`, the same of the test set if there is one,
        `bleu_signature`, `examples` (what `choose_examples` takes of the validation set), `alignment_shares` (see
        `measure_layers`, by layer), `parameters`, `steps`, the `Circumstances` and, unless it was resumed,
        `training_seconds`.

    Raises:
        ValueError: the recipe, the data, the folder or the checkpoint is not usable; the message says why.
    """
    if dry_run:
        return estimate(_TranslationRun, recipe, report)
    return _TranslationRun(recipe, output_dir, report).run(resume)


class _TranslationRun(TaskRun):
    """What is peculiar to translation: tokenizers, the measured scale of cosine attention, BLEU."""

    recipe: TranslationRecipe

    def prepare(self, checkpoint: Path | None) -> None:
        """Data with tokenizers of their own, or those of this run's first process or of the checkpoint."""
        is_started = checkpoint is not None or self.args.process_index > 0
        self.prepared: PreparedData = prepare_data(
            self.recipe, checkpoint or self.output_dir, reuse_tokenizers=is_started, report=self.report
        )

    def _write_held_out(self) -> None:
        """Write the pairs that were held out, for whoever scores other models on them."""
        data, rows = self.recipe.data, self.prepared.evaluation["validation"]
        pairs = zip(rows["source"], rows["target"], strict=True)
        lines = [{"translation": {data.source_lang: source, data.target_lang: target}} for source, target in pairs]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(self.output_dir / HELD_OUT_FILE, text)
        self.report(f"{self.output_dir / HELD_OUT_FILE}: {len(lines):,} pairs of the training set, held out")

    def build_model(self, checkpoint: Path | None) -> PreTrainedModel:
        """A model for the recipe and the tokenizers."""
        return build_model(self.recipe, self.prepared, checkpoint, self.report)

    def build_trainer(self, model: PreTrainedModel) -> TranslationTrainer:
        """A trainer that decodes as the recipe says, with the beam of evaluations in training."""
        beams = self.args.generation_num_beams or 1
        trainer = TranslationTrainer(
            model,
            self.args,
            train_dataset=self.prepared.train,
            eval_dataset=self.prepared.evaluation["validation"],
            processing_class=self.prepared.tokenizers[0],
            target_tokenizer=self.prepared.tokenizers[1],
            target_lang=self.recipe.data.target_lang,
            decoding=_decoding_options(dataclasses.replace(self.recipe.decoding, num_beams=beams)),
        )
        for name, dataset in self.prepared.evaluation.items():
            with naming(f"data.{name}"):  # what cannot be dealt to the processes is found out before training
                trainer.get_eval_dataloader(dataset)
        return trainer

    def describe_data(self) -> dict[str, dict[str, Any]]:
        """Token ids of both sides; of a stream a sample of them."""
        train = self.prepared.train
        return {
            "train": train.describe() if isinstance(train, PairStream) else describe_tokens(train),
            "validation": describe_tokens(self.prepared.evaluation["validation"]),
        }

    def has_ended(self, trainer: TranslationTrainer, checkpoint: Path) -> bool:
        """Whether the plateau schedule had come to its end."""
        if trainer.args.schedule != "warmup_then_plateau":
            return False
        schedule = torch.load(checkpoint / SCHEDULER_NAME, weights_only=True)
        is_warm = schedule["last_epoch"] >= schedule["warmup_steps"]
        return bool(schedule["scores"]) and is_warm and max(schedule["_last_lr"]) < schedule["min_lr"]

    def evaluate(self, trainer: TranslationTrainer) -> dict[str, Any]:
        """BLEU, as the recipe decodes, and loss of every evaluation split; examples; the layer of alignments."""
        if self.recipe.data.held_out is not None and self.args.process_index == 0:
            self._write_held_out()
        results = self._measure_alignments(trainer)
        for name, dataset in self.prepared.evaluation.items():
            self.report(f"{name}: translating {len(dataset):,} rows")
            metrics = trainer.evaluate(dataset, metric_key_prefix=name, **_decoding_options(self.recipe.decoding))
            results |= {key: metrics[key] for key in (f"{name}_bleu", f"{name}_loss")}
            self.report(f"{name}: BLEU {results[f'{name}_bleu']:.2f}, loss {results[f'{name}_loss']:.3f}")
            if name == "validation":
                sides = (dataset["source"][:], dataset["target"][:])
                results["examples"] = choose_examples(*sides, trainer.last_translations)
        _, signature = corpus_score(BLEU, trainer.bleu_options, ["a"], [["a"]])
        return {**results, "bleu_signature": signature}

    def _measure_alignments(self, trainer: TranslationTrainer) -> dict[str, Any]:
        """Note the best layer in the configuration, before it is saved."""
        agreement = measure_layers(trainer.model, self.prepared.tokenizers, self.prepared.evaluation["validation"])
        trainer.model.config.alignment_layer = agreement.layer
        return {"alignment_shares": [round(share, 4) for share in agreement.shares]} if agreement.links else {}


def _decoding_options(decoding: DecodingSection) -> dict[str, Any]:
    """What `translate` needs of the section."""
    return {**decoding.generation_options(), "penalty": decoding.penalty}
