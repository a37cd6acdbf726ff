"""The frame of a training run: from a recipe to a folder that opens anywhere."""

import json
import logging
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch.distributed import DistError
from transformers import PreTrainedModel, TrainerState, set_seed
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from reluformers.conversion.convert import build_model, origin
from reluformers.conversion.start import open_start
from reluformers.errors import describe_error
from reluformers.evaluation.circumstances import current_circumstances
from reluformers.evaluation.plotting import plot_training_curves
from reluformers.files import replace_directory, write_json

from .averaging import average_checkpoints
from .checkpoints import (
    UNFINISHED_FOLDER,
    check_model,
    checkpoint_to_resume,
    checkpoints_of,
    read_manifest,
    set_aside_later,
    step_of,
)
from .identity import check_same_run, run_record
from .lock import only_run
from .memory import GiveBackMemory, keep_freed_memory
from .recipe import Recipe
from .sharding import SHARDED_WEIGHTS, read_sharded_weights
from .trainer import TaskTrainer
from .transfer import Transfer

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
LOG_FILE = "log_history.json"
EARLIER_LOG_FILE = "log_history_earlier.json"
RESULTS_FILE = "results.json"
CURVES_FILE = "curves.png"
UNFINISHED_MODEL = "unfinished"  # folder that the files of the finished model are written to first


