"""Writes a model's card from what was measured of it: metadata for the Hub, text from the template, pictures."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import DictLoader, Environment, StrictUndefined
from transformers import PreTrainedConfig

from reluformers.data.names import is_hub_id, source_name
from reluformers.evaluation.attention_report import MISSING, SITE_NAMES
from reluformers.evaluation.plotting import plot_attention_report, plot_training_curves
from reluformers.evaluation.results import METRICS, Evaluation, Example
from reluformers.files import read_json, write_text
from reluformers.papers import attention_source, formula
from reluformers.saved_models import CARD_FILE, card_metadata, read_results
from reluformers.training.run_files import CONFUSION_FILE, CURVES_FILE

from .finished_run import FinishedRun, read_finished_run
from .markdown import Markup, code, escape, paragraph, row

ATTENTION_PICTURE = "attention.png"
# This sentence of the template marks a card of this library, perhaps of another repository.
MARK = "The code of the model lies in this repository, so that "
_SITE_TITLES = {
    "encoder": "The self-attention of the encoder",
    "decoder": "The self-attention of the decoder",
    "cross": "The cross-attention",
    "pooling": "The attention of the pooling",
}


@dataclass(frozen=True)
class CardOptions:
    """What a user says of a model's card.

    Args:
        evaluation: results of `reluformers evaluate`; None for evaluation.json of the folder.
        baseline: such results of a softmax model on the same split.
        licence: of weights and code, as the Hub spells it; None for that of the folder's README.md, where the trainer
            puts the one of the base model, else apache-2.0.
        dataset: Hub id of the data set that the model was trained and scored on; None for that of the recipe, if it
            names one.
        examples: texts to translate or files of images to classify; the card shows the model's answers.
        hardware: what it was trained on; None for what the run wrote down.
        notes: further sentences on the results.
        base_model: Hub id of the model that it was fine-tuned from; None for what the folder says of it.
        space: id of its demo.
        data_name, data_domain, data_terms: what the training data are called, are about, and their licence, in words.
        held_out: whether rows of the test or validation set, if they lie on this machine, may be shown as examples.
    """

    evaluation: str | Path | None = None
    baseline: str | Path | None = None
    licence: str | None = None
    dataset: str | None = None
    examples: Sequence[str | Path] = ()
    hardware: str | None = None
    notes: Sequence[str] = ()
    base_model: str | None = None
    space: str | None = None
    data_name: str | None = None
    data_domain: str | None = None
    data_terms: str | None = None
    held_out: bool = True


def write_card(
    folder: str | Path,
    repo_id: str,
    *,
    revision: str = "v1",
    output: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Write README.md and the pictures it shows, from the files of a finished run.

    What the folder does not know is left out. Paths on this machine are cut down to names.

    Args:
        folder: of the model: config.json and, as far as they are there, recipe.yaml, log_history.json, results.json
            and evaluation.json.
        repo_id: where the model is to be published, OWNER/NAME.
        revision: tag that the snippets pin.
        output: where to write; None for `folder`.
        overwrite: whether to replace a card that is there.
        options: fields of `CardOptions`.

    Raises:
        ValueError: there is a card already, or the baseline was scored in another way.
    """
    given = CardOptions(**options)
    output_dir = Path(output or folder)
    path = output_dir / CARD_FILE
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: is there already; keep it, or give --overwrite")
    run = read_finished_run(folder, given.evaluation)
    trained_on = run.section("data").get("path")
    dataset = given.dataset or (trained_on if is_hub_id(trained_on) else None)
    licence = given.licence or known_licence(folder)
    base_model = given.base_model or known_base_model(folder, repo_id)
    scores = _result_table(run, repo_id.rpartition("/")[2], given.baseline)
    output_dir.mkdir(parents=True, exist_ok=True)
    shown = run.task.card.answer_examples(folder, given.examples, output_dir)
    if not shown and given.held_out:
        shown = run.task.card.held_out_examples(folder, run, output_dir)
    context = {
        **_known(run, dataset, given.data_name),
        **_pictures(Path(folder), run, output_dir),
        "given": given,
        "metadata": card_data(run, repo_id, licence, dataset, shown, base_model).to_yaml(),
        "name": repo_id.rpartition("/")[2],
        "repo_id": Markup(repo_id),
        "revision": Markup(revision),
        "licence": licence,
        "examples": shown,
        "base_model": base_model,
        "table": scores,
        "statistics": _statistics(run, output_dir),
    }
    template = (files("reluformers.model_cards") / "template.md").read_text(encoding="utf-8")
    write_text(path, str(ModelCard(_render(template, run.task.card_template, context), ignore_metadata_errors=True)))
    return path


