"""The tasks whose rows are compared: those of the library, and causal models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reluformers import tasks as library
from reluformers.data.checked_fields import check_name
from reluformers.evaluation.scorer import Scorer
from reluformers.training.recipe import Recipe

from .causal.recipe import CausalRecipe
from .causal.run import train_causal
from .causal.scoring import CausalScorer
from .row_scores import SCORERS

# statistic of the attention → heading and format in a table
ATTENTION_COLUMNS = {
    "zeros": ("zeros", ".1%"),
    "null_rate": ("null rows", ".1%"),
    "entropy": ("entropy", ".2f"),
    "row_sum": ("row sum", ".2f"),
}


@dataclass(frozen=True)
class Task:
    """What the tables have to know of a task; the fields are those of `reluformers.training.task.Task`.

    Args:
        columns: measure of a run → heading and format in a table.
    """

    name: str
    recipe_class: type[Recipe]
    train: Callable[..., dict[str, Any]]
    scorer: type[Scorer]
    main_metric: str
    speeds: tuple[str, ...]
    columns: Mapping[str, tuple[str, str]] = field(default_factory=lambda: ATTENTION_COLUMNS)


TASKS = {
    task.name: Task(task.name, task.recipe_class, task.train, SCORERS[task.name], task.main_metric, task.speeds)
    for task in map(library.task_named, library.TASKS)
} | {
    CausalRecipe.task: Task(
        name=CausalRecipe.task,
        recipe_class=CausalRecipe,
        train=train_causal,
        scorer=CausalScorer,
        main_metric="loss",
        speeds=("tokens_per_second",),
        columns={
            "loss_1": ("loss at 1×", ".3f"),
            "loss_4": ("loss at 4×", ".3f"),
            "loss_16": ("loss at 16×", ".3f"),
            "slow_loss_16": ("with slow rotation", ".3f"),
            "recall_1024": ("recall, 1,024", ".3f"),
            "sink_rate": ("sinks", ".0%"),
            "largest_sink": ("largest sink", ".1%"),
            "zeros": ("zeros", ".1%"),
            "null_rate": ("null rows", ".1%"),
            "entropy": ("entropy", ".2f"),
            "survivor_growth": ("survivors, 8× to 1×", ".1f"),
        },
    )
}
# what claims may be about, beside the score
MEASURES = dict.fromkeys(measure for task in TASKS.values() for measure in (*task.columns, "slow_growth_16"))


def task_named(name: Any) -> Task:
    """The task of that name; a `ValueError` where there is none."""
    check_name(name, TASKS, "task")
    return TASKS[name]
