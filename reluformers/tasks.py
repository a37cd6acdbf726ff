"""Which tasks there are; a task's folder is imported when it is asked for.

A further task is a folder beside `translation/` and `images/` with a `task.py`, a row here, and its model classes in
`families.py`.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, PreTrainedConfig

from .data.checked_fields import check_name
from .families import FAMILIES, config_class_of
from .training.task import Task
from .training.yaml_files import read_sections

if TYPE_CHECKING:
    from .training.recipe import Recipe


class Room(NamedTuple):
    """Where a task lies, and the auto class that opens its models."""

    folder: str
    auto_class: type


TASKS = {
    "translation": Room("translation", AutoModelForSeq2SeqLM),
    "image-classification": Room("images", AutoModelForImageClassification),
}


def task_named(name: Any) -> Task:
    """The task of that name; a `ValueError` where there is none."""
    check_name(name, TASKS, "task")
    return import_module(f"reluformers.{TASKS[name].folder}.task").TASK


def task_of(config: PreTrainedConfig) -> Task:
    """The task of a model, which may be none of ours; a `ValueError` where no task opens it."""
    remote = getattr(config, "auto_map", None) or {}  # A folder's own code may open the model.
    for name, room in TASKS.items():
        if room.auto_class.__name__ in remote or type(config) in room.auto_class._model_mapping:
            return task_named(name)
    raise ValueError(f"model_type {config.model_type!r} is of no task here; there are {', '.join(TASKS)}")


def task_of_model_type(model_type: Any) -> Task:
    """The task of a family of this library by its `model_type`; a `ValueError` for others."""
    check_name(model_type, [family.model_type for family in FAMILIES], "model_type of reluformers")
    models = FAMILIES[config_class_of(model_type)]
    return task_named(next(name for name, room in TASKS.items() if room.auto_class in models))


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> "Recipe":
    """Read a recipe of the task that it names.

    Args:
        path: YAML file with `task:` and the sections of that task, and perhaps `base`, the name of a recipe beside it
            whose values hold where this one says nothing.
        overrides: `"section.key=value"` each, each key once; the value is read as YAML, and `section.key.inner=value`
            sets one entry of a mapping.

    Raises:
        ValueError: it names no task, or is not valid.
    """
    sections = read_sections(path, overrides)
    return task_named(sections.get("task")).recipe_class.from_sections(sections, path)
