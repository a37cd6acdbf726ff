r"""Score a saved model: its task's metrics, speed and, if wanted, the statistics of its attention.

The task is read from the model's config.json.

Examples:
    reluformers evaluate ./runs/reluformer --data test.jsonl.gz --attention_report \
        --output runs/reluformer/evaluation.json
    reluformers evaluate ./runs/reluformer --data news.en news.de
    reluformers evaluate ./runs/relu-vit --data uoft-cs/cifar10 --split test --confusion_matrix confusion.png

The decoding of the ReLA and QKNorm papers:
    --num_beams 4 length_penalty=0.6 penalty=wu early_stopping=never min_new_tokens=1

Of a translation model NAME=VALUE sets length_penalty, penalty, early_stopping, min_new_tokens, tokenize,
translation_column, document_column or document_tokens, of an image classifier image_column, label_column or
num_workers, of a data set of the Hub data_config or data_revision.
"""

import argparse
import dataclasses
import os

from reluformers.evaluation.attention_report import format_attention_report
from reluformers.evaluation.results import METRICS, Evaluation
from reluformers.evaluation.scorer import ScoringOptions
from reluformers.saved_models import load_config
from reluformers.tasks import TASKS, Task, task_of
from reluformers.training.checkpoints import check_model
from reluformers_cli import Parser

from . import FIELD_CHANGE, take_changes
from .options import add_fields
from .terminal import silence_transformers

# fields of a task's options that are options here; NAME=VALUE sets the others
COMMON = ("split", "attention_report", "output", "trust_remote_code")
OF_TASK = {
    "translation": ("source_lang", "target_lang", "num_beams", "max_tokens", "predictions", "dtype", "comet"),
    "image-classification": ("batch_size", "confusion_matrix"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, with a group for each task."""
    parser.add_argument("model", help="folder of a saved model, or Hub id")
    parser.add_argument("settings", nargs="*", default=[], metavar="NAME=VALUE", help="any other field, see above")
    parser.add_argument(
        "--data",
        required=True,
        nargs="+",
        metavar="DATA",
        help="Hub id, folder or file of the rows; or two text files, source and reference line by line",
    )
    add_fields(parser, ScoringOptions, COMMON)
    for name, fields in OF_TASK.items():
        group = parser.add_argument_group(f"options of {TASKS[name]}")
        add_fields(group, TASKS[name].scorer.options_class, fields)


def run(options: argparse.Namespace) -> None:
    """Score and report.

    Raises:
        ValueError: several processes were started, which would each score every row and write the same files.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(
            f"evaluate runs in one process, but WORLD_SIZE is {os.environ['WORLD_SIZE']}: start it without a launcher"
        )
    silence_transformers()
    take_changes(options, "settings", FIELD_CHANGE, "data")
    check_model(options.model)
    task = task_of(load_config(options.model, trust_remote_code=options.trust_remote_code))
    check_options_of_others(options, task)
    options.data = rows_of(options.data, task)
    owner = task.scorer.options_class
    others = {item.name for item in dataclasses.fields(owner)} - {"model", "data", *COMMON, *OF_TASK[task.name]}
    parser = Parser(prog="reluformers evaluate")
    add_fields(parser, owner, sorted(others))
    parser.parse_args([f"--{text}" for text in options.settings], namespace=options)
    scorer = task.scorer(options_of(options, task))
    evaluation = scorer.run()
    for line in [*describe(evaluation), *scorer.further_lines(evaluation)]:
        print(line)
    if evaluation.attention:
        print(format_attention_report(evaluation.attention))


def rows_of(data: list[str], task: Task) -> str | dict[str, str]:
    """The rows as scorers take them: one place, or the two sides of text.

    Raises:
        ValueError: there are too many.
    """
    if len(data) == 1:
        return data[0]
    if len(data) > 2 or task.name != "translation":
        most = "one place, or two text files" if task.name == "translation" else "one place"
        raise ValueError(f"--data names {len(data)}, {' '.join(data)}, but a model for {task} is scored on {most}")
    return dict(zip(("source", "target"), data, strict=True))


def check_options_of_others(options: argparse.Namespace, task: Task) -> None:
    """Refuse options that only models of another task have.

    Raises:
        ValueError: one is given; names it.
    """
    own = task.scorer.options_class.own_fields()
    for other in TASKS.values():
        for name, default in other.scorer.options_class.own_fields().items():
            if name not in own and vars(options).get(name, default) != default:
                raise ValueError(f"--{name} is an option of {other}, but {options.model} is a model for {task}")


def options_of(options: argparse.Namespace, task: Task) -> ScoringOptions:
    """Pick the options of the command line that a task's scorer takes."""
    names = {item.name for item in dataclasses.fields(task.scorer.options_class)}
    return task.scorer.options_class(**{name: value for name, value in vars(options).items() if name in names})


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
