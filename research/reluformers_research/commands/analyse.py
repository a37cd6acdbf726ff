r"""Measure the attention of saved models on a data set, and draw it by layer: a JSON file and a picture.

Give models of this library, or encoder–decoder models and vision Transformers of transformers. All read the same rows.
A translation model reads the translations of the data as it writes (teacher forcing).

Examples:
    reluformers analyse runs/softmax runs/reluformer test.jsonl.gz --source_lang en --target_lang de \
        --output analysis/multi30k.json
    reluformers analyse runs/relu-vit google/vit-base-patch16-224 images --split "test[:1000]"
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from reluformers.commands.compare import run_names
from reluformers.commands.evaluate import OF_ROWS, add_scoring_arguments, scoring_options
from reluformers.data.names import source_name
from reluformers.evaluation.circumstances import current_circumstances
from reluformers.files import check_output_files, write_json
from reluformers.saved_models import load_config, model_files, to_accelerator
from reluformers.tasks import task_of
from reluformers.training.checkpoints import check_model
from reluformers_research.analysis.model_analysis import analyse_model
from reluformers_research.analysis.report import means_table, plot_layers

FORMAT_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("models", nargs="+", metavar="model", help="folders or Hub ids of saved models")
    parser.add_argument("data", help="Hub id, folder or file of the rows")
    parser.add_argument("--output", default="analysis.json", help="JSON file to write, beside a picture in .png")
    add_scoring_arguments(parser, OF_ROWS)


def run(options: argparse.Namespace) -> None:
    """Measure and write."""
    output = Path(options.output)
    if output.suffix != ".json":
        raise ValueError(f"--output is {options.output}, but must end in .json")
    picture = output.with_suffix(".png")
    files = [file for model in options.models for file in model_files(model)]
    check_output_files(output, picture, inputs=[options.data, *files])
    for model in options.models:
        check_model(model)
    (task,) = {task_of(load_config(model, trust_remote_code=options.trust_remote_code)) for model in options.models}
    names = run_names([Path(model) for model in options.models])
    analysis: dict[str, Any] = {"format_version": FORMAT_VERSION, "task": task.name, "models": {}}
    for model in dict.fromkeys(options.models):
        scorer = task.scorer(scoring_options(task, {**vars(options), "model": model, "models": None, "output": None}))
        data = scorer.load()
        device = to_accelerator(scorer.model).device
        batches = tqdm(scorer.attention_batches(), desc=model, unit=" batches", disable=not sys.stderr.isatty())
        name = names[Path(model)]
        analysis["models"][name] = analyse_model(scorer.model, batches)
        analysis["data"] = {**dataclasses.asdict(data), "source": source_name(data.source)}
        analysis["circumstances"] = current_circumstances(device).to_dict()
        print(f"{name}: {data.rows:,} {data.unit}")
    write_json(output, analysis)
    plot_layers(analysis["models"], picture)
    print(f"{means_table(analysis['models'])}\n{output}\n{picture}")
