"""Compare finished runs of one task: print a table in Markdown, and draw their curves in one picture.

Give folders that `reluformers train` wrote. Score each one first: `reluformers evaluate FOLDER … --attention_report
--output FOLDER/evaluation.json`.

Example:
    reluformers compare runs/softmax runs/reluformer --curves docs/curves.png
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Any

from reluformers.evaluation.attention_report import MISSING
from reluformers.evaluation.plotting import check_picture_path, plot_training_curves
from reluformers.evaluation.results import EVALUATION_FILE, METRICS, Evaluation, markdown_table
from reluformers.files import read_json
from reluformers.publish.finished_run import read_recipe
from reluformers.saved_models import read_results
from reluformers.tasks import Task, task_named
from reluformers.training.callbacks import median_speed
from reluformers.training.run_files import LOG_FILE, RECIPE_FILE

ATTENTION_COLUMNS = ("zeros", "null rows", "entropy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--curves", help="picture of losses and scores to draw, .png or .svg")


def run(options: argparse.Namespace) -> None:
    """Print the table, and draw the curves."""
    if options.curves:
        check_picture_path(options.curves)
    logs = {folder: read_json(folder / LOG_FILE) for folder in options.runs}
    evaluations = {folder: Evaluation.load(folder / EVALUATION_FILE) for folder in logs}
    (task_name,) = {evaluation.task for evaluation in evaluations.values()}
    task = task_named(task_name)
    names = run_names(list(logs))
    rows = [table_row(task, folder, names[folder], logs[folder], evaluations[folder]) for folder in logs]
    columns = list(max(rows, key=len))  # A row without some score has fewer columns.
    lines = [[row.get(column, MISSING) for column in columns] for row in rows]
    print(markdown_table(columns, lines), end="")
    print(*footnotes(evaluations), sep="\n")
    first, *others = evaluations
    for folder in others:
        if differing := evaluations[first].differences(evaluations[folder]):
            print(f"{names[first]} and {names[folder]} were scored in other ways: {', '.join(differing)}")
    if options.curves:
        data = [read_recipe(folder / RECIPE_FILE).get("data") or {} for folder in logs]
        # The log of a stream counts whole passes alone.
        x = "step" if any(part.get("streaming") for part in data) else "epoch"
        plot_training_curves({names[folder]: log for folder, log in logs.items()}, options.curves, x=x)


def run_names(folders: list[Path]) -> dict[Path, str]:
    """The names of the folders, or their paths where two have one name."""
    names = {folder: Path(os.path.abspath(folder)).name for folder in folders}  # A link keeps its own name.
    counts = Counter(names.values())
    return {folder: name if counts[name] == 1 else str(folder) for folder, name in names.items()}


def table_row(task: Task, folder: Path, name: str, log: list[dict], evaluation: Evaluation) -> dict[str, str]:
    """Column → cell of a run."""
    attention = evaluation.attention.overall.cells() if evaluation.attention else {}
    return {
        "run": name,
        **evaluation.cells(),
        f"best dev {METRICS[task.main_metric].title} (epoch)": best_dev_score(task, log),
        "parameters": _number(read_results(folder).get("parameters"), ","),
        task.speed_unit: _number(median_speed(log, task.speeds), ",.0f"),
        **{column: attention.get(column, MISSING) for column in ATTENTION_COLUMNS},
    }


def _number(value: Any, form: str) -> str:
    if isinstance(value, int | float):
        return format(value, form)
    return MISSING


def best_dev_score(task: Task, log: list[dict]) -> str:
    """The best score of the evaluations in training, with its epoch."""
    key = f"eval_{task.main_metric}"
    best = max((entry for entry in log if key in entry), key=lambda entry: entry[key], default=None)
    return f"{METRICS[task.main_metric].format(best[key])} ({round(best['epoch'], 2):g})" if best else MISSING


def footnotes(evaluations: dict[Path, Evaluation]) -> list[str]:
    """What was scored, and how."""
    notes = set()
    for evaluation in evaluations.values():
        data = evaluation.data
        counted = [f"{data.rows:,} {data.unit}"] if data.rows else []
        notes |= {f"{note} ({data.split})" for note in [*counted, *evaluation.signatures().values()]}
    return sorted(notes)
