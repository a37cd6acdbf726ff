"""One training run from a recipe to a folder that opens anywhere."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, PreTrainedConfig, set_seed

from reluformers.averaging import average_checkpoints, last_checkpoints
from reluformers.errors import UserError
from reluformers.evaluation.metrics import SacreBLEU
from reluformers.files import atomic_write
from reluformers.plotting import plot_training_curves

from .arguments import TranslationTrainingArguments
from .checkpoints import checkpoint_to_resume
from .preparation import PreparedData, build_model, prepare_data
from .recipe import Recipe
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
LOG_FILE = "log_history.json"
RESULTS_FILE = "results.json"
CURVES_FILE = "curves.png"


def train_translation(
    recipe: Recipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
    report: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Train a translation model, evaluate it and save everything that belongs to it.

    Under `accelerate launch` or `torchrun` every process calls this; the first one writes and reports.

    Args:
        recipe: what to train on what; the tokenizer's and the data's measures are filled in.
        output_dir: folder for checkpoints and, at the end, the model, tokenizer, generation settings, `recipe.yaml`,
            `log_history.json`, `results.json` and `curves.png`.
        resume: None for a fresh run, `"last"`, `"auto"` or a checkpoint's path: see `checkpoint_to_resume`.
        report: takes lines for the user.

    Returns:
        The content of `results.json`: `validation_bleu`, `validation_loss`, the same of the test set if there is one,
        `bleu_signature`, `parameters`, `steps`.

    Raises:
        UserError: the recipe, the data, the folder or the checkpoint is not usable; the message says why.
    """
    args = recipe.training_arguments(output_dir)
    if args.process_index > 0:
        report = logger.debug
    with args.main_process_first(local=False):
        checkpoint, prepared = _prepare(recipe, args, resume, report)
    set_seed(args.seed)
    model = build_model(recipe, prepared)
    if checkpoint is not None:
        _check_vocabulary(model.config, checkpoint)
    if args.process_index == 0:
        recipe.save(Path(output_dir, RECIPE_FILE))
    report(f"model: {type(model).__name__}, {model.num_parameters():,} parameters")
    trainer = TranslationTrainer(
        model,
        args,
        train_dataset=prepared.train,
        eval_dataset=prepared.evaluation["validation"],
        processing_class=prepared.tokenizers[0],
        target_tokenizer=prepared.tokenizers[1],
    )
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return _finish(trainer, recipe, prepared, report)


def _prepare(
    recipe: Recipe, args: TranslationTrainingArguments, resume: str | Path | None, report: Callable[[str], None]
) -> tuple[Path | None, PreparedData]:
    """Find the checkpoint to go on from, and the data with its tokenizers or those of this run's first process."""
    output_dir, is_main = Path(args.output_dir), args.process_index == 0
    # further processes come second and must not take the first one's files for an old run
    checkpoint = checkpoint_to_resume(output_dir, resume if is_main or resume else "auto")
    if checkpoint is not None:
        _check_same_run(recipe, checkpoint.parent)
    is_started = checkpoint is not None or not is_main
    return checkpoint, prepare_data(recipe, checkpoint or output_dir, reuse_tokenizers=is_started, report=report)


def _check_same_run(recipe: Recipe, folder: Path) -> None:
    """A checkpoint only fits the model and tokenizer that it was made with."""
    path = folder / RECIPE_FILE
    if not path.exists():
        return
    earlier = Recipe.from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    # what an earlier start measured is part of the model
    for name in earlier.model.keys() - recipe.model.keys():
        if name.endswith("attention"):
            recipe.model[name] = earlier.model[name]
    for section in ("model", "tokenizer"):
        before, now = earlier.to_dict()[section], recipe.to_dict()[section]
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                raise UserError(
                    f"{path}: the run has {section}.{key} {before.get(key)!r}, but {now.get(key)!r} is asked for; "
                    "resume with the same model and tokenizer, or choose another output folder"
                )


def _check_vocabulary(config: PreTrainedConfig, checkpoint: Path) -> None:
    """The tokenizer in the folder must be the one that the checkpoint was trained with."""
    earlier = AutoConfig.from_pretrained(checkpoint)
    for name in ("vocab_size", "decoder_vocab_size"):
        before, now = getattr(earlier, name), getattr(config, name)
        if before != now:
            raise UserError(
                f"{checkpoint}: its model has {name} {before}, but the tokenizer beside it makes {now}; "
                "put the tokenizer back that it was saved with"
            )


def _finish(
    trainer: TranslationTrainer, recipe: Recipe, prepared: PreparedData, report: Callable[[str], None]
) -> dict[str, Any]:
    """Average, evaluate, save."""
    if trainer.args.average_last > 1:
        _load_average(trainer)
    options = {**recipe.decoding.search_options(), "penalty": recipe.decoding.penalty}
    results: dict[str, Any] = {"parameters": trainer.model.num_parameters(), "steps": trainer.state.global_step}
    for name, dataset in prepared.evaluation.items():
        metrics = trainer.evaluate(dataset, metric_key_prefix=name, **options)
        results |= {key: metrics[key] for key in (f"{name}_bleu", f"{name}_loss")}
        report(f"{name}: BLEU {results[f'{name}_bleu']:.2f}, loss {results[f'{name}_loss']:.3f}")
    results["bleu_signature"] = SacreBLEU().compute(predictions=["a"], references=["a"])["signature"]
    _save(trainer, results)
    return results


def _load_average(trainer: TranslationTrainer) -> None:
    """Give the model the mean of the last checkpoints' weights."""
    output_dir, count = Path(trainer.args.output_dir), trainer.args.average_last
    averaged = output_dir / "averaged"
    if trainer.is_world_process_zero():
        available = len(list(output_dir.glob("checkpoint-*")))
        if available < count:
            logger.warning("only %d checkpoints to average, average_last is %d", available, count)
        average_checkpoints(last_checkpoints(output_dir, min(count, available)), averaged, overwrite=True)
    trainer.accelerator.wait_for_everyone()
    trainer.model.load_state_dict(type(trainer.model).from_pretrained(averaged).state_dict())
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.rmtree(averaged)


def _save(trainer: TranslationTrainer, results: dict[str, Any]) -> None:
    """Write the finished model into the output folder, each file complete or not at all."""
    output_dir = Path(trainer.args.output_dir)
    unfinished = output_dir / "unfinished"
    trainer.save_model(str(unfinished))
    if not trainer.is_world_process_zero():
        return
    # the arguments are in the recipe, without this machine's paths
    (unfinished / "training_args.bin").unlink(missing_ok=True)
    for path in sorted(unfinished.iterdir()):
        target = output_dir / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    unfinished.rmdir()
    for name, content in ((LOG_FILE, trainer.state.log_history), (RESULTS_FILE, results)):
        with atomic_write(output_dir / name) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    plot_training_curves(trainer.state.log_history, output_dir / CURVES_FILE)