class TaskRun(ABC):
    """One run: find where to start, train, evaluate, save. A task says what its data, model and measures are.

    Under `accelerate launch` or `torchrun` every process makes one; the first one writes and reports.

    Args:
        recipe: what to train on what; it stays as it is.
        output_dir: folder for checkpoints and, at the end, for everything that belongs to the model.
        report: takes lines for the user.

    Raises:
        ValueError: training arguments of the recipe are not usable.
    """

    def __init__(self, recipe: Recipe, output_dir: str | Path, report: Callable[[str], None]):
        _check_launch()
        self.recipe = recipe
        self.args = self.recipe.training_arguments(output_dir)
        with _naming_packages(RuntimeError, ValueError):
            for integration in get_reporting_integration_callbacks(self.args.report_to):
                integration()
        self.output_dir = Path(output_dir)
        self.report = report if self.args.process_index == 0 else logger.debug
        self.record = run_record(recipe, self.args)

    # of a run that starts from a model: whether it has an output layer of its own
    has_new_head = False

    @abstractmethod
    def prepare(self, checkpoint: Path | None) -> None:
        """Load the data; processes beside the first come after it and find what it has written.

        Args:
            checkpoint: where the run goes on, if it does.
        """

    @abstractmethod
    def build_model(self, checkpoint: Path | None) -> PreTrainedModel:
        """A fresh model for the recipe and the data.

        Args:
            checkpoint: where the run goes on, if it does: what was measured on the data is read from its config.json.
        """

    @abstractmethod
    def build_trainer(self, model: PreTrainedModel) -> TaskTrainer:
        """The trainer of this task."""

    @abstractmethod
    def evaluate(self, trainer: TaskTrainer) -> dict[str, Any]:
        """Measure the final weights: what `results.json` holds beside parameters and steps."""

    @abstractmethod
    def describe_data(self) -> dict[str, dict[str, Any]]:
        """What tells the training and validation rows from others: split → its number of rows, checksums, names."""

    def has_ended(self, trainer: TaskTrainer, checkpoint: Path) -> bool:
        """Whether something but the number of updates ended training at a checkpoint."""
        return False

    def make_trainer(self, model: PreTrainedModel) -> TaskTrainer:
        """The trainer, in which the model that the run starts from takes part as the recipe says.

        Raises:
            ValueError: it cannot.
        """
        trainer, options = self.build_trainer(model), self.recipe.transfer
        if not (options.is_gradual or options.is_distilled):
            return trainer
        if options.distillation > 0 and self.has_new_head:
            raise ValueError(
                f"model.distillation is {options.distillation}, but must be 0 here: the classes of model.start are "
                "others than those of the data"
            )
        # the head is not compared then, but has to know the labels
        labels = {name: getattr(model.config, name) for name in ("id2label", "label2id")} if self.has_new_head else {}
        original = build_model(open_start(self.recipe.start), new_head=self.has_new_head, config_fields=labels)
        transfer = Transfer(options, trainer.model, original, trainer.accelerator, self.args)
        trainer.add_callback(transfer)
        trainer.statistics = transfer.statistics
        return trainer

    def run(self, resume: str | Path | None) -> dict[str, Any]:
        """Go through the run.

        Args:
            resume: None for a fresh run, `"last"`, `"auto"` or a checkpoint's path: see `checkpoint_to_resume`.

        Returns:
            The content of `results.json`.

        Raises:
            ValueError: the data, the folder or the checkpoint is not usable; the message says why.
        """
        with only_run(self.output_dir) if self.args.process_index == 0 else nullcontext(), _naming_lost_processes():
            return self._run(resume)

    def _run(self, resume: str | Path | None) -> dict[str, Any]:
        checkpoint, earlier = self._find_checkpoint(resume)
        if checkpoint is not None:
            check_same_run(checkpoint, earlier, self.record, self.recipe.arguments_class)
        with self.args.main_process_first(local=False):
            self.prepare(checkpoint)
        self.record["data"] = self.describe_data()
        if checkpoint is not None:
            check_same_run(checkpoint, earlier, self.record, self.recipe.arguments_class)
        set_seed(self.args.seed)
        keeps_memory = self.args.device.type == "cpu" and keep_freed_memory()
        model = self.build_model(checkpoint)
        if self.args.process_index == 0:
            if aside := set_aside_later(self.output_dir, checkpoint):
                self.report(f"{aside}: holds the checkpoints that training does not go on from; delete them at will")
            self.recipe.save(self.output_dir / RECIPE_FILE)
        self.report(f"model: {type(model).__name__}, {model.num_parameters():,} parameters")
        with _naming_packages():
            trainer = self.make_trainer(model)
        trainer.run_record = self.record
        if keeps_memory:
            trainer.add_callback(GiveBackMemory())
        seconds = self._train(trainer, checkpoint)
        if self.args.average_last > 1:
            _load_average(trainer)
        if trainer.weight_average:
            trainer.weight_average.replace_weights()
        if self.args.save_strategy == SaveStrategy.NO:  # no checkpoint has the weights, should the evaluation fail
            trainer.save_model(str(self.output_dir / UNFINISHED_MODEL))
        results = {"parameters": trainer.model.num_parameters(), "steps": trainer.state.global_step}
        results |= self.evaluate(trainer) | seconds
        if self.recipe.start is not None:
            results["start"] = origin(self.recipe.start)
        results |= current_circumstances(
            self.args.device, processes=self.args.world_size, seed=self.args.seed
        ).to_dict()
        self._save(trainer, results)
        return results

    def _train(self, trainer: TaskTrainer, checkpoint: Path | None) -> dict[str, float]:
        """Train to the end; return `training_seconds` if they are known, which those of earlier starts are not."""
        if checkpoint is not None and self._is_finished(trainer, checkpoint):
            self.report(f"{checkpoint}: training is at its end")
            _load_finished(trainer, checkpoint)
            return _earlier_seconds(self.output_dir)
        if checkpoint is not None and self.args.save_only_model:
            raise ValueError(
                f"{checkpoint}: training cannot go on from it, as training.save_only_model leaves out what the "
                "optimizer knows; train anew in another output folder"
            )
        started = time.perf_counter()
        with _naming_packages():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return {} if checkpoint else {"training_seconds": round(time.perf_counter() - started, 1)}

    def _find_checkpoint(self, resume: str | Path | None) -> tuple[Path | None, dict[str, Any]]:
        """Where the run goes on and its record, as the first process sees it."""
        found: list[Any] = [None, {}]
        if self.args.process_index == 0:
            if self.recipe.start is not None:
                check_model(self.recipe.start)
            checkpoint = checkpoint_to_resume(self.output_dir, resume)
            found = [checkpoint, {} if checkpoint is None else read_manifest(checkpoint)["run"]]
        return tuple(broadcast_object_list(found))

    def _is_finished(self, trainer: TaskTrainer, checkpoint: Path) -> bool:
        """Whether a checkpoint holds the last update of the run."""
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        *_, max_steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
        if state.global_step > max_steps:
            raise ValueError(
                f"{checkpoint}: has {state.global_step} updates, but training.max_steps or num_train_epochs "
                f"ask for {max_steps}: set more, or --resume an earlier checkpoint"
            )
        is_stopped = trainer.early_stopping is not None and trainer.early_stopping.has_ended(state)
        return state.global_step >= max_steps or is_stopped or self.has_ended(trainer, checkpoint)

    def _save(self, trainer: TaskTrainer, results: dict[str, Any]) -> None:
        """Write the finished model into the output folder, each file complete or not at all."""
        unfinished = self.output_dir / UNFINISHED_MODEL
        trainer.save_model(str(unfinished))
        if not trainer.is_world_process_zero():
            return
        # the arguments are in the recipe, without this machine's paths
        (unfinished / "training_args.bin").unlink(missing_ok=True)
        for path in sorted(unfinished.iterdir()):
            target = self.output_dir / path.name
            if path.is_dir():
                replace_directory(path, target)
            else:
                path.replace(target)
        unfinished.rmdir()
        self._save_log(trainer)
        write_json(self.output_dir / RESULTS_FILE, results)
        evaluated = {f"eval_{name}" for name in self.recipe.metrics(self.args)}
        if any({"loss", *evaluated} & entry.keys() for entry in trainer.state.log_history):
            plot_training_curves(trainer.state.log_history, self.output_dir / CURVES_FILE)
        else:
            self.report(f"no {CURVES_FILE}: the run was too short for logging_steps, so its log holds no loss")

    def _save_log(self, trainer: TaskTrainer) -> None:
        """Write the log; a longer one stays, under another name where it is of another course."""
        path, log = self.output_dir / LOG_FILE, trainer.state.log_history
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        if len(earlier) > len(log):
            if trainer.is_resumed_at_end:
                return
            path.replace(self.output_dir / EARLIER_LOG_FILE)
        write_json(path, log)


