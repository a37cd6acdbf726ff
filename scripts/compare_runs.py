"""Put finished runs side by side: a table in Markdown and their curves in one picture.

Each folder is one of `train_translation.py`, scored with
`evaluate_translation.py FOLDER … --attention_report --output FOLDER/evaluation.json`, or all are of
`train_image_classification.py`, scored with `evaluate_image_classification.py` and the same two options.

Example:
    python scripts/compare_runs.py runs/softmax runs/reluformer --curves docs/curves.png
"""

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

from reluformers.errors import UserError, run_main
from reluformers.plotting import plot_training_curves

# the score of a kind of runs, as evaluation.json and, behind "eval_", the log name it
KINDS = {"bleu": "translation", "accuracy": "image classification"}
SCORE_HEADERS = {
    "bleu": ("BLEU", "chrF", "best dev BLEU (epoch)", "parameters", "tokens/s"),
    "accuracy": ("accuracy", "top-5", "loss", "best dev accuracy (epoch)", "parameters", "images/s"),
}
ATTENTION_HEADERS = ("zeros", "null rows", "entropy")
MISSING = "–"


def read_json(folder: Path, name: str) -> dict | list:
    path = folder / name
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); train and evaluate the run first") from error


def run_names(folders: list[Path]) -> dict[Path, str]:
    """The names of the folders, or their paths where two have one name."""
    names = {folder: folder.resolve().name for folder in folders}
    counts = Counter(names.values())
    return {folder: name if counts[name] == 1 else str(folder) for folder, name in names.items()}


def common_score(evaluations: dict[Path, dict]) -> str:
    """The key of `KINDS` that all runs were scored with."""
    scores = {}
    for folder, evaluation in evaluations.items():
        found = [score for score in KINDS if score in evaluation]
        if not found:
            raise UserError(f"{folder / 'evaluation.json'}: has neither {' nor '.join(KINDS)}; evaluate the run again")
        scores.setdefault(found[0], folder)
    if len(scores) > 1:
        shown = " and ".join(f"{folder} of {KINDS[score]}" for score, folder in scores.items())
        raise UserError(f"the runs are of two kinds, {shown}; compare each kind by itself")
    return next(iter(scores))


def format_score(score: str, value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.2%}" if score == "accuracy" else f"{value:.2f}"


def best_dev_score(score: str, history: list[dict]) -> str:
    key = f"eval_{score}"
    best = max((entry for entry in history if key in entry), key=lambda entry: entry[key], default=None)
    return f"{format_score(score, best[key])} ({best['epoch']:.0f})" if best else MISSING


def median_speed(history: list[dict], *keys: str) -> str:
    """Median over the training log of the sum of `keys`: real tokens of both sides, or images, a second."""
    speeds = [sum(entry[key] for key in keys) for entry in history if all(key in entry for key in keys)]
    return f"{statistics.median(speeds):,.0f}" if speeds else MISSING


def score_cells(score: str, evaluation: dict) -> list[str]:
    if score == "bleu":
        return [format_score("bleu", evaluation[metric]["score"]) for metric in ("bleu", "chrf")]
    accuracies = [format_score("accuracy", evaluation[key]) for key in ("accuracy", "top5_accuracy")]
    return [*accuracies, f"{evaluation['loss']:.3f}"]


def attention_cells(folder: Path, evaluation: dict) -> list[str]:
    overall = evaluation.get("attention", {}).get("overall")
    if overall is None:
        raise UserError(f"{folder / 'evaluation.json'}: has no attention statistics; evaluate with --attention_report")
    entropy = MISSING if overall["entropy"] is None else f"{overall['entropy']:.2f}"
    return [f"{overall['zeros']:.1%}", f"{overall['null_rate']:.1%}", entropy]


def table_row(score: str, folder: Path, name: str, history: list[dict], evaluation: dict) -> list[str]:
    tokens = ("source_tokens_per_second", "target_tokens_per_second")
    return [
        name,
        *score_cells(score, evaluation),
        best_dev_score(score, history),
        f"{read_json(folder, 'results.json')['parameters']:,}",
        median_speed(history, *(tokens if score == "bleu" else ("images_per_second",))),
        *attention_cells(folder, evaluation),
    ]


def footnotes(score: str, evaluations: dict[Path, dict]) -> list[str]:
    """What was scored: the metric's signature or the number of images, and the split."""
    if score == "accuracy":
        return sorted(
            {f"{evaluation['images']:,} images ({evaluation['split']})" for evaluation in evaluations.values()}
        )
    return sorted(
        {
            f"{evaluation[metric]['signature']} ({evaluation['split']})"
            for evaluation in evaluations.values()
            for metric in ("bleu", "chrf")
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Put finished runs side by side.")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--curves", help="picture of loss and BLEU or accuracy, .png or .svg")
    options = parser.parse_args()
    histories = {folder: read_json(folder, "log_history.json") for folder in options.runs}
    evaluations = {folder: read_json(folder, "evaluation.json") for folder in options.runs}
    score, names = common_score(evaluations), run_names(list(histories))
    headers = ["run", *SCORE_HEADERS[score], *ATTENTION_HEADERS]
    rows = [table_row(score, folder, names[folder], histories[folder], evaluations[folder]) for folder in histories]
    lines = [f"| {' | '.join(cells)} |" for cells in (headers, *rows)]
    print(lines[0], f"|{'---|' * len(headers)}", *lines[1:], sep="\n")
    print(*footnotes(score, evaluations), sep="\n")
    if options.curves:
        plot_training_curves(
            {names[folder]: history for folder, history in histories.items()}, options.curves, x="epoch"
        )


if __name__ == "__main__":
    run_main(main)
