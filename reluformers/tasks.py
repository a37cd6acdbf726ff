"""Which tasks there are: one record each, and nowhere else a list of them.

A further task is a folder beside `translation/` and `images/`, a row here, and its model classes in `families.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, PreTrainedConfig

from .data.checked_fields import check_name
from .evaluation.scorer import Scorer
from .families import FAMILIES, config_class_of
from .images import card as image_card
from .images.processing import example_pixels
from .images.recipe import ImageRecipe
from .images.run import train_image_classification
from .images.scoring import ImageScorer
from .papers import PAPERS, Paper
from .training.recipe import Recipe, read_sections
from .translation import card as translation_card
from .translation.evaluation import TranslationScorer
from .translation.recipe import TranslationRecipe
from .translation.run import train_translation
from .translation.tokenization import example_tokens


@dataclass(frozen=True)
class Task:
    """All that commands, cards and the Hub have to know of a task.

    Args:
        name: in recipes and results, and what the Hub calls it: its pipeline tag.
        title: what the Hub shows.
        auto_class: opens its models.
        recipe_class: of its trainings.
        train: trains by a recipe, as `train_translation` does.
        scorer: scores saved models.
        main_metric: of `METRICS`, by which models are compared.
        example_inputs: a small batch that any of its models takes: arguments of `forward`.
        example: an input as a user would write it in Python, for models whose results hold no `examples`.
        architecture: the paper of everything around the attention.
        speeds: keys of the training log that add up to what is trained on in a second, and their unit.
        card: texts and tables of a model card that are the task's own; `card.md` beside it fills the template.
    """

    name: str
    title: str
    auto_class: type
    recipe_class: type[Recipe]
    train: Callable[..., dict[str, Any]]
    scorer: type[Scorer]
    main_metric: str
    example_inputs: Callable[[PreTrainedConfig], dict[str, Tensor]]
    example: str
    architecture: Paper
    speeds: tuple[str, ...]
    speed_unit: str
    card: Any

    def __str__(self) -> str:
        return self.name.replace("-", " ")

    @property
    def card_template(self) -> str:
        """The blocks that fill the template of model cards."""
        return Path(self.card.__file__).with_name("card.md").read_text(encoding="utf-8")


TASKS = {
    task.name: task
    for task in (
        Task(
            name=TranslationRecipe.task,
            title="Translation",
            auto_class=AutoModelForSeq2SeqLM,
            recipe_class=TranslationRecipe,
            train=train_translation,
            scorer=TranslationScorer,
            main_metric="bleu",
            example_inputs=example_tokens,
            example="Two dogs are playing in the snow.",
            architecture=PAPERS["vaswani2017attention"],
            speeds=("source_tokens_per_second", "target_tokens_per_second"),
            speed_unit="tokens/s",
            card=translation_card,
        ),
        Task(
            name=ImageRecipe.task,
            title="Image Classification",
            auto_class=AutoModelForImageClassification,
            recipe_class=ImageRecipe,
            train=train_image_classification,
            scorer=ImageScorer,
            main_metric="accuracy",
            example_inputs=example_pixels,
            example="picture.png",
            architecture=PAPERS["dosovitskiy2020image"],
            speeds=("images_per_second",),
            speed_unit="images/s",
            card=image_card,
        ),
    )
}


def task_named(name: Any) -> Task:
    """The task of that name; a `ValueError` where there is none."""
    check_name(name, TASKS, "task")
    return TASKS[name]


def task_of(config: PreTrainedConfig) -> Task:
    """The task of a model, which may be none of ours; a `ValueError` where no task opens it."""
    remote = getattr(config, "auto_map", None) or {}  # by the code of a folder
    for task in TASKS.values():
        if task.auto_class.__name__ in remote or type(config) in task.auto_class._model_mapping:
            return task
    raise ValueError(f"model_type {config.model_type!r} is of no task here; there are {', '.join(TASKS)}")


def task_of_model_type(model_type: Any) -> Task:
    """The task of a family of this library by its `model_type`; a `ValueError` for others."""
    check_name(model_type, [family.model_type for family in FAMILIES], "model_type of reluformers")
    models = FAMILIES[config_class_of(model_type)]
    return next(task for task in TASKS.values() if task.auto_class in models)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe of the task that it names.

    Args:
        path: YAML file with `task:` and the sections of that task.
        overrides: `"section.key=value"` each; see `Recipe.load`.

    Raises:
        ValueError: it names no task, or is not valid.
    """
    sections = read_sections(path, overrides)
    return task_named(sections.get("task")).recipe_class.from_sections(sections, path)