def _statistics(run: FinishedRun, output_dir: Path) -> dict[str, Any] | None:
    """The attention on the scored split, for the template; its figure is drawn."""
    report = run.evaluation and run.evaluation.attention
    if report is None:
        return None
    plot_attention_report(report, output_dir / ATTENTION_PICTURE)
    statistics = {name: report.sites[site].overall for site, name in SITE_NAMES.items() if site in report.sites}
    if len(statistics) > 1:
        statistics["all"] = report.overall
    rows = [[name, *row.cells().values()] for name, row in statistics.items()]
    return {"rows": rows, "queries": f"{report.overall.rows:,}"}


def _result_table(run: FinishedRun, name: str, baseline: str | Path | None) -> dict[str, Any] | None:
    """Scores of a model, and perhaps those in a file of a softmax model: headers and rows; None without scores."""
    measured = run.evaluation
    if measured is None:
        return None
    cells = _cells(measured)
    rows = [[Markup(f"**{escape(name)}**"), *cells.values()]]
    if baseline is not None:
        other = Evaluation.load(baseline)
        if differing := measured.differences(other):
            raise ValueError(f"{baseline}: was scored in another way, by its {', '.join(differing)}")
        rows.append(["softmax baseline", *(_cells(other).get(header, MISSING) for header in cells)])
    return {"headers": list(cells), "rows": rows}


def _cells(evaluation: Evaluation) -> dict[str, str]:
    """Column → text of the scores, of the zeros and of the null rows."""
    cells = evaluation.cells()
    if evaluation.attention:
        statistics = evaluation.attention.overall.cells()
        cells |= {name: statistics[name] for name in ("zeros", "null rows")}
    return cells


def _signatures(evaluation: Evaluation) -> Markup | None:
    """The signatures of sacreBLEU in a line; None where there are none."""
    # Strokes join their parts; outside of tables these need no escapes.
    signatures = [
        f"{title} {code(str(signature).replace('|', ' ')).replace(' ', '|')}"
        for title, signature in evaluation.signatures().items()
    ]
    if signatures:
        return Markup(", ".join(signatures) + " (sacreBLEU).")
    return None


def card_data(
    run: FinishedRun,
    repo_id: str,
    licence: str,
    dataset: str | None,
    examples: Sequence[Example] = (),
    base_model: str | None = None,
) -> ModelCardData:
    """Collect the metadata of a model card, with the results in its `model-index`."""
    results = _eval_results(run, dataset)
    codes = {code: code.replace("_", "-").partition("-")[0].lower() for code in run.languages}
    # Other codes are names of columns.
    codes = {code: base for code, base in codes.items() if re.fullmatch(r"[a-z]{2,3}", base)}
    return ModelCardData(
        language=list(dict.fromkeys(codes.values())) or None,
        language_bcp47=[code for code, base in codes.items() if code != base] or None,
        license=licence,
        library_name="transformers",
        pipeline_tag=run.task.name,
        tags=["reluformers", run.config.model_type, "attention", "custom_code"],
        datasets=[dataset] if dataset else None,
        metrics=list(dict.fromkeys(it.metric_type for it in results if it.metric_type != "loss")) or None,
        base_model=base_model,
        base_model_relation="finetune" if base_model else None,
        widget=[example.widget() for example in examples] or None,
        model_name=repo_id.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )


def _eval_results(run: FinishedRun, dataset: str | None) -> list[EvalResult]:
    measured = run.evaluation
    data = _scored_data(run, dataset)
    if measured is None or data is None:
        return []
    scores = ((metric, measured.scores.get(name)) for name, metric in METRICS.items() if metric.hub_type)
    return [
        EvalResult(
            task_type=run.task.name,
            task_name=run.task.title,
            dataset_type=data,
            dataset_name=data,
            dataset_split=measured.data.split,
            metric_type=metric.hub_type,
            metric_value=round(score.value, metric.hub_digits),
            metric_name=metric.hub_name,
            metric_args={"signature": score.signature} if score.signature else None,
        )
        for metric, score in scores
        if score is not None and score.value is not None
    ]


def _scored_data(run: FinishedRun, dataset: str | None) -> str | None:
    """The data set of the scores: a Hub id of their own, that of the model, or the name of a file."""
    source = run.evaluation.data.source if run.evaluation else None
    return source if is_hub_id(source) else dataset or source_name(source)