@contextmanager
def _naming_packages(*kinds: type[Exception]) -> Iterator[None]:
    """Put into a line that an argument, such as `report_to` or `optim`, needs a package that is not installed."""
    try:
        yield
    except (ImportError, *kinds) as error:
        raise ValueError(f"training: {describe_error(error)}") from error


@contextmanager
def _naming_lost_processes() -> Iterator[None]:
    """Put into a line that other processes died or do not answer, after `ddp_timeout` seconds at the latest."""
    try:
        yield
    except RuntimeError as error:
        # gloo has no exception of its own, and one of its messages does not name it
        is_of_gloo = any(words in str(error).lower() for words in ("gloo", "pair closure"))
        if not (is_of_gloo or isinstance(error, DistError)):
            raise
        raise ValueError(
            f"process {PartialState().process_index} has lost the others ({describe_error(error)}); when all machines "
            "are well, start every process again with --resume auto"
        ) from error


def _check_launch() -> None:
    """Refuse to train in one process where several were asked for.

    Raises:
        ValueError: `accelerate launch --cpu` was told of several processes, of which it starts one.
    """
    if "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            "accelerate launch was asked for several processes, but starts one on the CPU: use "
            "ACCELERATE_USE_CPU=true torchrun --nproc_per_node N scripts/train.py …"
        )


def _earlier_seconds(folder: Path) -> dict[str, float]:
    """`training_seconds` of the run that is finished in a folder, if it wrote them."""
    path = folder / RESULTS_FILE
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: value for name, value in results.items() if name == "training_seconds"}


def _load_finished(trainer: TaskTrainer, checkpoint: Path) -> None:
    """Bring the trainer to where training ended."""
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    state.is_local_process_zero = trainer.is_local_process_zero()
    state.is_world_process_zero = trainer.is_world_process_zero()
    trainer.state = state
    trainer.is_resumed_at_end = True
    best = Path(state.best_model_checkpoint or checkpoint)
    _load_weights(trainer, best if trainer.args.load_best_model_at_end and best.is_dir() else checkpoint)
    if trainer.weight_average:
        trainer.weight_average.load(checkpoint)
    # with the autocast that training would have left
    trainer.accelerator.prepare_model(trainer.model, evaluation_mode=True)


def _load_weights(trainer: TaskTrainer, folder: Path) -> None:
    if (folder / SHARDED_WEIGHTS).is_dir():
        weights = read_sharded_weights(folder)
    else:
        weights = type(trainer.model).from_pretrained(folder).state_dict()
    trainer.model.load_state_dict(weights)


def _load_average(trainer: TaskTrainer) -> None:
    """Give the model the mean of the weights of this run's last checkpoints."""
    output_dir, count = Path(trainer.args.output_dir), trainer.args.average_last
    averaged = output_dir / UNFINISHED_FOLDER / "averaged"
    if trainer.is_world_process_zero():
        folders = [folder for folder in checkpoints_of(output_dir) if step_of(folder) <= trainer.state.global_step]
        folders = folders[-count:]
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
