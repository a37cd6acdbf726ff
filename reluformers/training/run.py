"""The parts of a training run that do not depend on its task: where it goes on, its course, its finished folder."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from filelock import FileLock

from reluformers.conversion.convert import origin
from reluformers.evaluation.circumstances import current_circumstances
from reluformers.evaluation.plotting import plot_training_curves
from reluformers.evaluation.results import EVALUATION_FILE
from reluformers.files import replace_directory, write_json
from reluformers.saved_models import CARD_FILE, RESULTS_FILE

from .averaging import load_average
from .callbacks import GiveBackMemory
from .checkpoints import (
    LOCK_FILE,
    check_model,
    checkpoint_to_resume,
    read_manifest,
    set_aside_later,
    step_of,
)
from .recipe import Recipe, TaskTrainingArguments
from .run_files import CURVES_FILE, LOG_FILE, RECIPE_FILE, UNFINISHED_MODEL
from .trainer import TaskTrainer

logger = logging.getLogger(__name__)

_PATIENCE = 10.0  # In seconds: workers of a killed run hold its lock until they notice that it died.
# What may change when a run goes on, beside all of `decoding`; it holds from the checkpoint on. For `data` we compare
# checksums of rows, not paths: files may have moved.
MAY_CHANGE = {
    "data": {"path", "name", "revision", "train", "validation", "test", "check_images", "num_proc"},
    "training": {
        "max_steps",
        "num_train_epochs",
        "early_stopping_patience",
        "average_last",
        "per_device_eval_batch_size",
        "eval_strategy",
        "eval_steps",
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "report_to",
        "run_name",
        "disable_tqdm",
        "ddp_timeout",
        "dataloader_num_workers",
        "dataloader_persistent_workers",
        "dataloader_pin_memory",
        "dataloader_prefetch_factor",
    },
}
_VERSIONS = ("torch", "transformers", "reluformers")


@dataclass(frozen=True)
class Run:
    """A training run that has its folder for itself, as `open_run` begins it; every process has one.

    Args:
        recipe: what to train.
        output_dir: its folder.
        args: of the recipe's trainer.
        checkpoint: where it goes on; None from the start.
        report: takes lines for the user, of the first process alone.
    """

    recipe: Recipe
    output_dir: Path
    args: TaskTrainingArguments
    checkpoint: Path | None
    report: Callable[[str], None]

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.args.process_index == 0


@contextmanager
def only_run(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Keep other runs out of a folder, which is made, for the time of a block.

    The system frees the lock when its process ends, however it ends, so none is ever stale. filelock's `Timeout`, an
    OSError, says that another run is still there after `patience` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK_FILE, timeout=patience):
        yield


@contextmanager
def open_run(
    recipe: Recipe, output_dir: str | Path, resume: str | Path | None, report: Callable[[str], None]
) -> Iterator[Run]:
    """Begin a run, and keep others out of its folder for the time of a block; arguments as of the tasks' trainings."""
    args = recipe.training_arguments(output_dir)
    folder = Path(output_dir)
    is_first = args.process_index == 0
    if recipe.start is not None:
        check_model(recipe.start)
    with only_run(folder) if is_first else nullcontext():
        # The first process looks, so that all of them go on from the same checkpoint.
        checkpoints = [checkpoint_to_resume(folder, resume) if is_first else None]
        (checkpoint,) = broadcast_object_list(checkpoints)
        yield Run(recipe, folder, args, checkpoint, report if is_first else logger.debug)


