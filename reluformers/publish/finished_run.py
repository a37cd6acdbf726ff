"""What the files of a finished run know about its model; what they do not know stays unknown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from reluformers.data.names import named_split
from reluformers.evaluation.results import EVALUATION_FILE, METRICS, Evaluation, Score, ScoredData
from reluformers.files import read_json
from reluformers.saved_models import load_config, read_results
from reluformers.tasks import Task, task_of_model_type
from reluformers.training.run_files import LOG_FILE, RECIPE_FILE
from reluformers.training.yaml_files import read_yaml


@dataclass(frozen=True)
class FinishedRun:
    """A saved model and what was written down about it.

    Args:
        config: of the model.
        recipe: sections of `recipe.yaml`; empty if there is none.
        log: entries of `log_history.json`.
        results: of `results.json`.
        evaluation: what it scored: of `evaluation.json`, else what the training run measured at its end; None if
            nothing was.
    """

    config: PreTrainedConfig
    recipe: dict[str, dict[str, Any]]
    log: list[dict[str, Any]]
    results: dict[str, Any]
    evaluation: Evaluation | None

    @property
    def task(self) -> Task:
        """What the model does."""
        return task_of_model_type(self.config.model_type)

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, perhaps empty."""
        return self.recipe.get(name) or {}

    @property
    def languages(self) -> list[str]:
        """Codes of the source and the target language, as far as they are known."""
        scored = vars(self.evaluation.data) if self.evaluation else {}
        sources = (scored, self.section("data"))
        pairs = ([known[key] for key in ("source_lang", "target_lang") if known.get(key)] for known in sources)
        return next(filter(None, pairs), [])


def read_finished_run(folder: str | Path, evaluation: str | Path | None = None) -> FinishedRun:
    """Read what the folder of a saved model knows, with other results of `evaluate` than its own if they are given."""
    folder = Path(folder)
    config = load_config(folder)
    if evaluation is None and (folder / EVALUATION_FILE).is_file():
        evaluation = folder / EVALUATION_FILE
    recipe = read_recipe(folder / RECIPE_FILE)
    results = read_results(folder)
    if evaluation is not None:
        scored = Evaluation.load(evaluation)
    else:
        scored = _scored_in_training(task_of_model_type(config.model_type), recipe, results)
    log = read_json(folder / LOG_FILE) if (folder / LOG_FILE).is_file() else []
    return FinishedRun(config, recipe, log, results, scored)


def _scored_in_training(task: Task, recipe: dict[str, dict[str, Any]], results: dict[str, Any]) -> Evaluation | None:
    """What a training run measured at its end: of the test set, else of the validation set."""
    data = recipe.get("data") or {}
    for split in ("test", "validation"):
        if results.get(f"{split}_{task.main_metric}") is None:
            continue
        scores = {
            name: Score(results[f"{split}_{name}"], results.get(f"{name}_signature"))
            for name in METRICS
            if results.get(f"{split}_{name}") is not None
        }
        source = data.get("path") or data.get(split)
        named = data.get(split) if data.get("path") else named_split(source, split)
        return Evaluation(task.name, ScoredData(named or split, source), scores, decoding=recipe.get("decoding") or {})
    return None


def read_recipe(path: Path) -> dict[str, dict[str, Any]]:
    """Sections of a recipe; empty if there is no such file."""
    recipe = read_yaml(path) if path.is_file() else {}
    return {name: section for name, section in recipe.items() if name != "task"}
