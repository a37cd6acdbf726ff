"""What a whole run would take, from its first updates."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, set_seed

from reluformers.evaluation.circumstances import peak_memory

from .meter import TrainingMeter
from .recipe import Recipe
from .run import TaskRun
from .trainer import LogLines

UPDATES = 20
# what would write, send or take time of its own
_LEFT_OUT = {
    "average_last": 0,
    "eval_on_start": False,
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "logging_strategy": "no",
    "push_to_hub": False,
    "report_to": [],
    "save_strategy": "no",
}


def estimate(
    run_class: type[TaskRun], recipe: Recipe, report: Callable[[str], None], updates: int = UPDATES
) -> dict[str, Any]:
    """Train for some updates, without evaluations, checkpoints and tracking, and say what the whole run would take.

    Nothing stays behind but the rows in the cache of `datasets`, which the run itself will read.

    Args:
        run_class: of the task.
        recipe: of the run.
        report: takes lines for the user.
        updates: how many; the first one, which is slower, is not measured if there are others.

    Returns:
        `parameters`, `updates` and `seconds` of the whole run, `seconds_per_update`, `memory_bytes` (most memory of
        the first process or its GPU), and `…_per_second` of what the training log gives, of all processes.

    Raises:
        ValueError: the recipe or the data are not usable.
    """
    with TemporaryDirectory() as folder:
        run = run_class(recipe, folder, report)
        for name, value in _LEFT_OUT.items():
            setattr(run.args, name, value)
        # the first process leaves there what the others read
        run.output_dir = Path(*broadcast_object_list([folder]))
        with run.args.main_process_first(local=False):
            run.prepare(None)
        set_seed(run.args.seed)
        trainer = run.make_trainer(run.build_model(None))
        clock = _FirstUpdates(trainer.meter, updates)
        trainer.add_callback(clock)
        trainer.remove_callback(LogLines)  # which would take it for a run
        trainer.train()
        result = {
            "parameters": trainer.model.num_parameters(),
            "updates": trainer.state.max_steps,
            "seconds": clock.seconds_per_update * trainer.state.max_steps,
            "seconds_per_update": clock.seconds_per_update,
            "memory_bytes": peak_memory(),
            **{name: value for name, value in trainer.meter_summary().items() if name.endswith("_per_second")},
        }
        for line in _lines(result, type(trainer.model).__name__):
            run.report(line)
        trainer.accelerator.wait_for_everyone()
    return result


def _lines(result: dict[str, Any], model: str) -> list[str]:
    rates = {name.removesuffix("_per_second"): value for name, value in result.items() if "_per_second" in name}
    rates = {name.replace("_", " "): value for name, value in rates.items()}
    amounts = ", ".join(f"{rate * result['seconds']:,.0f} {name}" for name, rate in rates.items())
    return [
        f"model: {model}, {result['parameters']:,} parameters",
        f"memory: {result['memory_bytes'] / 1e9:.2f} GB at most",
        f"speed: {result['seconds_per_update']:.3g} s for an update; a second "
        + ", ".join(f"{rate:,.0f} {name}" for name, rate in rates.items()),
        f"training: {result['updates']:,} updates, {amounts}, {timedelta(seconds=round(result['seconds']))} without "
        "evaluations and checkpoints",
    ]


class _FirstUpdates(TrainerCallback):
    """Ends training after some updates, of which it takes the time."""

    def __init__(self, meter: TrainingMeter, updates: int):
        self.meter, self.updates = meter, updates
        self.measured, self.seconds_per_update = 0, 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1 < min(self.updates, state.max_steps):
            self.meter.reset()
            self.started = time.perf_counter()
            return
        self.measured += 1
        self.seconds_per_update = (time.perf_counter() - self.started) / self.measured
        control.should_training_stop |= state.global_step >= self.updates
