"""Writes a model's card from what was measured of it: metadata for the Hub, text from the template, pictures."""

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import DictLoader, Environment, StrictUndefined
from transformers import PreTrainedConfig

from reluformers.conversion.convert import card_metadata
from reluformers.data.names import is_hub_id, source_name
from reluformers.evaluation.attention_statistics import AttentionReport
from reluformers.evaluation.examples import Example
from reluformers.evaluation.plotting import plot_attention_report, plot_training_curves
from reluformers.evaluation.results import METRICS, Evaluation
from reluformers.files import check_output_files, write_text
from reluformers.papers import attention_source, formula
from reluformers.tasks import Task
from reluformers.training.run import CURVES_FILE, RECIPE_FILE

from .card_check import LANGUAGE_CODE, check_card_text, check_licence
from .card_tables import result_table, statistics_rows, training_rows
from .data_words import NOTHING_SAID, DataWords, data_words
from .finished_run import FinishedRun, read_finished_run, read_recipe
from .markdown import Markup, escape, paragraph, row

CARD_FILE = "README.md"
ATTENTION_PICTURE = "attention.png"

# what stands in the code of the card as it is
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_SITE_TITLES = {
    "encoder": "The self-attention of the encoder",
    "decoder": "The self-attention of the decoder",
    "cross": "The cross-attention",
    "pooling": "The attention of the pooling",
}


