r"""Score a saved model: the metrics of its task, its speed and, with --attention_report, statistics of its attention.

The model's config.json names its task.

Examples:
    reluformers evaluate ./runs/reluformer --data test.jsonl.gz --attention_report \
        --output runs/reluformer/evaluation.json
    reluformers evaluate ./runs/reluformer --data news.en news.de
    reluformers evaluate ./runs/relu-vit --data uoft-cs/cifar10 --split test --confusion_matrix confusion.png

The decoding of the ReLA and QKNorm papers:
    --num_beams 4 length_penalty=0.6 penalty=wu early_stopping=never min_new_tokens=1

NAME=VALUE sets one more field. A translation model has length_penalty, penalty, early_stopping, min_new_tokens,
tokenize, translation_column, document_column and document_tokens. An image classifier has image_column, label_column
and num_workers. A data set of the Hub has data_config and data_revision.
"""

import argparse
from typing import Any

from reluformers.data.checked_fields import check_fields
from reluformers.evaluation.attention_report import format_attention_report
from reluformers.evaluation.results import METRICS, Evaluation
from reluformers.evaluation.scorer import ScoringOptions
from reluformers.saved_models import load_config
from reluformers.tasks import TASKS, Task, task_of
from reluformers.training.checkpoints import check_model
from reluformers.training.recipe import read_fields

from . import FIELD_CHANGE, rows_of, take_changes
from .options import add_fields
from .terminal import silence_libraries

# fields of a task's options that are options here; NAME=VALUE sets any
COMMON = ("split", "attention_report", "output", "trust_remote_code")
OF_TASK = {
    "translation": ("source_lang", "target_lang", "num_beams", "max_tokens", "predictions", "dtype"),
    "image-classification": ("batch_size", "confusion_matrix"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, with a group for each task."""
    parser.add_argument("model", help="folder or Hub id of a saved model")
    parser.add_argument("settings", nargs="*", default=[], metavar="NAME=VALUE", help="one more field, see above")
    parser.add_argument(
        "--data",
        required=True,
        nargs="+",
        metavar="DATA",
        help="Hub id, folder or file of the rows; or a text file of sources and one of their translations",
    )
    add_fields(parser, ScoringOptions, COMMON)
    for name, fields in OF_TASK.items():
        group = parser.add_argument_group(f"options of {TASKS[name]}")
        add_fields(group, TASKS[name].scorer.options_class, fields)


def run(options: argparse.Namespace) -> None:
    """Score and report."""
    silence_libraries()
    take_changes(options, "settings", FIELD_CHANGE, "data")
    check_model(options.model)
    given = vars(options)
    task = task_of(load_config(options.model, trust_remote_code=given.get("trust_remote_code", False)))
    given |= read_fields(given.pop("settings"), "NAME=VALUE")
    given["data"] = rows_of(given["data"])
    evaluation = task.scorer(scoring_options(task, given)).run()
    print("\n".join(describe(evaluation)))
    if evaluation.attention:
        print(format_attention_report(evaluation.attention))


def scoring_options(task: Task, given: dict[str, Any]) -> ScoringOptions:
    """Options of a task's scorer; raises a `ValueError` for what is none of it."""
    return task.scorer.options_class(**check_fields("evaluate", given, task.scorer.options_class))


def describe(evaluation: Evaluation) -> list[str]:
    """Scores with their signatures, and the speed."""
    lines = []
    for name, metric in METRICS.items():
        if name in evaluation.scores:
            score = evaluation.scores[name]
            lines.append(f"{metric.title}: {metric.format(score.value)}  {score.signature or ''}".rstrip())
    data = evaluation.data
    speed = f"{evaluation.rows_per_second:.1f} per second on {evaluation.circumstances.device}"
    return [*lines, f"{data.rows} {data.unit}, {speed}"]
