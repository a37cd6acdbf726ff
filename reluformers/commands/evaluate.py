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

from reluformers.data.checked_fields import PlainText, check_fields
from reluformers.evaluation.attention_report import format_attention_report
from reluformers.evaluation.results import METRICS, Evaluation
from reluformers.evaluation.scorer import ScoringOptions
from reluformers.saved_models import DTYPES, load_config
from reluformers.tasks import Task, task_of
from reluformers.training.checkpoints import check_model
from reluformers.training.yaml_files import read_fields

from . import rows_of

# Options OF_ROWS choose rows and batches; OTHERS say what else is measured and written.
OF_ROWS = {
    "split": "split to score, perhaps with a slice, such as test[:100]; without it, the file's name says it, or test",
    "source_lang": "language to translate from, such as en; without it, the one that the model's folder names",
    "target_lang": "language to translate to, such as de; without it, the one that the model's folder names",
    "max_tokens": "most source tokens in a batch, with padding (default: 4096)",
    "batch_size": "images in a batch (default: 64)",
}
OTHERS = {
    "output": "JSON file for the results",
    "num_beams": "beams of the search (default: 5)",
    "predictions": "text file for the translations, one per line",
    "confusion_matrix": "picture of the predicted class of each true class, .png or .svg",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("model", help="folder or Hub id of a saved model")
    parser.add_argument(
        "--data",
        required=True,
        nargs="+",
        metavar="DATA",
        help="Hub id, folder or file of the rows; or a text file of sources and one of their translations",
    )
    add_scoring_arguments(parser, OF_ROWS | OTHERS)
    parser.add_argument("--attention_report", action="store_true", help="also measure the attention weights")
    parser.add_argument("--dtype", choices=DTYPES, help="data type to compute in; without it, the saved model's")


def add_scoring_arguments(parser: argparse.ArgumentParser, options: dict[str, str]) -> None:
    """Add options for some fields of a scorer's options, name → help, and NAME=VALUE for all others."""
    parser.add_argument("changes", nargs="*", default=[], metavar="NAME=VALUE", help="one more field")
    for name, text in options.items():
        parser.add_argument(f"--{name}", type=PlainText, help=text)
    parser.add_argument("--trust_remote_code", action="store_true", help="run the model code of the repository")


def run(options: argparse.Namespace) -> None:
    """Score and report."""
    check_model(options.model)
    task = task_of(load_config(options.model, trust_remote_code=options.trust_remote_code))
    evaluation = task.scorer(scoring_options(task, {**vars(options), "data": rows_of(options.data)})).run()
    print("\n".join(describe(evaluation)))
    if evaluation.attention:
        print(format_attention_report(evaluation.attention))


def scoring_options(task: Task, options: dict[str, Any]) -> ScoringOptions:
    """Options of a task's scorer, of those that are given; raises a `ValueError` for what is none of it."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    # Python refuses a name that stands in both.
    given = dict(**read_fields(given.pop("changes"), "NAME=VALUE"), **given)
    return task.scorer.options_class(**check_fields("evaluate", given, task.scorer.options_class))


def describe(evaluation: Evaluation) -> list[str]:
    """Scores with their signatures, and the speed."""
    lines = []
    for name, metric in METRICS.items():
        if name in evaluation.scores:
            score = evaluation.scores[name]
            lines.append(f"{metric.title}: {metric.format(score.value)}  {score.signature or ''}".rstrip())
    data = evaluation.data
    speed = f"{data.rows / evaluation.seconds:.1f} per second on {evaluation.circumstances.device}"
    return [*lines, f"{data.rows} {data.unit}, {speed}"]
