"""Training of translation models, from a recipe to a folder that opens anywhere."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU
from transformers import PreTrainedModel

from reluformers.data.sources import naming
from reluformers.evaluation.alignments import measure_layers
from reluformers.files import write_text
from reluformers.training.run import Run, open_run
from reluformers.training.transfer import add_transfer

from .arguments import TranslationTrainingArguments
from .examples import choose_examples
from .metrics import corpus_score
from .preparation import PreparedData, build_model, prepare_data
from .recipe import DecodingSection, TranslationRecipe
from .streaming import PairStream
from .tokenized_rows import describe_tokens
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)

HELD_OUT_FILE = "validation.jsonl"


def train_translation(
    recipe: TranslationRecipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
    report: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Train a translation model, evaluate it and save everything that belongs to it.

    Under `accelerate launch` or `torchrun` every process calls this; the first one writes and reports.

    Args:
        recipe: what to train on what.
        output_dir: folder for checkpoints and, at the end, the model, tokenizer, generation settings, `recipe.yaml`,
            `log_history.json`, `results.json` and `curves.png`.
        resume: None for a fresh run, `"last"`, `"auto"` or a checkpoint's path: see `checkpoint_to_resume`.
        report: takes lines for the user.

    Returns:
        The content of `results.json`: `validation_bleu`, `validation_loss`, the same of the test set if there is one,
        `bleu_signature`, `examples` (what `choose_examples` takes of the validation set), `alignment_shares` (see
        `measure_layers`, by layer), `parameters`, `steps`, the `Circumstances` and, unless it was resumed,
        `training_seconds`.

    Raises:
        ValueError: the recipe, the data, the folder or the checkpoint is not usable; the message says why.
    """
    with open_run(recipe, output_dir, resume, report) as run:
        with run.args.main_process_first(local=False):
            # the first process of a fresh run makes the tokenizers that all others read
            is_made = run.checkpoint is not None or not run.is_first
            folder = run.checkpoint or run.output_dir
            prepared = prepare_data(recipe, folder, reuse_tokenizers=is_made, report=run.report)
        validation = prepared.evaluation["validation"]
        is_stream = isinstance(prepared.train, PairStream)
        train = prepared.train.describe() if is_stream else describe_tokens(prepared.train)
        run.begin({"train": train, "validation": describe_tokens(validation)})
        model = build_model(recipe, prepared, run.checkpoint, run.report)
        trainer = build_trainer(recipe, run.args, prepared, model)
        run.train(trainer)
        if recipe.data.held_out is not None and run.is_first:
            _write_held_out(run, validation)
        return run.save(trainer, _score(run, trainer, prepared))


def build_trainer(
    recipe: TranslationRecipe, args: TranslationTrainingArguments, prepared: PreparedData, model: PreTrainedModel
) -> TranslationTrainer:
    """A trainer that decodes as the recipe says, with the beam of evaluations in training."""
    decoding = dataclasses.replace(recipe.decoding, num_beams=args.generation_num_beams or 1)
    trainer = TranslationTrainer(
        model,
        args,
        train_dataset=prepared.train,
        eval_dataset=prepared.evaluation["validation"],
        processing_class=prepared.tokenizers[0],
        target_tokenizer=prepared.tokenizers[1],
        target_lang=recipe.data.target_lang,
        decoding=_decoding_options(decoding),
    )
    for name, dataset in prepared.evaluation.items():
        with naming(f"data.{name}"):  # what cannot be dealt to the processes is found out before training
            trainer.get_eval_dataloader(dataset)
    add_transfer(trainer, recipe)
    return trainer


def _write_held_out(run: Run, rows: Any) -> None:
    """Write the pairs that were held out, on which other models can be scored."""
    data, path = run.recipe.data, run.output_dir / HELD_OUT_FILE
    pairs = zip(rows["source"], rows["target"], strict=True)
    lines = [{"translation": {data.source_lang: source, data.target_lang: target}} for source, target in pairs]
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    run.report(f"{path}: {len(lines):,} pairs of the training set, held out")


def _score(run: Run, trainer: TranslationTrainer, prepared: PreparedData) -> dict[str, Any]:
    """BLEU, as the recipe decodes, and loss of every evaluation split; examples; the layer of alignments."""
    shares, layer = measure_layers(trainer.model, prepared.tokenizers, prepared.evaluation["validation"])
    trainer.model.config.alignment_layer = layer  # before it is saved
    scores = {"alignment_shares": [round(share, 4) for share in shares]} if shares else {}
    for name, dataset in prepared.evaluation.items():
        run.report(f"{name}: translating {len(dataset):,} rows")
        metrics = trainer.evaluate(dataset, metric_key_prefix=name, **_decoding_options(run.recipe.decoding))
        scores |= {key: metrics[key] for key in (f"{name}_bleu", f"{name}_loss")}
        run.report(f"{name}: BLEU {scores[f'{name}_bleu']:.2f}, loss {scores[f'{name}_loss']:.3f}")
        if name == "validation":
            sides = (dataset["source"][:], dataset["target"][:])
            scores["examples"] = choose_examples(*sides, trainer.last_translations)
    _, signature = corpus_score(BLEU, trainer.bleu_options, ["a"], [["a"]])
    return {**scores, "bleu_signature": signature}


def _decoding_options(decoding: DecodingSection) -> dict[str, Any]:
    """What `translate` needs of the section."""
    return {**decoding.generation_options(), "penalty": decoding.penalty}
