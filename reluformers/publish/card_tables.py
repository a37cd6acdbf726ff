"""The tables of a model card: how the model was trained, what it scored, what its attention is like."""

from collections import defaultdict
from typing import Any

from reluformers.data.names import source_name
from reluformers.evaluation.attention_statistics import MISSING, SITE_NAMES, AttentionReport
from reluformers.evaluation.results import Evaluation

from .finished_run import FinishedRun
from .markdown import Markup, code, escape


def result_table(run: FinishedRun, name: str, baseline: Evaluation | None) -> dict[str, Any] | None:
    """Scores of a model, and perhaps of a softmax model: headers, rows of cells, and remarks; None without scores.

    Raises:
        ValueError: the two evaluations were not made in the same way.
    """
    measured = run.evaluation
    if measured is None:
        return None
    cells = _cells(measured)
    rows = [[Markup(f"**{escape(name)}**"), *cells.values()]]
    if baseline is not None:
        measured.check_comparable(baseline)
        rows.append(["softmax baseline", *(_cells(baseline).get(header, MISSING) for header in cells)])
    return {"headers": list(cells), "rows": rows, "remarks": _signatures(measured)}


def statistics_rows(report: AttentionReport) -> list[list[str]]:
    """The rows of the attention report: each site, and all of them if there are several."""
    statistics = {name: report.sites[site].overall for site, name in SITE_NAMES.items() if site in report.sites}
    if len(statistics) > 1:
        statistics["all"] = report.overall
    return [[name, *row.cells().values()] for name, row in statistics.items()]


def training_words(run: FinishedRun) -> dict[str, Any]:
    """What the template says of the training, as far as the folder knows it."""
    training, results, data = run.section("training"), run.results, run.section("data")
    card, epochs = run.task.card, next((entry["epoch"] for entry in reversed(run.log) if "epoch" in entry), None)
    length = [] if results.get("steps") is None else [f"{results['steps']:,} updates"]
    if epochs is not None and not data.get("streaming"):  # whose log counts whole passes alone
        length.append(f"{epochs:.3g} epochs")
    shape = {"shape": card.describe_shape(run.config), **card.describe_inputs(run.config, run.recipe)}
    return {
        "recipe": run.recipe,
        "said": defaultdict(lambda: None, training),
        "train_name": source_name(data.get("train") or ("train" if data.get("path") else None)),
        "device": str(results.get("device")),  # with " × " for several processes, as `Circumstances` has it
        "shape": shape if run.recipe else {},
        "length": length,
        "regularization": _regularization(run) if run.recipe else [],
        "seconds": results.get("training_seconds"),
        "software": ", ".join(f"{name} {results[name]}" for name in ("torch", "transformers") if name in results),
    }


def _cells(evaluation: Evaluation) -> dict[str, str]:
    """Column → text of the scores, of the zeros and of the null rows."""
    cells = evaluation.cells()
    if evaluation.attention:
        statistics = evaluation.attention.overall.cells()
        cells |= {name: statistics[name] for name in ("zeros", "null rows")}
    return cells


def _signatures(evaluation: Evaluation) -> list[Markup]:
    # their parts are joined by strokes, which mean nothing outside of tables
    found = [
        f"{title} {code(str(signature).replace('|', ' ')).replace(' ', '|')}"
        for title, signature in evaluation.signatures().items()
    ]
    return [Markup(", ".join(found) + " (sacreBLEU).")] if found else []


def _regularization(run: FinishedRun) -> list[str]:
    names = ("dropout", "attention_dropout", "word_dropout", "drop_path_rate", "label_smoothing")
    values = {name.removesuffix("_rate").replace("_", " "): getattr(run.config, name, 0) for name in names}
    parts = [f"{name} {value:g}" for name, value in values.items() if value]
    augmentation = run.section("augmentation")
    if augmentation.get("crop") == "pad":
        parts.append(f"crop with a border of {augmentation.get('padding')}")
    elif augmentation.get("crop") not in (None, "none"):
        parts.append(f"{augmentation['crop']} crop")
    parts += [name for name, key in (("flip", "flip"), ("RandAugment", "rand_augment")) if augmentation.get(key)]
    if augmentation.get("mixup"):
        parts.append(f"Mixup {augmentation['mixup']:g}")
    return parts
