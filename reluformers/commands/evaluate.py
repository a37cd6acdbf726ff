r"""Score a saved model: its task's metrics, speed and, if wanted, the statistics of its attention.

The task is read from the model's config.json.

Examples:
    reluformers evaluate ./runs/reluformer --data test.jsonl.gz --source_lang en --target_lang de \
        --attention_report --output runs/reluformer/evaluation.json
    reluformers evaluate ./runs/relu-vit --data uoft-cs/cifar10 --split test --confusion_matrix confusion.png

The decoding of the ReLA and QKNorm papers:
    --num_beams 4 --length_penalty 0.6 --penalty wu --early_stopping never --min_new_tokens 1
"""

import argparse
import os

from reluformers.errors import UserError
from reluformers.evaluation.attention_report import format_attention_report
from reluformers.evaluation.results import METRICS, Evaluation
from reluformers.saved_models import load_config
from reluformers.tasks import TASKS, Task, task_of
from reluformers.training.checkpoints import check_model

from .terminal import silence_transformers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, with a group for each task."""
    parser.add_argument("model", help="folder of a saved model, or Hub id")
    parser.add_argument("--data", required=True, help="Hub id, folder or file of the rows")
    parser.add_argument("--data_config", help="configuration name of a Hub data set, such as de-en")
    parser.add_argument("--data_revision", help="branch, tag or commit of a Hub data set")
    parser.add_argument("--split", default="test", help="split to score; may carry a slice, such as test[:100]")
    parser.add_argument("--attention_report", action="store_true", help="measure the attention weights too")
    parser.add_argument("--output", help="JSON file for the results")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code of the repository")
    for task in TASKS.values():
        task.scorer.add_arguments(parser.add_argument_group(f"options of {task}"))


def run(options: argparse.Namespace) -> None:
    """Score and report.

    Raises:
        UserError: several processes were started, which would each score every row and write the same files.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            f"evaluate runs in one process, but WORLD_SIZE is {os.environ['WORLD_SIZE']}: start it without a launcher"
        )
    silence_transformers()
    check_model(options.model)
    task = task_of(load_config(options.model, trust_remote_code=options.trust_remote_code))
    check_options_of_others(options, task)
    options.task = task.name
    scorer = task.scorer(options)
    evaluation = scorer.run()
    for line in [*describe(evaluation), *scorer.further_lines(evaluation)]:
        print(line)
    if evaluation.attention:
        print(format_attention_report(evaluation.attention))
    if options.output:
        evaluation.save(options.output)


def check_options_of_others(options: argparse.Namespace, task: Task) -> None:
    """Refuse options that only models of another task have.

    Raises:
        UserError: one is given; names it.
    """
    own = task.scorer.default_options()
    for other in TASKS.values():
        for name, default in other.scorer.default_options().items():
            if name not in own and vars(options).get(name, default) != default:
                raise UserError(f"--{name} is an option of {other}, but {options.model} is a model for {task}")


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
