"""The record of a task."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedConfig

from reluformers.papers import Paper

if TYPE_CHECKING:
    from reluformers.evaluation.scorer import Scorer

    from .recipe import Recipe


@dataclass(frozen=True)
class Task:
    """All that commands, cards and the Hub have to know of a task; one stands in each task's folder, as `TASK`.

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
    recipe_class: "type[Recipe]"
    train: Callable[..., dict[str, Any]]
    scorer: "type[Scorer]"
    main_metric: str
    example_inputs: Callable[[PreTrainedConfig], dict[str, Tensor]]
    example: str
    architecture: Paper
    speeds: tuple[str, ...]
    speed_unit: str
    card: Any

    @property
    def card_template(self) -> str:
        """The blocks that fill the template of model cards."""
        return Path(self.card.__file__).with_name("card.md").read_text(encoding="utf-8")
