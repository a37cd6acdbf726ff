"""One training run from a recipe to a folder that opens anywhere."""

import copy
import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoConfig, PreTrainedConfig, TrainerState, set_seed
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME

from reluformers.averaging import average_checkpoints
from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers.errors import UserError
from reluformers.evaluation.metrics import SacreBLEU
from reluformers.files import atomic_write
from reluformers.plotting import plot_training_curves

from .arguments import TranslationTrainingArguments
from .checkpoints import checkpoint_to_resume
from .preparation import ATTENTION_FIELDS, PreparedData, build_model, gives_scale, prepare_data
from .recipe import DecodingSection, Recipe
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
        recipe: what to train on what; it stays as it is, and the written one also holds what was measured.
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
    recipe = copy.deepcopy(recipe)
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
        decoding=_decoding_options(dataclasses.replace(recipe.decoding, num_beams=args.generation_num_beams or 1)),
    )
    if checkpoint is not None and _is_finished(trainer, checkpoint):
        report(f"{checkpoint}: training is at its end")
        _load_finished(trainer, checkpoint)
    else:
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
    _take_measured_scales(recipe, earlier)
    for section in ("model", "tokenizer"):
        before, now = earlier.to_dict()[section], recipe.to_dict()[section]
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                raise UserError(
                    f"{path}: the run has {section}.{key} {before.get(key)!r}, but {now.get(key)!r} is asked for; "
                    "resume with the same model and tokenizer, or choose another output folder"
                )


def _take_measured_scales(recipe: Recipe, earlier: Recipe) -> None:
    """Put the lengths that an earlier start measured into the recipe, where the attention is otherwise the same."""
    config = recipe.model_config()
    for name in ATTENTION_FIELDS:
        value, before = getattr(config, name), earlier.model.get(name)
        if value is None or before is None or gives_scale(recipe.model.get(name)):
            continue
        length = AttentionConfig.parse(before).scale_length
        if dataclasses.replace(AttentionConfig.parse(value), scale_length=length) == AttentionConfig.parse(before):
            recipe.model[name] = before


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


def _decoding_options(decoding: DecodingSection) -> dict[str, Any]:
    """What `translate` needs of the section."""
    return {**decoding.search_options(), "penalty": decoding.penalty}


def _is_finished(trainer: TranslationTrainer, checkpoint: Path) -> bool:
    """Whether a checkpoint holds the last update of the run, or the plateau schedule had come to its end there."""
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    *_, max_steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    if state.global_step >= max_steps:
        return True
    if trainer.args.schedule != "warmup_then_plateau":
        return False
    schedule = torch.load(checkpoint / SCHEDULER_NAME, weights_only=True)
    is_warm = schedule["last_epoch"] >= schedule["warmup_steps"]
    return bool(schedule["scores"]) and is_warm and max(schedule["_last_lr"]) < schedule["min_lr"]


def _load_finished(trainer: TranslationTrainer, checkpoint: Path) -> None:
    """Bring the trainer to where training ended."""
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    state.is_local_process_zero = trainer.is_local_process_zero()
    state.is_world_process_zero = trainer.is_world_process_zero()
    trainer.state = state
    best = Path(state.best_model_checkpoint or checkpoint)
    _load_weights(trainer, best if trainer.args.load_best_model_at_end and best.is_dir() else checkpoint)
    # with the autocast that training would have left
    trainer.accelerator.prepare_model(trainer.model, evaluation_mode=True)


def _load_weights(trainer: TranslationTrainer, folder: Path) -> None:
    trainer.model.load_state_dict(type(trainer.model).from_pretrained(folder).state_dict())


def _finish(
    trainer: TranslationTrainer, recipe: Recipe, prepared: PreparedData, report: Callable[[str], None]
) -> dict[str, Any]:
    """Average, evaluate, save."""
    if trainer.args.average_last > 1:
        _load_average(trainer)
    options = _decoding_options(recipe.decoding)
    results: dict[str, Any] = {"parameters": trainer.model.num_parameters(), "steps": trainer.state.global_step}
    for name, dataset in prepared.evaluation.items():
        metrics = trainer.evaluate(dataset, metric_key_prefix=name, **options)
        results |= {key: metrics[key] for key in (f"{name}_bleu", f"{name}_loss")}
        report(f"{name}: BLEU {results[f'{name}_bleu']:.2f}, loss {results[f'{name}_loss']:.3f}")
    results["bleu_signature"] = SacreBLEU().compute(predictions=["a"], references=["a"])["signature"]
    _save(trainer, results, report)
    return results


def _load_average(trainer: TranslationTrainer) -> None:
    """Give the model the mean of the weights of this run's last checkpoints."""
    output_dir, count = Path(trainer.args.output_dir), trainer.args.average_last
    averaged = output_dir / "averaged"
    if trainer.is_world_process_zero():
        # a run that was resumed earlier may have left later checkpoints
        steps = {
            int(match[1]): path
            for path in output_dir.iterdir()
            if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
        }
        folders = [steps[step] for step in sorted(steps) if step <= trainer.state.global_step][-count:]
        if len(folders) < count:
            logger.warning("only %d checkpoints to average, average_last is %d", len(folders), count)
        if folders:
            average_checkpoints(folders, averaged, overwrite=True)
    trainer.accelerator.wait_for_everyone()
    if not averaged.exists():
        return
    _load_weights(trainer, averaged)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.rmtree(averaged)


def _save(trainer: TranslationTrainer, results: dict[str, Any], report: Callable[[str], None]) -> None:
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
    if any({"loss", "eval_loss", "eval_bleu"} & entry.keys() for entry in trainer.state.log_history):
        plot_training_curves(trainer.state.log_history, output_dir / CURVES_FILE)
    else:
        report(f"no {CURVES_FILE}: the run was too short for logging_steps, so its log holds no loss")
