"""Writes a saved model as a folder of ONNX graphs, and compares these with the model."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from transformers import PreTrainedModel

from reluformers.app.models import describe_training, find_examples
from reluformers.evaluation.scorer import Scorer
from reluformers.files import atomic_directory, write_json, write_text
from reluformers.modeling.image_input import read_images
from reluformers.onnx import FOLDER, SUFFIXES
from reluformers.onnx.graphs import operators
from reluformers.saved_models import EXPORT_RECORD, load_config, load_model
from reluformers.tasks import Task, task_of_model_type

from .exporters import EXPORTERS, Exporter, differing_rows, stock_config

# An Inference Endpoint runs this file and installs these packages.
SERVED = {
    "handler.py": "from reluformers.export.endpoint import EndpointHandler as EndpointHandler\n",
    "requirements.txt": "reluformers[onnx,train]\n",
}
TOLERANCE = 1e-3  # Logits in float32 may differ by this share of the largest; they differ by about 1e-6.


def export_onnx(
    model: str | Path,
    folder: str | Path,
    *,
    precisions: Sequence[str] = ("fp32", "int8"),
    attentions: bool = False,
    data: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a saved model as ONNX graphs, in the folders and names of optimum and transformers.js.

    Args:
        model: folder or Hub id of a model of this library.
        folder: to write: configuration, tokenizers or image processor, `onnx/`, and `export.json` with the comparison.
        precisions: some of `SUFFIXES`.
        attentions: whether the graphs give the weights of each layer too.
        data: fields of `ScoringOptions` that name rows to compare answers and scores on, `data` among them; None to
            compare on drawn inputs alone.
        overwrite: replace the folder if it exists.

    Returns:
        What `export.json` holds.

    Raises:
        ValueError: the model is none of this library or has no form in ONNX, the folder is not empty, or the graphs of
            float32 give other logits than the model.
    """
    task = task_of_model_type(load_config(model).model_type)
    exporter = EXPORTERS[task.name]
    scorer = task.scorer(task.scorer.options_class(model=str(model), **data)) if data else None
    rows = scorer.load() if data else None  # Load rows first, as graphs take long.
    source = load_model(task.auto_class, model, dtype=torch.float32, attn_implementation="eager")
    ordered = tuple(name for name in SUFFIXES if name in precisions)
    with atomic_directory(folder, model, overwrite=overwrite) as unfinished:
        stock_config(source.config).save_pretrained(unfinished)
        exporter.save_companions(model, unfinished)
        if source.can_generate():
            source.generation_config.save_pretrained(unfinished)
        for name, text in SERVED.items():
            write_text(unfinished / name, text)
        sizes, described = _write_graphs(exporter.graphs(source, ordered, attentions), unfinished / FOLDER)
        compared = _compare(task, exporter, source, unfinished, ordered)
        answers = _answers(scorer, exporter, unfinished, ordered) if scorer else {}
        by_precision = {name: {"files": sizes[name], **compared[name]} for name in ordered}
        for name in answers.keys() & by_precision.keys():
            by_precision[name]["answers"] = answers[name]
        record = {
            "model": (Path(model).resolve() if Path(model).exists() else Path(model)).name,
            "task": task.name,
            "about": _describe(model, exporter, unfinished),
            "attentions": attentions,
            **described,
            "versions": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
            "data": rows and {"source": Path(str(rows.source)).name, "rows": rows.rows, "unit": rows.unit},
            "pytorch": answers.get("pytorch"),
            "precisions": by_precision,
        }
        write_json(unfinished / EXPORT_RECORD, record)
    return record


def _write_graphs(
    graphs: Iterable[tuple[str, str, onnx.ModelProto]], folder: Path
) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """Save graphs; returns precision → file → bytes, and the operators and the opset of all of them."""
    folder.mkdir()
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    used: set[str] = set()
    for name, precision, graph in graphs:
        path = folder / f"{name}{SUFFIXES[precision]}.onnx"
        onnx.checker.check_model(graph, full_check=precision == "fp32")
        onnx.save(graph, path)
        sizes[precision][path.name] = path.stat().st_size
        used |= operators(graph)
    opset = max(entry.version for entry in graph.opset_import if not entry.domain)
    return sizes, {"operators": sorted(used), "opset": opset}


def _describe(model: str | Path, exporter: Exporter, folder: Path) -> dict[str, Any]:
    """What a page says of a model: training, languages, and inputs to begin with, whose images are copied."""
    examples = find_examples(str(model), are_files=exporter.has_image_examples)
    if exporter.has_image_examples:
        examples = write_examples(examples, folder)
    languages = list(exporter.languages(model))
    return {"training": describe_training(str(model)), "languages": languages, "examples": examples}


def write_examples(paths: Iterable[str | Path], folder: Path) -> list[str]:
    """Write images anew into a folder and return their names; a file copied as it is could be a web page too."""
    names = []
    for number, path in enumerate(paths, start=1):
        [image] = read_images([Path(path).read_bytes()])
        names.append(f"example_{number}.png")
        image.save(folder / names[-1])
    return names


@torch.inference_mode()
def _compare(
    task: Task, exporter: Exporter, source: PreTrainedModel, folder: Path, precisions: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Compare logits and answers on the task's example inputs, which are drawn."""
    inputs = task.example_inputs(source.config)
    results = {}
    wanted = source(**inputs).logits
    tokens = exporter.tokens(source, inputs)
    scale = float(wanted.abs().max()) or 1.0  # A classifier that was never trained gives nothing but 0.
    for precision in precisions:
        runner = exporter.runner.from_folder(folder, precision)
        error = float((runner(**inputs).logits - wanted).abs().max()) / scale
        if not error <= (TOLERANCE if precision == "fp32" else 1):  # A NaN fails this comparison.
            raise ValueError(
                f"the graphs of {precision} give other logits than the model: they differ by {error:.1e} of the "
                "largest"
            )
        answers = exporter.tokens(runner, inputs)
        results[precision] = {
            "logits": error,
            "differing_drawn": dict(zip(exporter.searches, map(differing_rows, tokens, answers), strict=True)),
        }
    return results


def _answers(scorer: Scorer, exporter: Exporter, folder: Path, precisions: Sequence[str]) -> dict[str, Any]:
    """Compare answers, scores and times on rows of data: of PyTorch and each precision, by search."""
    runners = {"pytorch": scorer.model}
    runners |= {name: exporter.runner.from_folder(folder, name) for name in precisions}
    results: dict[str, Any] = {name: {} for name in runners}
    for search, options in exporter.searches.items():
        scorer.options = dataclasses.replace(scorer.options, **options)
        wanted = None
        for name, runner in runners.items():
            scorer.model = runner
            start = time.perf_counter()
            answer = scorer.answer()
            seconds = round(time.perf_counter() - start, 3)
            scores = {key: score.value for key, score in scorer.count(answer)["scores"].items()}
            results[name][search] = {"seconds": seconds, "scores": scores}
            if wanted is None:
                wanted = answer
            else:
                results[name][search]["differing"] = exporter.differing(wanted, answer)
    return results