def _known(run: FinishedRun, dataset: str | None, data_name: str | None) -> dict[str, Any]:
    """Collect what the template of a model card says of a run, as far as its folder knows it."""
    config = run.config
    card = run.task.card
    data = run.section("data")
    measured = run.evaluation
    attentions = _attentions(config)
    epochs = next((entry["epoch"] for entry in reversed(run.log) if "epoch" in entry), None)
    return {
        "config": config,
        "recipe": run.recipe,
        "noted": _or_none(run.results),
        "said": _or_none(run.section("training")),
        "augmentation": _or_none(run.section("augmentation")),
        "searched": _or_none(measured.decoding if measured else {}),
        "scored": measured,
        "scored_data": _scored_data(run, dataset),
        "signatures": _signatures(measured) if measured else None,
        "attentions": attentions,
        "papers": list(dict.fromkeys([*(site["paper"] for site in attentions), run.task.architecture])),
        "dataset": dataset,
        "dataset_link": Markup(f"[{dataset}](https://huggingface.co/datasets/{dataset})"),
        "trained_on": dataset or data_name or source_name(data.get("path")) or source_name(data.get("train")),
        "train_name": source_name(data.get("train") or ("train" if data.get("path") else None)),
        "epochs": None if data.get("streaming") else epochs,  # The log of a stream counts whole passes alone.
        "shape": card.describe_shape(config, run.recipe) if run.recipe else {},
        **card.template_values(config, run.languages),
    }


def _or_none(values: dict[str, Any]) -> dict[str, Any]:
    return defaultdict(lambda: None, values)


def _pictures(folder: Path, run: FinishedRun, output_dir: Path) -> dict[str, Any]:
    """Draw the curves of the log, and bring what the run drew of a classifier; which of them there are."""
    try:
        plot_training_curves(run.log, output_dir / CURVES_FILE)
        has_curves = True
    except ValueError:  # The log has nothing to draw.
        has_curves = False
    matrix = folder / CONFUSION_FILE
    if matrix.is_file() and folder.resolve() != output_dir.resolve():
        shutil.copyfile(matrix, output_dir / CONFUSION_FILE)
    return {"curves": has_curves, "run_pictures": [CONFUSION_FILE] if matrix.is_file() else []}


def known_base_model(folder: str | Path, repo_id: str) -> str | None:
    """The Hub id that a folder's README.md, results.json or config.json names as its base, not its own; else None."""
    base_models = []
    for known in (card_metadata(str(folder)), read_results(folder).get("start") or {}):
        base = known.get("base_model")
        base_models += [*base] if isinstance(base, list) else [base]
    base_models.append(read_json(Path(folder, "config.json")).get("_name_or_path"))
    return next((name for name in base_models if is_hub_id(name) and name != repo_id), None)


def known_licence(folder: str | Path) -> str:
    """The licence in a folder's README.md, or of what it started from; that of this library where there is none."""
    start = read_results(folder).get("start") or {}
    known = card_metadata(str(folder)).get("license") or start.get("license") or []
    licences = known if isinstance(known, list) else [known]
    if len(licences) > 1:
        raise ValueError(f"{folder}: has several licences, {', '.join(map(str, licences))}; choose one by licence=…")
    if licences:
        return str(licences[0])
    # Somebody else's weights keep their unknown licence; those trained here get ours.
    return "unknown" if start else "apache-2.0"


def _attentions(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Title, source and formula of each site, or of all where they are alike."""
    described = []
    for site in config.sites:
        attention = config.attention_for(site)
        source = attention_source(attention, config)
        heads = config.decoder_attention_heads if site in ("decoder", "cross") else config.num_attention_heads
        text = "\n".join(formula(attention, config.hidden_size // heads))
        described.append(
            {"title": _SITE_TITLES[site], "paper": source.paper, "passage": source.passage, "formula": text}
        )
    if all(site["formula"] == described[0]["formula"] for site in described):
        return [{**described[0], "title": "Its attention"}]
    return described


def _render(template: str, blocks: str, context: dict[str, Any]) -> str:
    """Text of the card, from the template and the task's blocks in it."""
    environment = Environment(
        loader=DictLoader({"template.md": template, "card.md": blocks}),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=escape,  # It escapes whatever is not marked as safe.
    )
    quote = lambda text: Markup(json.dumps(str(text), ensure_ascii=False))  # noqa: E731 (as Python code spells a text)
    environment.filters |= {"code": code, "paragraph": paragraph, "row": row, "python": quote}
    return environment.get_template("card.md").render(context)
