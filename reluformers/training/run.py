"""The parts of a training run that do not depend on its task: where it goes on, its course, its finished folder."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from filelock import FileLock
from transformers import PreTrainedModel, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from reluformers.conversion.convert import origin
from reluformers.evaluation.circumstances import current_circumstances
from reluformers.evaluation.plotting import plot_training_curves
from reluformers.files import read_json, replace_directory, write_json

from .averaging import mean_weights
from .checkpoints import (
    LOCK_FILE,
    check_model,
    checkpoint_to_resume,
    checkpoints_of,
    read_manifest,
    set_aside_later,
)
from .identity import check_same_run, run_record
from .memory import GiveBackMemory, keep_freed_memory
from .recipe import Recipe
from .sharding import SHARDED_WEIGHTS, read_sharded_weights
from .trainer import TaskTrainer

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
LOG_FILE = "log_history.json"
RESULTS_FILE = "results.json"
CURVES_FILE = "curves.png"
UNFINISHED_MODEL = "unfinished"  # folder that the files of the finished model are written to first
_PATIENCE = 10.0  # seconds: the workers of a killed run hold its lock until they notice


class Run:
    """A training run that has its folder for itself; made by `open_run`, whose arguments it keeps.

    Its methods are called in the order in which they stand here, by every process; the first one writes and reports.

    Attributes:
        args: training arguments.
        checkpoint: where the run goes on; None if it starts anew.
    """

    def __init__(self, recipe: Recipe, output_dir: str | Path, report: Callable[[str], None]):
        # accelerate starts one process on the CPU, whatever number it was told
        if "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
            raise ValueError("several processes on a CPU are started by torchrun, with ACCELERATE_USE_CPU=true")
        self.recipe, self.output_dir = recipe, Path(output_dir)
        self.args = recipe.training_arguments(output_dir)
        self.is_first = self.args.process_index == 0
        self.report = report if self.is_first else logger.debug
        self.record = run_record(recipe, self.args)
        self.checkpoint: Path | None = None
        if recipe.start is not None:
            check_model(recipe.start)
        self._earlier: dict[str, Any] = {}
        self._is_at_end = False

    def find_checkpoint(self, resume: str | Path | None) -> None:
        """Find where the run goes on, as the first process sees it; see `checkpoint_to_resume`."""
        found: list[Any] = [None, {}]
        if self.is_first:
            checkpoint = checkpoint_to_resume(self.output_dir, resume)
            found = [checkpoint, {} if checkpoint is None else read_manifest(checkpoint)["run"]]
        self.checkpoint, self._earlier = broadcast_object_list(found)
        self._check_same()

    def begin(self, data: dict[str, dict[str, Any]]) -> None:
        """Make sure that the data are those of the checkpoint, and draw the seed.

        Args:
            data: what tells training and validation rows from others: split → number of rows, checksums, names.
        """
        self.record["data"] = data
        self._check_same()
        set_seed(self.args.seed)
        if self.args.device.type == "cpu":
            keep_freed_memory()

    def _check_same(self) -> None:
        if self.checkpoint is not None:
            check_same_run(self.checkpoint, self._earlier, self.record, self.recipe.arguments_class)

    def claim(self, model: PreTrainedModel) -> None:
        """Make the folder that of this run: nothing can be wrong with recipe, data and model any more."""
        if self.is_first:
            if aside := set_aside_later(self.output_dir, self.checkpoint):
                self.report(f"{aside}: holds the checkpoints that training does not go on from; delete them at will")
            self.recipe.save(self.output_dir / RECIPE_FILE)
        self.report(f"model: {type(model).__name__}, {model.num_parameters():,} parameters")

    def train(self, trainer: TaskTrainer, has_ended: Callable[[Path], bool] = lambda checkpoint: False) -> None:
        """Train to the end, and give the model its final weights.

        Args:
            trainer: of the run.
            has_ended: whether something but the number of updates ended training at a checkpoint.
        """
        trainer.run_record = self.record
        trainer.add_callback(GiveBackMemory())
        started = time.perf_counter()
        if self.checkpoint is not None and (self._is_finished(trainer) or has_ended(self.checkpoint)):
            self.report(f"{self.checkpoint}: training is at its end")
            self._is_at_end = True
            _load_finished(trainer, self.checkpoint)
        elif self.checkpoint is not None and self.args.save_only_model:
            raise ValueError(f"{self.checkpoint}: was saved without what the optimizer knows (save_only_model)")
        else:
            trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
        self._seconds = round(time.perf_counter() - started, 1)
        if self.args.average_last > 1:
            _load_average(trainer)
        if trainer.weight_average:
            trainer.weight_average.replace_weights()
        if self.args.save_strategy == "no":  # no checkpoint has the weights, should the evaluation fail
            trainer.save_model(str(self.output_dir / UNFINISHED_MODEL))

    def _is_finished(self, trainer: TaskTrainer) -> bool:
        """Whether the checkpoint holds the last update of the run."""
        state = TrainerState.load_from_json(str(self.checkpoint / TRAINER_STATE_NAME))
        *_, max_steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
        if state.global_step > max_steps:
            raise ValueError(f"{self.checkpoint}: has {state.global_step} updates, but {max_steps} are asked for")
        is_stopped = trainer.early_stopping is not None and trainer.early_stopping.has_ended(state)
        return state.global_step >= max_steps or is_stopped

    def save(self, trainer: TaskTrainer, scores: dict[str, Any]) -> dict[str, Any]:
        """Write the finished model into the output folder, each file complete or not at all; gives `results.json`."""
        results = {"parameters": trainer.model.num_parameters(), "steps": trainer.state.global_step, **scores}
        results |= self._training_seconds()
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
        # at its end a run has the log of its checkpoint, without the scores that came after
        if not (self._is_at_end and (self.output_dir / LOG_FILE).is_file()):
            write_json(self.output_dir / LOG_FILE, log)
        write_json(self.output_dir / RESULTS_FILE, results)
        if any("loss" in entry or "eval_loss" in entry for entry in log):
            plot_training_curves(log, self.output_dir / CURVES_FILE)
        return results

    def _training_seconds(self) -> dict[str, float]:
        """`training_seconds` if they are known, which those of earlier starts are not."""
        path = self.output_dir / RESULTS_FILE
        if self._is_at_end and path.is_file():
            return {name: value for name, value in read_json(path).items() if name == "training_seconds"}
        return {} if self.checkpoint else {"training_seconds": self._seconds}


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
        run.find_checkpoint(resume)
        yield run


def _load_finished(trainer: TaskTrainer, checkpoint: Path) -> None:
    """Bring the trainer to where training ended."""
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    state.is_local_process_zero = trainer.is_local_process_zero()
    state.is_world_process_zero = trainer.is_world_process_zero()
    trainer.state = state
    best = Path(state.best_model_checkpoint or checkpoint)
    weights = best if trainer.args.load_best_model_at_end and best.is_dir() else checkpoint
    check_model(weights)
    if (weights / SHARDED_WEIGHTS).is_dir():
        trainer.model.load_state_dict(read_sharded_weights(weights))
    else:
        trainer.model.load_state_dict(type(trainer.model).from_pretrained(weights).state_dict())
    if trainer.weight_average:
        trainer.weight_average.load(checkpoint)
    # with the autocast that training would have left
    trainer.accelerator.prepare_model(trainer.model, evaluation_mode=True)


def _load_average(trainer: TaskTrainer) -> None:
    """Give the model the mean of the weights of this run's last checkpoints."""
    count, model = trainer.args.average_last, trainer.model
    folders = checkpoints_of(trainer.args.output_dir)[-count:]
    if len(folders) < count:
        logger.warning("only %d checkpoints to average, average_last is %d", len(folders), count)
    if folders:
        averaged = type(model).from_pretrained(None, config=model.config, state_dict=mean_weights(folders))
        model.load_state_dict(averaged.state_dict())