def write_card(
    folder: str | Path,
    repo_id: str,
    *,
    revision: str = "v1",
    evaluation: str | Path | None = None,
    baseline: str | Path | None = None,
    licence: str | None = None,
    dataset: str | None = None,
    examples: Sequence[str | Path] = (),
    hardware: str | None = None,
    notes: Sequence[str] = (),
    base_model: str | None = None,
    space: str | None = None,
    data: DataWords = NOTHING_SAID,
    held_out: bool = True,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write README.md and the pictures it shows, from the files of a finished run.

    What the folder does not know is left out. Places on this machine are cut down to names.

    Args:
        folder: of the model: config.json and, as far as they are there, recipe.yaml, log_history.json, results.json
            and evaluation.json.
        repo_id: where the model is to be published, OWNER/NAME.
        revision: tag that the snippets pin.
        evaluation: results of `reluformers evaluate`; None for evaluation.json of the folder.
        baseline: such results of a softmax model on the same split; a recipe.yaml beside them is compared.
        licence: of weights and code, as the Hub spells it; None for that of the folder's README.md, where the trainer
            puts the one of the base model, else apache-2.0.
        dataset: Hub id of the data set that the model was trained and scored on; None for that of the recipe, if it
            names one.
        examples: texts to translate or files of images to classify; the card shows the model's answers.
        hardware: what it was trained on; None for what the run wrote down.
        notes: further sentences on the results.
        base_model: Hub id of the model that it was fine-tuned from; None for what the folder says of it.
        space: id of its demo.
        data: name, domain and terms of the training data; what is missing is looked for beside them.
        held_out: whether rows of the test or validation set, if they lie on this machine, may be shown as examples and
            measured where `evaluation` lacks the statistics of the attention.
        output: where to write; None for `folder`.
        overwrite: whether to replace a card that is there.

    Returns:
        Path of the card.

    Raises:
        ValueError: there is a card already, a file of the folder cannot be read, the baseline was scored in another
            way, or the card would not be valid.
    """
    path = Path(output or folder) / CARD_FILE
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: is there already; keep it, or give --overwrite")
    check_output_files(path)
    licence = licence or known_licence(folder)
    _check_names(repo_id, revision, licence, dataset, base_model)
    run = read_finished_run(folder, evaluation)
    if dataset is None and is_hub_id(run.section("data").get("path")):
        dataset = run.section("data")["path"]
    card, place = run.task.card, path.parent
    place.mkdir(parents=True, exist_ok=True)
    shown = card.answer_examples(folder, examples, place)
    if not shown and held_out:
        shown = card.held_out_examples(folder, run, place)
    report, where = run.evaluation.attention if run.evaluation else None, "the scored split"
    if report is None and held_out and (measured := card.measure_attention(folder, run)):
        report, where = measured
    context = {
        "name": repo_id.rpartition("/")[2],
        "repo_id": Markup(repo_id),
        "revision": Markup(revision),
        "licence": licence,
        "notes": list(notes),
        "examples": shown,
        "base_model": base_model or known_base_model(folder, repo_id),
        "space": space,
        "source_url": _source_url(),
        **_model_context(run, dataset),
        **_data_context(data_words(run.section("data"), dataset, data)),
        **_measured_context(run, repo_id, dataset, baseline, hardware),
        **_pictures(folder, run, place),
        "statistics": statistics_context(report, where),
    }
    context["metadata"] = card_data(run, repo_id, licence, dataset, shown, context["base_model"]).to_yaml()
    text = str(ModelCard(_render(context, run.task)))
    if report:
        plot_attention_report(report, place / ATTENTION_PICTURE)
    check_card_text(text, path)
    write_text(path, text)
    return path


def card_data(
    run: FinishedRun,
    repo_id: str,
    licence: str,
    dataset: str | None,
    examples: Sequence[Example] = (),
    base_model: str | None = None,
) -> ModelCardData:
    """Metadata of a card.

    Args:
        run: of the model.
        repo_id: where the model is to be published.
        licence: as the Hub spells it.
        dataset: Hub id of the data set, if it has one.
        examples: shown as widget examples with their outputs.
        base_model: Hub id of the model that it was fine-tuned from.

    Returns:
        The metadata; results stand in its `model-index`.
    """
    results = _eval_results(run, dataset)
    codes = {code: code.replace("_", "-").partition("-")[0].lower() for code in run.languages}
    codes = {code: base for code, base in codes.items() if LANGUAGE_CODE.fullmatch(base)}  # others name columns
    regional = [code for code, base in codes.items() if code != base]
    return ModelCardData(
        language=list(dict.fromkeys(codes.values())) or None,
        language_bcp47=regional or None,
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
    measured, data = run.evaluation, _scored_data(run, dataset)
    if measured is None or data is None:
        return []
    results = []
    for name, metric in METRICS.items():
        score = measured.scores.get(name)
        if score is None or score.value is None or metric.hub_type is None:
            continue
        results.append(
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
        )
    return results


def _scored_data(run: FinishedRun, dataset: str | None) -> str | None:
    """The data set of the scores: a Hub id of their own, that of the model, or the name of a file."""
    source = run.evaluation.data.source if run.evaluation else None
    return source if is_hub_id(source) else dataset or source_name(source)


def _check_names(repo_id: str, revision: str, licence: str, dataset: str | None, base_model: str | None) -> None:
    if not is_hub_id(repo_id):
        raise ValueError(f"the repository {repo_id!r} must be written OWNER/NAME, and be no folder of this machine")
    if dataset is not None and not is_hub_id(dataset):
        raise ValueError(f"the data set {dataset!r} must be its Hub id, written OWNER/NAME")
    if base_model is not None and not is_hub_id(base_model):
        raise ValueError(f"the base model {base_model!r} must be its Hub id, written OWNER/NAME")
    if not _REVISION.fullmatch(revision):
        raise ValueError(f"the revision {revision!r} is no name of a tag; write it like v1")
    check_licence(licence)


def _model_context(run: FinishedRun, dataset: str | None) -> dict[str, Any]:
    """What config.json says."""
    config = run.config
    attentions = _attentions(config)
    papers = dict.fromkeys([*(site["paper"] for site in attentions), run.task.architecture])
    weights = {"normalization": config.normalization_loss_weight, "entropy": config.entropy_loss_weight}
    return {
        "attentions": attentions,
        "papers": list(papers),
        "regularizer": {**weights, "bound": config.entropy_bound} if config.has_regularizer else None,
        "dataset": dataset,
        "dataset_link": Markup(f"[{dataset}](https://huggingface.co/datasets/{dataset})"),
        "parameters": f"{run.results['parameters']:,}" if run.results.get("parameters") else None,
        **run.task.card.template_values(config, run.languages),
    }


def _measured_context(
    run: FinishedRun, repo_id: str, dataset: str | None, baseline: str | Path | None, hardware: str | None
) -> dict[str, Any]:
    """What was measured, and how."""
    data = run.section("data")
    trained_on = dataset or source_name(data.get("path")) or source_name(data.get("train"))
    table = result_table(
        run,
        repo_id.rpartition("/")[2],
        None if baseline is None else Evaluation.load(baseline),
        {} if baseline is None else read_recipe(Path(baseline).with_name(RECIPE_FILE)),
        _scored_data(run, dataset),
    )
    return {
        "training": training_rows(run, trained_on, hardware),
        "has_recipe": bool(run.recipe),
        "results": table,
    }


def _data_context(words: DataWords) -> dict[str, Any]:
    """The training data in a sentence, and their terms."""
    sentence = ": ".join(part for part in (words.name, words.domain) if part)
    known = {"data_words": f"The data are {sentence.rstrip('.')}." if sentence else None}
    return {**known, "data_terms": words.terms and words.terms.rstrip(".")}


def _pictures(folder: str | Path, run: FinishedRun, place: Path) -> dict[str, Any]:
    """Draw the curves of the log, and bring the other pictures of the run; which of them there are."""
    try:
        plot_training_curves(run.log, place / CURVES_FILE)
        has_curves = True
    except ValueError:  # the log has nothing to draw
        has_curves = False
    drawn = [name for name in run.task.card.RUN_PICTURES if Path(folder, name).is_file()]
    for name in drawn:
        if Path(folder, name).resolve() != (place / name).resolve():
            shutil.copyfile(Path(folder, name), place / name)
    return {"curves": has_curves, "run_pictures": drawn}


def statistics_context(report: AttentionReport | None, where: str) -> dict[str, Any] | None:
    """The attention statistics as the template shows them."""
    if report is None:
        return None
    return {"rows": statistics_rows(report), "queries": f"{report.overall.rows:,}", "where": Markup(where)}


def known_base_model(folder: str | Path, repo_id: str) -> str | None:
    """The model that a folder says it was fine-tuned from: in its README.md, results.json or config.json.

    Args:
        folder: of the model.
        repo_id: its own place, which is no base.

    Returns:
        A Hub id; None if there is none, as of a model that was trained from scratch.
    """
    found = []
    for known in (card_metadata(str(folder)), _start_of(folder)):
        base = known.get("base_model")
        found += [*base] if isinstance(base, list) else [base]
    with suppress(OSError, ValueError):
        found.append(json.loads(Path(folder, "config.json").read_text(encoding="utf-8")).get("_name_or_path"))
    return next((name for name in found if is_hub_id(name) and name != repo_id), None)


def known_licence(folder: str | Path) -> str:
    """The licence in a folder's README.md, or of what it started from; that of this library where there is none.

    Raises:
        ValueError: there are several.
    """
    found = next(filter(None, (known.get("license") for known in (card_metadata(str(folder)), _start_of(folder)))), [])
    licences = found if isinstance(found, list) else [found]
    if len(licences) > 1:
        raise ValueError(f"{folder}: has several licences, {', '.join(map(str, licences))}; choose one by --licence")
    if not licences and _start_of(folder):  # weights of somebody else, who did not say
        return "unknown"
    return str(licences[0]) if licences else "apache-2.0"


def _start_of(folder: str | Path) -> dict[str, Any]:
    """What a run wrote down of the model that it started from."""
    with suppress(OSError, ValueError, AttributeError):
        return json.loads(Path(folder, "results.json").read_text(encoding="utf-8")).get("start") or {}
    return {}


def _source_url() -> str | None:
    """Where the source of this library is, if the installed package says so."""
    for entry in metadata("reluformers").get_all("Project-URL") or []:
        name, _, url = entry.partition(",")
        if name.strip().lower() in ("source", "repository", "homepage"):
            return url.strip()
    return None


def _attentions(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Title, source and formula of each site, or of all where they are alike."""
    sites = [site for site in config.sites if site != "pooling" or config.pooling == "attention"]
    described = []
    for site in sites:
        attention = config.attention_for(site)
        source = attention_source(attention, config)
        in_decoder = site in ("decoder", "cross")
        heads = config.decoder_attention_heads if in_decoder else config.num_attention_heads
        described.append(
            {
                "title": _SITE_TITLES[site],
                "paper": source.paper,
                "place": source.place,
                "formula": "\n".join(formula(attention, config.hidden_size // heads)),
            }
        )
    if all(site["formula"] == described[0]["formula"] for site in described):
        return [{**described[0], "title": "Its attention"}]
    return described


def _render(context: dict[str, Any], task: Task) -> str:
    """Text of the card, from the template and the task's blocks in it."""
    template = (files("reluformers.model_cards") / "template.md").read_text(encoding="utf-8")
    environment = Environment(
        loader=DictLoader({"template.md": template, "card.md": task.card_template}),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=escape,  # whatever is not marked as safe
    )
    environment.filters |= {"paragraph": paragraph, "row": row, "python": _in_code}
    return environment.get_template("card.md").render(context)


def _in_code(text: Any) -> Markup:
    """A text as Python code spells it."""
    return Markup(json.dumps(str(text), ensure_ascii=False))
