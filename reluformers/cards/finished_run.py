"""What the files of a finished run know about its model; what they do not know stays unknown."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, PreTrainedConfig

from reluformers.errors import UserError, describe_error
from reluformers.training.run import LOG_FILE, RECIPE_FILE, RESULTS_FILE

EVALUATION_FILE = "evaluation.json"
_LANGUAGES = ("source_lang", "target_lang")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_DATA_FILE = re.compile(r"\.(jsonl?|parquet|csv|tsv|txt|gz)$")


@dataclass(frozen=True)
class FinishedRun:
    """A saved model and what was written down about it.

    Args:
        config: of the model.
        recipe: sections of `recipe.yaml`; empty if there is none.
        log: entries of `log_history.json`.
        results: of `results.json`.
        evaluation: of `evaluation.json`; None if there is none.
    """

    config: PreTrainedConfig
    recipe: dict[str, dict[str, Any]]
    log: list[dict[str, Any]]
    results: dict[str, Any]
    evaluation: dict[str, Any] | None

    @property
    def is_vision(self) -> bool:
        """Whether the model classifies images; else it translates."""
        return not self.config.is_encoder_decoder

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, perhaps empty."""
        return self.recipe.get(name) or {}

    @property
    def languages(self) -> list[str]:
        """Codes of the source and the target language, as far as they are known."""
        codes = [(self.evaluation or {}).get(f"{side}_lang") for side in ("source", "target")]
        return [code for code in codes if code] or [
            self.section("data")[key] for key in _LANGUAGES if self.section("data").get(key)
        ]

    @property
    def training_seconds(self) -> float | None:
        """Seconds of training with its evaluations; None if unknown, as after a resumed run."""
        if "device" in self.results:
            return self.results.get("training_seconds")
        # runs of an earlier version: their log has the time, of the last start alone
        return next((entry["train_runtime"] for entry in reversed(self.log) if "train_runtime" in entry), None)


def read_finished_run(folder: str | Path, evaluation: str | Path | None = None) -> FinishedRun:
    """Read what a folder knows.

    Args:
        folder: of a saved model.
        evaluation: results of `evaluate_translation.py` or `evaluate_image_classification.py`; None for
            `evaluation.json` of the folder, if it is there.

    Returns:
        The facts.

    Raises:
        UserError: there is no model, its configuration is none of this library, or a file cannot be read.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: is not the folder of a saved model, it has no config.json")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: cannot be read ({describe_error(error)})") from error
    if not hasattr(config, "attention_for"):
        raise UserError(f"{folder}: model_type {config.model_type!r} is no model of reluformers")
    if evaluation is None and (folder / EVALUATION_FILE).is_file():
        evaluation = folder / EVALUATION_FILE
    log = _read(folder / LOG_FILE, list)
    for number, entry in enumerate(log, start=1):
        _check_kind(entry, dict, f"{folder / LOG_FILE}: entry {number}")
    return FinishedRun(
        config=config,
        recipe=read_recipe(folder / RECIPE_FILE),
        log=log,
        results=_read_mapping(folder / RESULTS_FILE),
        evaluation=None if evaluation is None else read_evaluation(evaluation),
    )


def read_evaluation(path: str | Path) -> dict[str, Any]:
    """Read the results of an evaluation.

    Raises:
        UserError: the file is missing, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; make it with --output of evaluate_translation.py or "
                        "evaluate_image_classification.py")  # fmt: skip
    evaluation = _read_mapping(path)
    if not ({"bleu", "accuracy"} & evaluation.keys() and "split" in evaluation):
        raise UserError(f"{path}: has neither bleu nor accuracy of a split; evaluate the model again")
    for names, kind in (
        (("split", *_LANGUAGES), str),
        (("accuracy", "top5_accuracy", "loss"), int | float),
        (("bleu", "chrf", "decoding", "attention"), dict),
    ):
        for name in names:
            _check_kind(evaluation.get(name), kind, f"{path}: {name}")
    for name in ("bleu", "chrf"):
        if evaluation.get(name):
            _check_kind(evaluation[name].get("score", ""), int | float, f"{path}: score of {name}")
    return evaluation


def read_recipe(path: str | Path) -> dict[str, dict[str, Any]]:
    """Sections of a recipe; empty if there is no such file."""
    recipe = _read_mapping(Path(path))
    for name, section in recipe.items():
        _check_kind(section, dict, f"{path}: section {name}")
    for name in _LANGUAGES:
        _check_kind((recipe.get("data") or {}).get(name), str, f"{path}: data.{name}")
    return recipe


def source_name(source: Any) -> str | None:
    """Name of a data source without its place on this machine: a Hub id as it is, else the last part of a path."""
    if isinstance(source, list | tuple):
        names = [name for item in source if (name := source_name(item))]
        return ", ".join(dict.fromkeys(names)) or None
    if isinstance(source, dict):
        return source_name(list(source.values()))
    if not isinstance(source, str) or not source.strip():
        return None
    return source if is_hub_id(source) else re.split(r"[/\\]", source.rstrip("/\\"))[-1] or None


def is_hub_id(source: Any) -> bool:
    """Whether a data source is one of the Hub: looks like owner/name and is nothing on this machine."""
    return (
        isinstance(source, str)
        and _HUB_ID.fullmatch(source) is not None
        and not _DATA_FILE.search(source)
        and not Path(source).exists()
    )


def _read_mapping(path: Path) -> dict[str, Any]:
    return _read(path, dict)


def _read(path: Path, kind: type) -> Any:
    """Content of a YAML or JSON file; an empty one if there is none."""
    if not path.is_file():
        return kind()
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({describe_error(error)})") from error
    if not isinstance(content, kind):
        raise UserError(f"{path}: holds a {type(content).__name__} where a {kind.__name__} is expected")
    return content


def _check_kind(value: Any, kind: Any, name: str) -> None:
    """Refuse a value of another type; None is one that is not known."""
    if value is not None and not isinstance(value, kind):
        allowed = {str: "a string", dict: "a mapping"}.get(kind, "a number")
        raise UserError(f"{name} is {value!r}, but must be {allowed}")
