"""Put finished runs side by side: a table in Markdown and their curves in one picture.

Each folder is one of `train_translation.py`, scored with
`evaluate_translation.py FOLDER … --attention_report --output FOLDER/evaluation.json`.

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

HEADER = (
    "| run | BLEU | chrF | best dev BLEU (epoch) | parameters | tokens/s | zeros | null rows | entropy |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


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


def table_row(folder: Path, name: str, history: list[dict], evaluation: dict) -> str:
    """One run; tokens/s are real tokens of both sides, the median over the training log."""
    results = read_json(folder, "results.json")
    speeds = [
        entry["source_tokens_per_second"] + entry["target_tokens_per_second"]
        for entry in history
        if "source_tokens_per_second" in entry
    ]
    scored = [entry for entry in history if "eval_bleu" in entry]
    best = max(scored, key=lambda entry: entry["eval_bleu"], default=None)
    cells = [
        name,
        f"{evaluation['bleu']['score']:.2f}",
        f"{evaluation['chrf']['score']:.2f}",
        f"{best['eval_bleu']:.2f} ({best['epoch']:.0f})" if best else "–",
        f"{results['parameters']:,}",
        f"{statistics.median(speeds):,.0f}" if speeds else "–",
    ]
    overall = evaluation.get("attention", {}).get("overall")
    if overall is None:
        raise UserError(f"{folder / 'evaluation.json'}: has no attention statistics; evaluate with --attention_report")
    entropy = "–" if overall["entropy"] is None else f"{overall['entropy']:.2f}"
    cells += [f"{overall['zeros']:.1%}", f"{overall['null_rate']:.1%}", entropy]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Put finished runs side by side.")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--curves", help="picture of loss and BLEU, .png or .svg")
    options = parser.parse_args()
    histories = {folder: read_json(folder, "log_history.json") for folder in options.runs}
    evaluations = {folder: read_json(folder, "evaluation.json") for folder in options.runs}
    names = run_names(list(histories))
    print(HEADER)
    for folder, history in histories.items():
        print(table_row(folder, names[folder], history, evaluations[folder]))
    signatures = {
        (evaluation[metric]["signature"], evaluation["split"])
        for evaluation in evaluations.values()
        for metric in ("bleu", "chrf")
    }
    print(*(f"{signature} ({split})" for signature, split in sorted(signatures)), sep="\n")
    if options.curves:
        plot_training_curves(
            {names[folder]: history for folder, history in histories.items()}, options.curves, x="epoch"
        )


if __name__ == "__main__":
    run_main(main)
