"""The parts of a training run that do not depend on its task: where it goes on, its course, its finished folder."""

import json
import logging
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from filelock import FileLock
from transformers import set_seed

from reluformers.conversion.convert import origin
from reluformers.evaluation.circumstances import current_circumstances
from reluformers.evaluation.plotting import plot_training_curves
from reluformers.files import replace_directory, write_json

from .averaging import mean_weights
from .callbacks import GiveBackMemory
from .checkpoints import (
    LOCK_FILE,
    check_model,
    checkpoint_to_resume,
    checkpoints_of,
    read_manifest,
    set_aside_later,
    step_of,
)
from .recipe import Recipe
from .trainer import TaskTrainer

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
LOG_FILE = "log_history.json"
RESULTS_FILE = "results.json"
CURVES_FILE = "curves.png"
UNFINISHED_MODEL = "unfinished"  # folder that the files of the finished model are written to first
_PATIENCE = 10.0  # seconds: the workers of a killed run hold its lock until they notice
# What may change when a run goes on, beside all of `decoding`; it holds from the checkpoint on. Of `data`, the rows
# are compared in place of the names under which they lie.
MAY_CHANGE = {
    "data": {"path", "name", "revision", "train", "validation", "test", "check_images", "num_proc"},
    "training": {
        *("max_steps", "num_train_epochs", "early_stopping_patience", "average_last", "per_device_eval_batch_size"),
        *("eval_strategy", "eval_steps", "logging_strategy", "logging_steps", "logging_first_step"),
        *("save_strategy", "save_steps", "save_total_limit", "report_to", "run_name", "disable_tqdm", "ddp_timeout"),
        *("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory"),
        "dataloader_prefetch_factor",
    },
}
_VERSIONS = ("torch", "transformers", "reluformers")


class Run:
    """A training run that has its folder for itself; made by `open_run`, whose arguments it keeps.

    Its methods are called in the order in which they stand here, by every process; the first one writes and reports.
    It goes on from `checkpoint`, if it has one.
    """

    def __init__(self, recipe: Recipe, output_dir: str | Path, report: Callable[[str], None]):
        self.recipe, self.output_dir = recipe, Path(output_dir)
        self.args = recipe.training_arguments(output_dir)
        self.is_first = self.args.process_index == 0
        self.report = report if self.is_first else logger.debug
        # what the run trains with, as JSON has it; `data` comes to it when they are read
        record = {
            "recipe": recipe.to_dict(),
            "processes": self.args.world_size,
            "devices_per_process": max(self.args.n_gpu, 1),
            "mixed_precision": self.args.mixed_precision,
            "versions": {name: version(name) for name in _VERSIONS},
        }
        self.record = json.loads(json.dumps(record, default=str))
        self.checkpoint: Path | None = None
        if recipe.start is not None:
            check_model(recipe.start)

    def begin(self, data: dict[str, dict[str, Any]]) -> None:
        """Make sure that the run is that of the checkpoint, and draw the seed.

        `data` tells training and validation rows from others: split → number of rows, checksums, names.
        """
        self.record["data"] = data
        if self.checkpoint is not None:
            check_same_run(self.checkpoint, self.record, type(self.args))
        set_seed(self.args.seed)

    def train(self, trainer: TaskTrainer) -> None:
        """Make the folder that of this run, train to the end, and give the model its final weights."""
        if self.is_first:
            if aside := set_aside_later(self.output_dir, self.checkpoint):
                self.report(f"{aside}: holds the checkpoints that training does not go on from; delete them at will")
            self.recipe.save(self.output_dir / RECIPE_FILE)
        self.report(f"model: {type(trainer.model).__name__}, {trainer.model.num_parameters():,} parameters")
        trainer.run_record = self.record
        if self.args.device.type == "cpu":
            trainer.add_callback(GiveBackMemory())
        started = time.perf_counter()
        trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
        self._seconds = round(time.perf_counter() - started, 1)
        if self.checkpoint is not None and step_of(self.checkpoint) == trainer.state.global_step:
            self.report(f"{self.checkpoint}: training is at its end")
        if self.args.average_last > 1:
            _load_average(trainer)
        if trainer.weight_average:
            trainer.weight_average.replace_weights()
        if self.args.save_strategy == "no":  # no checkpoint has the weights, should the evaluation fail
            trainer.save_model(str(self.output_dir / UNFINISHED_MODEL))

    def save(self, trainer: TaskTrainer, scores: dict[str, Any]) -> dict[str, Any]:
        """Write the finished model into the output folder, each file complete or not at all; gives `results.json`."""
        results = {"parameters": trainer.model.num_parameters(), "steps": trainer.state.global_step, **scores}
        if self.checkpoint is None:  # the time of earlier starts is lost with them
            results["training_seconds"] = self._seconds
        if self.recipe.start is not None:
            results["start"] = origin(self.recipe.start)
        environment = current_circumstances(self.args.device, processes=self.args.world_size, seed=self.args.seed)
        results |= environment.to_dict()
        unfinished = self.output_dir / UNFINISHED_MODEL
        trainer.save_model(str(unfinished))
        if not self.is_first:
            return results
        # the arguments are in the recipe, without this machine's paths
        (unfinished / "training_args.bin").unlink(missing_ok=True)
        for path in sorted(unfinished.iterdir()):
            move = replace_directory if path.is_dir() else Path.replace
            move(path, self.output_dir / path.name)
        unfinished.rmdir()
        log = trainer.state.log_history
        write_json(self.output_dir / LOG_FILE, log)
        write_json(self.output_dir / RESULTS_FILE, results)
        if any("loss" in entry or "eval_loss" in entry for entry in log):
            plot_training_curves(log, self.output_dir / CURVES_FILE)
        return results


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
    run = Run(recipe, output_dir, report)
    with only_run(run.output_dir) if run.is_first else nullcontext():
        # as the first process sees it
        found = [checkpoint_to_resume(run.output_dir, resume) if run.is_first else None]
        (run.checkpoint,) = broadcast_object_list(found)
        yield run


def _load_average(trainer: TaskTrainer) -> None:
    """Give the model the mean of the weights of this run's last checkpoints."""
    count, model = trainer.args.average_last, trainer.model
    folders = checkpoints_of(trainer.args.output_dir)[-count:]
    if len(folders) < count:
        logger.warning("only %d checkpoints to average, average_last is %d", len(folders), count)
    if folders:
        averaged = type(model).from_pretrained(None, config=model.config, state_dict=mean_weights(folders))
        model.load_state_dict(averaged.state_dict())


def check_same_run(checkpoint: Path, now: dict[str, Any], owner: type) -> None:
    """Refuse to go on with what would make another run of it; other versions of libraries are a warning.

    Args:
        checkpoint: where the run goes on.
        now: the record of this start; of its `data`, what both describe is compared.
        owner: dataclass of the training section, whose defaults stand for what a recipe leaves out.
    """
    before = read_manifest(checkpoint)["run"]
    earlier, asked = _flat(before, now), _flat(now, before)
    for key in sorted(earlier.keys() | asked.keys()):
        section, _, name = key.partition(".")
        if section == "decoding" or name in MAY_CHANGE.get(section, ()):
            continue
        default = getattr(owner, name, None) if section == "training" else None
        was, wanted = earlier.get(key, default), asked.get(key, default)
        if was != wanted:
            was, wanted = (textwrap.shorten(repr(value), 100) for value in (was, wanted))
            raise ValueError(f"{checkpoint}: the run has {key} {was}, but {wanted} is asked for")
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