def identify_run(run: Run, data: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Record what a run trains with, as JSON has it, and refuse a checkpoint of another run.

    `data` tells training and validation rows from others: split → number of rows, checksums, names.
    """
    record = {
        "recipe": run.recipe.to_dict(),
        "processes": run.args.world_size,
        "devices_per_process": max(run.args.n_gpu, 1),
        "mixed_precision": run.args.mixed_precision,
        "versions": {name: version(name) for name in _VERSIONS},
        "data": data,
    }
    record = json.loads(json.dumps(record, default=str))
    if run.checkpoint is not None:
        check_same_run(run.checkpoint, record, type(run.args))
    return record


def train_model(run: Run, trainer: TaskTrainer, record: dict[str, Any]) -> float:
    """Make the folder that of a run, train to the end, and give the model its final weights.

    Args:
        run: of `open_run`.
        trainer: of the run's model.
        record: of `identify_run`, which checkpoints keep.

    Returns:
        How long it trained, in seconds.
    """
    if run.is_first:
        if aside := set_aside_later(run.output_dir, run.checkpoint):
            run.report(f"{aside}: holds the checkpoints that training does not go on from; delete them at will")
        run.recipe.save(run.output_dir / RECIPE_FILE)
    run.report(f"model: {type(trainer.model).__name__}, {trainer.model.num_parameters():,} parameters")
    trainer.run_record = record
    if run.args.device.type == "cpu":
        trainer.add_callback(GiveBackMemory())
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=None if run.checkpoint is None else str(run.checkpoint))
    seconds = round(time.perf_counter() - started, 1)
    if run.checkpoint is not None and step_of(run.checkpoint) == trainer.state.global_step:
        run.report(f"{run.checkpoint}: training is at its end")
    if run.args.average_last > 1:
        load_average(trainer.model, run.output_dir, run.args.average_last)
    if trainer.weight_average:
        trainer.weight_average.replace_weights()
    if run.args.save_strategy == "no":  # Without checkpoints, a failing evaluation would lose the weights.
        trainer.save_model(str(run.output_dir / UNFINISHED_MODEL))
    return seconds


def save_run(run: Run, trainer: TaskTrainer, scores: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Write the finished model into a run's folder, each file complete or not at all; give `results.json`."""
    results = {"parameters": trainer.model.num_parameters(), "steps": trainer.state.global_step, **scores}
    if run.checkpoint is None:  # A resumed run does not know how long earlier starts trained.
        results["training_seconds"] = seconds
    if run.recipe.start is not None:
        results["start"] = origin(run.recipe.start)
    environment = current_circumstances(run.args.device, processes=run.args.world_size, seed=run.args.seed)
    results |= environment.to_dict()
    unfinished = run.output_dir / UNFINISHED_MODEL
    trainer.save_model(str(unfinished))
    if not run.is_first:
        return results
    for name in (EVALUATION_FILE, CARD_FILE):  # They describe the weights that are replaced now.
        if (run.output_dir / name).exists():
            (run.output_dir / name).replace(run.output_dir / f"{name}.old")
            run.report(f"{run.output_dir / name}: is of the model before, and renamed to {name}.old")
    # The arguments are in the recipe, without this machine's paths.
    (unfinished / "training_args.bin").unlink(missing_ok=True)
    for path in sorted(unfinished.iterdir()):
        move = replace_directory if path.is_dir() else Path.replace
        move(path, run.output_dir / path.name)
    unfinished.rmdir()
    log = trainer.state.log_history
    write_json(run.output_dir / LOG_FILE, log)
    write_json(run.output_dir / RESULTS_FILE, results)
    if any("loss" in entry or "eval_loss" in entry for entry in log):
        plot_training_curves(log, run.output_dir / CURVES_FILE)
    return results


def check_same_run(checkpoint: Path, now: dict[str, Any], owner: type) -> None:
    """Refuse to go on with what would make another run of it; other versions of libraries are a warning.

    Args:
        checkpoint: where the run goes on.
        now: the record of this start; of its `data`, what both describe is compared.
        owner: dataclass of the training section, whose defaults stand for what a recipe leaves out.
    """
    before = read_manifest(checkpoint)["run"]
    earlier = _flat(before, now)
    asked = _flat(now, before)
    for key in sorted(earlier.keys() | asked.keys()):
        section, _, name = key.partition(".")
        if section == "decoding" or name in MAY_CHANGE.get(section, ()):
            continue
        default = getattr(owner, name, None) if section == "training" else None
        was = earlier.get(key, default)
        wanted = asked.get(key, default)
        if was != wanted:
            raise ValueError(f"{checkpoint}: the run has {key} {was!r:.100}, but {wanted!r:.100} is asked for")
    if before["versions"] != now["versions"]:
        logger.warning(
            "%s was written by %s: weights will differ in their last digits", checkpoint, before["versions"]
        )


def _flat(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Name → value of everything that is compared with another record."""
    values = {name: record[name] for name in ("processes", "devices_per_process")}
    for section, content in record["recipe"].items():
        parts = content.items() if isinstance(content, dict) else [("", content)]
        values |= {f"{section}.{key}": value for key, value in parts}
    for split, description in record.get("data", {}).items():
        known = other.get("data", {}).get(split, {})
        values |= {f"data.{split} ({what})": value for what, value in description.items() if what in known}
    return values
